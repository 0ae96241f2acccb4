#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>

#include "policy/thread_annotations.h"

namespace okcvm::fusefs {

/// Tells when requests come so often that it is worth keeping processors awake for the next ones. Not
/// thread-safe.
class RequestRate {
 public:
  /// Counts a request that came at `now`.
  bool is_high_at(std::chrono::steady_clock::time_point now) {
    if (now - since_ > kWindow) {
      since_ = now;
      requests_ = 0;
    }
    return ++requests_ >= kMany;
  }

 private:
  static constexpr std::chrono::milliseconds kWindow{16};
  static constexpr int kMany = 16;

  std::chrono::steady_clock::time_point since_;
  int requests_ = 0;
};

/// Keeps idle processors from falling asleep while programs make one request after the other: such a program
/// waits for each answer, so its processor goes idle at every request, and to wake it costs more than the
/// request does, in a virtual machine several times as much. The kernel is asked through /dev/cpu_dma_latency
/// (Documentation/power/pm_qos_interface.rst), which forgets the wish with the process that made it. Where
/// that device is missing nothing is done. One for the whole process. Thread-safe.
class Wakefulness {
 public:
  using Clock = std::chrono::steady_clock;

  static Wakefulness& instance();

  /// Keeps them awake from now on for a short while.
  void extend(Clock::time_point now) {
    const auto until = now.time_since_epoch().count() + kHold.count();
    if (until_.load(std::memory_order_relaxed) > until - kHold.count() / 2) return;
    until_.store(until, std::memory_order_relaxed);
    if (asleep_.load(std::memory_order_relaxed)) start();
  }

 private:
  static constexpr std::chrono::nanoseconds kHold = std::chrono::milliseconds(20);

  Wakefulness();
  void start() EXCLUDES(mutex_);
  void run() EXCLUDES(mutex_);

  const std::int32_t microseconds_;  // the longest that a processor may take to wake up
  std::atomic<std::int64_t> until_{0};
  std::atomic<bool> asleep_{true};
  Mutex mutex_;
  std::condition_variable_any changed_;
  bool running_ GUARDED_BY(mutex_) =
      false;  // the thread that asks the kernel; it ends when it has nothing to do for a while
};

}  // namespace okcvm::fusefs
