#pragma once

#include <functional>
#include <unordered_set>

#include "fusefs/types.h"
#include "fusefs/workspace.h"
#include "policy/thread_annotations.h"

namespace okcvm::fusefs {

/// Files that lost their last name while they are open through this daemon, not through the kernel's
/// passthrough: they keep a hidden name beside the zones, so that the next daemon finds them if this one
/// dies. Thread-safe.
class Orphans {
 public:
  explicit Orphans(Workspace& workspace) : workspace_(workspace) {}

  /// Those that a dead daemon kept are still wanted after a take-over; else they are removed.
  void start(Start start) EXCLUDES(mutex_);
  /// To be called before the last name goes. `file` is open on the inode (O_PATH). Without a place for a
  /// hidden name (the workdir) nothing is kept.
  void keep(NodeId id, Zone zone, int file) EXCLUDES(mutex_);
  /// After a take-over, once open files are counted: a daemon may have died between a FORGET and drop().
  void drop_unless(const std::function<bool(NodeId)>& is_open) EXCLUDES(mutex_);
  /// Whether the node's inode has a hidden name, which counts among its links.
  bool keeps(NodeId id) const EXCLUDES(mutex_);
  /// The kernel forgot the node. Not earlier: it changes the inode's ctime, which O_PATH descriptors show.
  void drop(NodeId id) EXCLUDES(mutex_);

 private:
  Workspace& workspace_;
  mutable Mutex mutex_;
  std::unordered_set<std::uint64_t> kept_ GUARDED_BY(mutex_);
};

}  // namespace okcvm::fusefs
