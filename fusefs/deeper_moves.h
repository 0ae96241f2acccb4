#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <vector>

#include "fusefs/types.h"
#include "policy/thread_annotations.h"

namespace okcvm::fusefs {

/// Directories on their way to another one deeper in the session. The driver has moved them, but the kernel
/// does that only when the rename is answered: until then it follows the texts of links in them from where
/// they stood, where fewer ".." lead out. Thread-safe.
class DeeperMoves {
 public:
  /// To be called before anybody can see the new place.
  void begin(NodeId moved) EXCLUDES(mutex_);
  /// The kernel has moved it, too.
  void end(NodeId moved) EXCLUDES(mutex_);

  /// How many were begun so far.
  std::uint64_t begun() const EXCLUDES(mutex_);
  std::vector<NodeId> under_way() const EXCLUDES(mutex_);
  /// Waits until none of them is under way, though not long: that may depend on who waits.
  void let_end() const EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  mutable std::condition_variable_any ended_;
  std::map<NodeId, int> moves_ GUARDED_BY(mutex_);
  std::uint64_t begun_ GUARDED_BY(mutex_) = 0;
};

}  // namespace okcvm::fusefs
