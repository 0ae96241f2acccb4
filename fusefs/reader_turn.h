#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace okcvm::fusefs {

/// Lets one thread at a time wait for requests, so that a request wakes nobody needlessly: the thread that
/// read it usually comes back for the next one before another could have been woken. While requests come in,
/// the others look every millisecond whether the reader is stuck in a slow request, and then take its place;
/// while none come in, they sleep, and after a while they are told to end. Thread-safe.
class ReaderTurn {
 public:
  /// Waits for the turn; false when stopped, or when this thread was not needed for a long time.
  bool take() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    const auto useless_from = std::chrono::steady_clock::now() + kSurplus;
    while (taken_ && !stopped_) {
      if (freed_.wait_for(lock, active_ ? kPatience : kSurplus) == std::cv_status::timeout && !active_ &&
          std::chrono::steady_clock::now() >= useless_from)
        break;
    }
    --waiting_;
    if (stopped_ || taken_) return false;
    taken_ = true;
    return true;
  }

  /// Gives the turn back with a request in hand. `slow`: wake another thread at once. Answers whether nobody
  /// is there to take it: then another thread should be started.
  bool leave(bool slow) {
    bool wake = slow;
    bool alone = false;
    {
      const std::lock_guard lock(mutex_);
      taken_ = false;
      wake |= !active_;
      active_ = true;
      alone = waiting_ == 0;
    }
    if (wake) freed_.notify_one();
    return alone;
  }

  /// The reader found nothing for a while and goes to sleep.
  void rest() {
    const std::lock_guard lock(mutex_);
    active_ = false;
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    freed_.notify_all();
  }

 private:
  static constexpr std::chrono::milliseconds kPatience{1};
  static constexpr std::chrono::seconds kSurplus{2};

  std::mutex mutex_;
  std::condition_variable freed_;
  int waiting_ = 0;
  bool taken_ = false;
  bool active_ = false;
  bool stopped_ = false;
};

}  // namespace okcvm::fusefs
