#pragma once

#include <atomic>
#include <chrono>
#include <unordered_map>

#include "fusefs/types.h"
#include "policy/error.h"
#include "policy/file_descriptor.h"
#include "policy/thread_annotations.h"

namespace okcvm::fusefs {

/// A file system in which backing inodes are found again without their names: by the kernel's file handles
/// where it has them, else by descriptors that are kept open as long as the node is known. Thread-safe.
class Volume {
 public:
  /// `root` is any directory of the file system, open for reading. `use_handles` false forces the fallback.
  explicit Volume(FileDescriptor root, bool use_handles = true);

  int root() const { return root_.get(); }
  dev_t device() const { return device_; }
  bool uses_handles() const { return uses_handles_; }
  /// Whether copy_file_range(2) may do better here than reading and writing: blocks shared by two files, or
  /// copied by a server. Only of file systems known for neither it is denied.
  bool copies_cleverly() const { return copies_cleverly_; }
  /// Then there is nothing to wait for in fsync(2).
  bool is_in_memory() const { return is_in_memory_; }
  /// Whether what is removed should make room at once: too little is left to wait for the kernel to forget
  /// it. Asked of the file system once in a millisecond at most, in which no program uses up what was left.
  bool is_nearly_full() const;

  /// The handle of `name` in `directory` (of what `directory` is open on if empty), never following a link.
  /// In the fallback this pins the inode: every call is to be matched by an unpin().
  Result<Handle> pin(int directory, const char* name, std::uint64_t inode) EXCLUDES(mutex_);
  void unpin(std::uint64_t inode) EXCLUDES(mutex_);

  /// Whether `name` in `directory` (what `directory` is open on if empty) is the inode behind a handle, given
  /// that it has its number: another one may have that by now.
  bool leads_to(const Handle& handle, int directory, const char* name) const;

  /// Opens the inode behind a handle with open(2)'s flags. ESTALE when it is gone.
  Result<FileDescriptor> open(const Handle& handle, int flags) const EXCLUDES(mutex_);

 private:
  struct Pinned {
    FileDescriptor file;
    std::uint64_t count = 0;
  };

  FileDescriptor root_;
  dev_t device_ = 0;
  bool uses_handles_ = true;
  bool copies_cleverly_ = true;
  bool is_in_memory_ = false;
  mutable std::atomic<std::chrono::steady_clock::time_point> room_known_until_{};
  mutable std::atomic<bool> nearly_full_{false};
  mutable Mutex mutex_;
  std::unordered_map<std::uint64_t, Pinned> pinned_ GUARDED_BY(mutex_);
};

}  // namespace okcvm::fusefs
