#pragma once

#include <list>
#include <unordered_map>
#include <vector>

#include "fusefs/types.h"
#include "policy/file_descriptor.h"
#include "policy/thread_annotations.h"

namespace okcvm::fusefs {

/// Inodes that lost their last name, held (O_PATH) until the kernel forgets them. No program may use up the
/// daemon's descriptors, so there is a bound, past which the one held longest is let go. If it is open as a
/// file it is still found by its handle. Thread-safe.
class RemovedInodes {
 public:
  RemovedInodes() = default;
  ~RemovedInodes();
  RemovedInodes(const RemovedInodes&) = delete;
  RemovedInodes& operator=(const RemovedInodes&) = delete;

  void hold(NodeId id, FileDescriptor inode) EXCLUDES(mutex_);
  /// Another descriptor of the same; invalid if it is not held.
  FileDescriptor again(NodeId id) const EXCLUDES(mutex_);
  void let_go(NodeId id) EXCLUDES(mutex_);

 private:
  static constexpr std::size_t kMost = 4096;  // of a session
  static constexpr std::size_t kMostInAll = 65'536;
  struct Held {
    FileDescriptor inode;
    std::list<NodeId>::iterator age;
  };
  FileDescriptor take(NodeId id) REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::unordered_map<std::uint64_t, Held> held_ GUARDED_BY(mutex_);
  std::list<NodeId> ages_ GUARDED_BY(mutex_);  // held longest first
};

}  // namespace okcvm::fusefs
