#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace okcvm::fusefs {

/// Lets one thread at a time wait for requests, so that a request wakes nobody needlessly: the thread that
/// read it usually comes back for the next one before another could have been woken. One of the others looks
/// from time to time, less often while all goes well and ever less while nothing happens, whether the reader
/// is stuck in a slow request, and then takes its place. A thread that was not needed for a while is told to
/// end. Thread-safe.
class ReaderTurn {
 public:
  /// Takes the turn if nobody has it.
  bool try_take();
  /// Waits for the turn; false when stopped, or when this thread was not needed for a while.
  bool take();
  /// Gives the turn back with a request in hand. `slow`: wake another thread at once. Answers whether nobody
  /// is there to take it: then another thread should be started.
  bool leave(bool slow);
  /// Nobody gets the turn any more.
  void stop();

 private:
  bool wait(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable freed_;
  bool taken_ = false;
  std::uint64_t requests_ = 0;
  int waiting_ = 0;
  bool watched_ = false;  // one of those who wait looks after the reader
  bool drowsy_ = false;   // and, as nothing happened for a while, seldom
  bool stopped_ = false;
};

}  // namespace okcvm::fusefs
