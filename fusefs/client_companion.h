#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace okcvm::fusefs {

/// Keeps processors from falling asleep while a program makes one request after the other. It waits for every
/// answer, so in each request one processor would go idle and have to be woken, which costs more than the
/// request itself (in a virtual machine several times as much). A thread of the lowest class (SCHED_IDLE:
/// anything else that wants the processor has it at once) spins meanwhile; it stops a millisecond after the
/// last request, and ends after a second. It works together with CpuFollower. Not thread-safe but for the
/// thread itself: called by whoever has the reader's turn.
class ClientCompanion {
 public:
  ClientCompanion();
  ~ClientCompanion();

  /// Called with each request's process id and the time it came. 0 is the kernel's own doing, a RELEASE for
  /// one, and says nothing.
  void follow(std::uint32_t pid, std::chrono::steady_clock::time_point now);

 private:
  void start();
  void run();

  static constexpr std::uint32_t kWorthwhile = 4;  // requests in a row

  bool worthwhile_;  // there is more than one processor
  std::uint32_t pid_ = 0;
  std::uint32_t streak_ = 0;

  std::atomic<std::int64_t> until_{0};  // steady clock, nanoseconds
  std::atomic<bool> asleep_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  bool running_ = false;
  std::thread thread_;
};

}  // namespace okcvm::fusefs
