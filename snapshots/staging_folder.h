#pragma once

#include <utility>

#include "policy/error.h"
#include "snapshots/disk.h"

namespace okcvm::snapshots {

/// The staging folder of a restore, made anew; removed, with what it holds, when this goes. Not thread-safe.
class StagingFolder final {
 public:
  /// `disk` outlives it.
  static Result<StagingFolder> make(const Disk& disk);
  StagingFolder(StagingFolder&& other) noexcept
      : parent_(std::exchange(other.parent_, -1)), folder_(std::move(other.folder_)) {}
  StagingFolder& operator=(StagingFolder&&) = delete;
  ~StagingFolder() { remove(); }

  /// Hands the folder to who builds in it.
  Disk take() { return std::move(folder_); }
  /// What cannot be removed now is tried again at the end, and removed by the next start or restore.
  void remove();

 private:
  StagingFolder(int parent, Disk folder) : parent_(parent), folder_(std::move(folder)) {}

  int parent_;
  Disk folder_;
};

}  // namespace okcvm::snapshots
