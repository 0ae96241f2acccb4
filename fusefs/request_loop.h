#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>

#include "fusefs/channel.h"
#include "fusefs/protocol.h"
#include "policy/thread_annotations.h"

namespace okcvm::fusefs {

/// The threads that serve one mount: a single sleeping one while it is quiet, more as long as they are
/// needed. libfuse's own loop keeps at least three a mount, which a thousand idle mounts cannot afford.
/// Thread-safe.
class RequestLoop {
 public:
  RequestLoop(fuse_session* session, Channel& channel) : session_(session), channel_(channel) {}
  ~RequestLoop() { join(); }

  /// Starts one more thread unless there are enough. Failure is harmless while any thread is left.
  bool add_thread() EXCLUDES(mutex_);
  /// Waits until every thread has ended: the mount is gone or the channel was stopped.
  void join() EXCLUDES(mutex_);
  /// Not for longer than this. False: a request that was begun goes on, and needs all that it uses.
  bool join_within(std::chrono::milliseconds time) EXCLUDES(mutex_);
  bool ended() const { return ended_; }

 private:
  static constexpr int kMaxThreads = 16;
  static constexpr int kMostWaiting = 240;     // besides, in requests that wait for somebody else
  static constexpr int kMostThatMayWait = 40;  // besides: each has one of SessionState::kChanges
  static void* run(void* self);
  void serve();

  fuse_session* session_;
  Channel& channel_;
  Mutex mutex_;
  std::condition_variable_any last_ended_;
  int threads_ GUARDED_BY(mutex_) = 0;
  std::atomic<bool> ended_{false};
};

}  // namespace okcvm::fusefs
