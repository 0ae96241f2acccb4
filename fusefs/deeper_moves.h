#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "fusefs/types.h"

namespace okcvm::fusefs {

/// Directories on their way to another one deeper in the session. The driver has moved them, but the kernel
/// does that only when the rename is answered: until then it follows the texts of links in them from where
/// they stood, where fewer ".." lead out. Thread-safe.
class DeeperMoves {
 public:
  /// To be called before anybody can see the new place.
  void begin(NodeId moved);
  /// The kernel has moved it, too.
  void end(NodeId moved);

  /// How many were begun so far.
  std::uint64_t begun() const;
  std::vector<NodeId> under_way() const;
  /// Waits until none of them is under way, though not long: that may depend on who waits.
  void let_end() const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable ended_;
  std::map<std::uint64_t, int> moves_;  // by node
  std::uint64_t begun_ = 0;
};

}  // namespace okcvm::fusefs
