#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>

#include "policy/thread_annotations.h"

namespace okcvm::daemon {

/// Threads for work that blocks. It grows when all are busy and shrinks to one when they idle, so that slow
/// work never keeps other work waiting as long as no more than `most` pieces are in hand; the server admits
/// no more requests than that. Thread-safe.
class WorkerPool final {
 public:
  /// Throws std::system_error where the host has no thread for it.
  explicit WorkerPool(std::size_t most);
  ~WorkerPool() { finish(); }
  /// Waits for what was posted. Nothing may be posted from then on, but by that.
  void finish() EXCLUDES(mutex_);
  /// The same, but not for longer than this. False: some of it goes on.
  bool finish_within(std::chrono::milliseconds time) EXCLUDES(mutex_);

  /// What `work` throws, as for lack of memory, is written to the log.
  void post(std::function<void()> work) EXCLUDES(mutex_);

 private:
  void start_thread() REQUIRES(mutex_);
  void run() EXCLUDES(mutex_);

  const std::size_t most_;
  Mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::function<void()>> waiting_ GUARDED_BY(mutex_);
  std::size_t threads_ GUARDED_BY(mutex_) = 0;
  std::size_t idle_ GUARDED_BY(mutex_) = 0;
  bool ending_ GUARDED_BY(mutex_) = false;
};

}  // namespace okcvm::daemon
