#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>

#include "fusefs/caller_count.h"
#include "policy/thread_annotations.h"

namespace okcvm::fusefs {

/// Lets one thread at a time wait for requests, so that a request wakes nobody needlessly: the thread that
/// read it usually comes back for the next one before another could have been woken. One of the others looks
/// from time to time, less often while all goes well and ever less while nothing happens, whether the reader
/// is stuck in a slow request, and then takes its place. While several programs make requests at the same
/// time, each with a processor of its own, as many threads wait for them. A thread that was not needed for a
/// while is told to end. Thread-safe.
class ReaderTurn {
 public:
  /// What is known of a request when the turn is given back.
  struct Request {
    std::uint32_t pid = 0;       // 0: the kernel's own
    bool was_waiting = false;    // when the reader came for it
    bool may_take_long = false;  // another thread should be woken at once
  };

  /// Takes the turn if it can be had now.
  bool try_take() EXCLUDES(mutex_);
  /// Waits for the turn; false when stopped, or when this thread was not needed for a while.
  bool take() EXCLUDES(mutex_);
  /// Takes the turn though there may be none left, for a request that is there already.
  void take_one_more() EXCLUDES(mutex_);
  /// Gives the turn back with a request in hand. Answers whether nobody is there to take it: then another
  /// thread should be started.
  bool leave(const Request& request) EXCLUDES(mutex_);
  /// The request of this thread was answered.
  void answered() { --serving_; }
  /// Gives the turn back because no request comes; false when nobody else would wait for one.
  bool retire() EXCLUDES(mutex_);
  /// Nobody has the turn or waits for it.
  bool is_deserted() EXCLUDES(mutex_);
  /// Several threads may have the turn.
  bool is_shared() const { return places_ > 1; }
  /// Nobody gets the turn any more.
  void stop() EXCLUDES(mutex_);

 private:
  bool wait() REQUIRES(mutex_);

  Mutex mutex_;
  std::condition_variable_any freed_;
  CallerCount callers_ GUARDED_BY(mutex_);
  int readers_ GUARDED_BY(mutex_) = 0;
  std::uint64_t requests_ GUARDED_BY(mutex_) = 0;
  int waiting_ GUARDED_BY(mutex_) = 0;
  bool watched_ GUARDED_BY(mutex_) = false;  // one of those who wait looks after the reader
  bool drowsy_ GUARDED_BY(mutex_) = false;   // and, as nothing happened for a while, seldom
  bool stopped_ GUARDED_BY(mutex_) = false;
  std::atomic<int> places_{1};   // changed under the lock
  std::atomic<int> serving_{0};  // requests of programs in hand
};

}  // namespace okcvm::fusefs
