#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace okcvm::fusefs {

/// Lets one thread at a time wait for requests, so that a request wakes nobody needlessly: the thread that
/// read it usually comes back for the next one before another could have been woken. While requests come in,
/// the others look every millisecond whether the reader is stuck in a slow request, and then take its place;
/// while none come in, they sleep. Thread-safe.
class ReaderTurn {
 public:
  /// Waits for the turn; false when stopped.
  bool take() {
    std::unique_lock lock(mutex_);
    while (taken_ && !stopped_) {
      if (active_)
        freed_.wait_for(lock, kPatience);
      else
        freed_.wait(lock);
    }
    taken_ = !stopped_;
    return taken_;
  }

  /// Gives the turn back with a request in hand. `slow`: wake another thread at once.
  void leave(bool slow) {
    bool wake = slow;
    {
      const std::lock_guard lock(mutex_);
      taken_ = false;
      wake |= !active_;
      active_ = true;
    }
    if (wake) freed_.notify_one();
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
      taken_ = false;
    }
    freed_.notify_all();
  }

 private:
  static constexpr std::chrono::milliseconds kPatience{1};

  std::mutex mutex_;
  std::condition_variable freed_;
  bool taken_ = false;
  bool active_ = false;
  bool stopped_ = false;
};

}  // namespace okcvm::fusefs
