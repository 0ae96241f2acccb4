#pragma once

#include <functional>
#include <utility>

#include "policy/thread_annotations.h"
#include "tools/daemon/http/worker_pool.h"

namespace okcvm::daemon {

/// Work of which no second piece begins while one is under way, however long that takes: it is done once more
/// after it. Thread-safe.
class OneAtATime final {
 public:
  OneAtATime(WorkerPool& workers, std::function<void()> work) : workers_(workers), work_(std::move(work)) {}
  /// Has it done on a worker from now on.
  void post() EXCLUDES(mutex_);

 private:
  void run() EXCLUDES(mutex_);
  bool has_more() EXCLUDES(mutex_);

  WorkerPool& workers_;
  const std::function<void()> work_;
  Mutex mutex_;
  enum class State { kNone, kUnderWay, kOnceMore } state_ GUARDED_BY(mutex_) = State::kNone;
};

}  // namespace okcvm::daemon
