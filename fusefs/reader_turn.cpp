#include "fusefs/reader_turn.h"

#include <algorithm>

namespace okcvm::fusefs {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kFirstLook{1};
constexpr std::chrono::milliseconds kLongestBetweenLooks{16};
constexpr std::chrono::seconds kSurplus{2};

}  // namespace

bool ReaderTurn::take() {
  std::unique_lock lock(mutex_);
  if (stopped_) return false;
  if (taken_) {
    ++waiting_;
    const bool needed = wait(lock);
    --waiting_;
    if (!needed) return false;
    if (!watched_) freed_.notify_one();  // another one watches now
  }
  taken_ = true;
  return true;
}

bool ReaderTurn::wait(std::unique_lock<std::mutex>& lock) {
  auto useful_until = Clock::now() + kSurplus;
  for (auto patience = kFirstLook; !stopped_; patience = std::min(2 * patience, kLongestBetweenLooks)) {
    const auto seen = requests_;
    const bool watches = !watched_;
    watched_ = true;
    const auto until = watches ? Clock::now() + patience : useful_until;
    const bool told = freed_.wait_until(lock, until) == std::cv_status::no_timeout;
    if (watches) watched_ = false;
    const bool goes_on = requests_ != seen;
    if (!taken_ && !stopped_ && (told || !goes_on)) return true;
    if (watches && goes_on) useful_until = Clock::now() + kSurplus;
    if (!told && Clock::now() >= useful_until) return false;
  }
  return false;
}

bool ReaderTurn::leave(bool slow) {
  bool alone = false;
  {
    const std::lock_guard lock(mutex_);
    taken_ = false;
    ++requests_;
    alone = waiting_ == 0;
  }
  if (slow) freed_.notify_one();
  return alone;
}

void ReaderTurn::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  freed_.notify_all();
}

}  // namespace okcvm::fusefs
