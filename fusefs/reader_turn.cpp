#include "fusefs/reader_turn.h"

#include <algorithm>
#include <utility>

namespace okcvm::fusefs {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kFirstLook{1};
constexpr std::chrono::milliseconds kLongestBetweenLooks{16};  // while requests come in
constexpr std::chrono::milliseconds kDrowsyFrom{100};          // to be woken by the next request
constexpr std::chrono::seconds kSurplus{2};

}  // namespace

bool ReaderTurn::try_take() {
  const std::lock_guard lock(mutex_);
  if (stopped_ || taken_) return false;
  taken_ = true;
  return true;
}

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
  for (auto patience = kFirstLook; !stopped_;) {
    const auto seen = requests_;
    const bool watches = !watched_;
    if (watches) drowsy_ = patience > kDrowsyFrom;
    watched_ = true;
    const auto until = watches ? std::min(Clock::now() + patience, useful_until) : useful_until;
    const bool told = freed_.wait_until(lock, until) == std::cv_status::no_timeout;
    if (watches) watched_ = false;
    const bool goes_on = requests_ != seen;
    if (!taken_ && !stopped_ && (told || !goes_on)) return true;
    if (watches && goes_on) useful_until = Clock::now() + kSurplus;
    if (!told && Clock::now() >= useful_until) return false;
    patience = told ? kFirstLook : goes_on ? std::min(2 * patience, kLongestBetweenLooks) : 2 * patience;
  }
  return false;
}

bool ReaderTurn::leave(bool slow) {
  bool alone = false;
  bool wake_watcher = false;
  {
    const std::lock_guard lock(mutex_);
    taken_ = false;
    ++requests_;
    alone = waiting_ == 0;
    wake_watcher = std::exchange(drowsy_, false);
  }
  if (wake_watcher)
    freed_.notify_all();
  else if (slow)
    freed_.notify_one();
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
