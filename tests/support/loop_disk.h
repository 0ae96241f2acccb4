#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/scratch.h"

namespace okcvm::test {

/// A file system of its own, in a file. Mounted until this object goes.
class LoopDisk final {
 public:
  /// `type` is mkfs's, `size` as truncate(1) takes it.
  LoopDisk(std::string type, std::string size) : type_(std::move(type)), size_(std::move(size)) {}
  ~LoopDisk();
  LoopDisk(const LoopDisk&) = delete;
  LoopDisk& operator=(const LoopDisk&) = delete;

  /// Makes it and mounts it at a directory. Answers why that cannot be done here, or nothing.
  std::string mount_at(const std::filesystem::path& place);
  /// Mounts at another directory, as a disk of its own, a copy of what is in the file by now: what a host
  /// finds that stops without warning at this moment.
  void copy_at(const std::filesystem::path& place);

 private:
  const std::string type_;
  const std::string size_;
  const ScratchDirectory image_{"disk"};
  std::vector<std::filesystem::path> places_;
};

}  // namespace okcvm::test
