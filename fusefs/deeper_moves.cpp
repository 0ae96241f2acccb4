#include "fusefs/deeper_moves.h"

#include <chrono>

namespace okcvm::fusefs {
namespace {

constexpr std::chrono::milliseconds kLongestWait{20};

}  // namespace

void DeeperMoves::begin(NodeId moved) {
  const std::lock_guard lock(mutex_);
  ++begun_;
  ++moves_[moved.value];
}

void DeeperMoves::end(NodeId moved) {
  const std::lock_guard lock(mutex_);
  if (const auto found = moves_.find(moved.value); found != moves_.end() && --found->second == 0)
    moves_.erase(found);
  ended_.notify_all();
}

std::uint64_t DeeperMoves::begun() const {
  const std::lock_guard lock(mutex_);
  return begun_;
}

std::vector<NodeId> DeeperMoves::under_way() const {
  const std::lock_guard lock(mutex_);
  std::vector<NodeId> ids;
  for (const auto& [id, count] : moves_) ids.push_back(NodeId{id});
  return ids;
}

void DeeperMoves::let_end() const {
  std::unique_lock lock(mutex_);
  ended_.wait_for(lock, kLongestWait, [this] { return moves_.empty(); });
}

}  // namespace okcvm::fusefs
