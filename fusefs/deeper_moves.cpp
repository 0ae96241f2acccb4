#include "fusefs/deeper_moves.h"

#include <chrono>

namespace okcvm::fusefs {
namespace {

constexpr std::chrono::milliseconds kLongestWait{20};

}  // namespace

void DeeperMoves::begin(NodeId moved) {
  const MutexLock lock(mutex_);
  ++begun_;
  ++moves_[moved];
}

void DeeperMoves::end(NodeId moved) {
  const MutexLock lock(mutex_);
  if (const auto found = moves_.find(moved); found != moves_.end() && --found->second == 0)
    moves_.erase(found);
  ended_.notify_all();
}

std::uint64_t DeeperMoves::begun() const {
  const MutexLock lock(mutex_);
  return begun_;
}

std::vector<NodeId> DeeperMoves::under_way() const {
  const MutexLock lock(mutex_);
  std::vector<NodeId> ids;
  for (const auto& [id, count] : moves_) ids.push_back(id);
  return ids;
}

void DeeperMoves::let_end() const {
  const MutexLock lock(mutex_);
  ended_.wait_for(mutex_, kLongestWait, [this]() REQUIRES(mutex_) { return moves_.empty(); });
}

}  // namespace okcvm::fusefs
