#include "fusefs/reader_turn.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace okcvm::fusefs {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kFirstLook{1};
constexpr std::chrono::milliseconds kLongestBetweenLooks{16};  // while requests come in
constexpr std::chrono::milliseconds kDrowsyFrom{100};          // to be woken by the next request
constexpr std::chrono::seconds kSurplus{2};

/// How many threads should wait for the requests of so many programs. A program and its thread share a
/// processor.
int places_for(int programs) {
  static const int processors = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return std::min(programs, processors);
}

}  // namespace

bool ReaderTurn::try_take() {
  const MutexLock lock(mutex_);
  if (stopped_ || readers_ >= places_) return false;
  ++readers_;
  return true;
}

void ReaderTurn::take_one_more() {
  const MutexLock lock(mutex_);
  ++readers_;
}

bool ReaderTurn::take() {
  const MutexLock lock(mutex_);
  if (stopped_) return false;
  if (readers_ >= places_) {
    ++waiting_;
    const bool needed = wait();
    --waiting_;
    if (!needed) return false;
    if (!watched_) freed_.notify_one();  // another one watches now
  }
  ++readers_;
  return true;
}

bool ReaderTurn::wait() {
  auto useful_until = Clock::now() + kSurplus;
  for (auto interval = kFirstLook; !stopped_;) {
    const auto seen = requests_;
    const bool watches = !watched_;
    if (watches) drowsy_ = interval > kDrowsyFrom;
    watched_ = true;
    const auto until = watches ? std::min(Clock::now() + interval, useful_until) : useful_until;
    const bool told = freed_.wait_until(mutex_, until) == std::cv_status::no_timeout;
    if (watches) watched_ = false;
    const bool goes_on = requests_ != seen;
    if (readers_ < places_ && !stopped_ && (told || !goes_on)) return true;
    if (watches && goes_on) useful_until = Clock::now() + kSurplus;
    if (!told && Clock::now() >= useful_until) return false;
    interval = told ? kFirstLook : goes_on ? std::min(2 * interval, kLongestBetweenLooks) : 2 * interval;
  }
  return false;
}

bool ReaderTurn::is_deserted() {
  const MutexLock lock(mutex_);
  return readers_ == 0 && waiting_ == 0;
}

bool ReaderTurn::leave(const Request& request) {
  bool alone = false;
  bool wake_watcher = false;
  bool wake_one = request.may_take_long;
  {
    const MutexLock lock(mutex_);
    --readers_;
    ++requests_;
    callers_.add(request.pid, request.was_waiting || serving_ > 0);
    const int places = places_for(callers_.count());
    if (places > places_) wake_one = true;
    places_ = places;
    alone = waiting_ == 0;
    wake_watcher = std::exchange(drowsy_, false);
  }
  if (request.pid) ++serving_;
  if (wake_watcher)
    freed_.notify_all();
  else if (wake_one)
    freed_.notify_one();
  return alone;
}

bool ReaderTurn::retire() {
  const MutexLock lock(mutex_);
  callers_.start_again();
  places_ = 1;
  if (readers_ == 1) return false;
  --readers_;
  return true;
}

void ReaderTurn::stop() {
  {
    const MutexLock lock(mutex_);
    stopped_ = true;
  }
  freed_.notify_all();
}

}  // namespace okcvm::fusefs
