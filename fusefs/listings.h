#pragma once

#include <sys/types.h>
#include <time.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>

#include "fusefs/types.h"
#include "policy/file_descriptor.h"
#include "policy/thread_annotations.h"

namespace okcvm::fusefs {

/// Listings between two of their pieces, the last few begun. A program that renames what it lists must come
/// to an end: some file systems (btrfs) list what was there when the directory was opened, and put what is
/// renamed behind that. So a listing goes on in the descriptor that it began with. Of a directory only the
/// listing begun last is kept: an older one may lack names that a later one must show. Thread-safe.
class Listings {
 public:
  struct Listing {
    FileDescriptor file;      // invalid: to be opened
    off_t at = 0;             // where `unread` begins
    std::string unread;       // what getdents64(2) gave before the descriptor's position
    std::uint64_t begun = 0;  // its number; 0: not to be kept
  };

  Listing begin(NodeId directory) EXCLUDES(mutex_);
  /// What was kept of the one begun last. Until that is kept again, others open the directory anew.
  Listing take(NodeId directory) EXCLUDES(mutex_);
  void keep(NodeId directory, Listing listing) EXCLUDES(mutex_);
  /// Closes what is kept of a directory, as when it was removed.
  void drop(NodeId directory) EXCLUDES(mutex_);

  /// The host can change a directory of a workdir and set back the mtime, by which the kernel would know. So
  /// its ctime is kept from when it was first listed since it was outdated, of so many; answers of which it
  /// is not kept any more.
  std::optional<NodeId> listed_at(NodeId directory, const timespec& changed) EXCLUDES(mutex_);
  /// Whether it was another one then. That is said once.
  bool is_outdated(NodeId directory, const timespec& changed) EXCLUDES(mutex_);

 private:
  static constexpr std::size_t kMostTimes = 8192;
  struct Row {
    NodeId directory{};
    std::uint64_t begun = 0;
    Listing kept;
  };
  Row* row_of(NodeId directory) REQUIRES(mutex_);

  Mutex mutex_;
  std::array<Row, 8> rows_ GUARDED_BY(mutex_);
  std::uint64_t last_begun_ GUARDED_BY(mutex_) = 0;
  std::unordered_map<std::uint64_t, timespec> changed_ GUARDED_BY(mutex_);
};

}  // namespace okcvm::fusefs
