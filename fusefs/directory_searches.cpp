#include "fusefs/directory_searches.h"

#include <algorithm>
#include <chrono>

namespace okcvm::fusefs {
namespace {

constexpr std::chrono::milliseconds kLongestWait{500};

}  // namespace

bool DirectorySearches::begin(NodeId directory, std::uint64_t asked) {
  const MutexLock lock(mutex_);
  const auto [known, is_new] = under_way_.try_emplace(directory, asked);
  if (!is_new && known->second == asked) return false;
  known->second = asked;
  return true;
}

void DirectorySearches::end(NodeId directory, std::uint64_t asked) {
  const MutexLock lock(mutex_);
  if (const auto known = under_way_.find(directory); known != under_way_.end() && known->second == asked)
    under_way_.erase(known);
  ended_.notify_all();
}

void DirectorySearches::let_end(std::span<const NodeId> directories,
                                const std::function<bool()>& is_done) const {
  const MutexLock lock(mutex_);
  const auto is_under_way = [this](NodeId directory)
                                REQUIRES(mutex_) { return under_way_.contains(directory); };
  ended_.wait_for(mutex_, kLongestWait,
                  [&] { return is_done() || std::ranges::none_of(directories, is_under_way); });
}

}  // namespace okcvm::fusefs
