#include "fusefs/caller_count.h"

#include <algorithm>

namespace okcvm::fusefs {

void CallerCount::add(std::uint32_t pid, bool overlaps) {
  if (!pid) return;
  if (requests_ == 0) since_ = Clock::now();
  if (overlaps && pid != last_) ++overlaps_;
  last_ = pid;
  const auto share = std::find_if(shares_.begin(), shares_.end(),
                                  [&](const Share& one) { return one.pid == pid || one.requests == 0; });
  if (share != shares_.end()) *share = {pid, share->requests + 1};
  if (++requests_ == kWindow) judge();
}

void CallerCount::judge() {
  const bool together = overlaps_ >= kFewOverlaps && Clock::now() - since_ < kLongestWindow;
  const auto callers = std::count_if(shares_.begin(), shares_.end(),
                                     [](const Share& one) { return one.requests >= kSmallShare; });
  const int count = together ? std::max(1, static_cast<int>(callers)) : 1;
  start_again();
  count_ = count;
}

void CallerCount::start_again() {
  shares_ = {};
  requests_ = 0;
  overlaps_ = 0;
  count_ = 1;
}

}  // namespace okcvm::fusefs
