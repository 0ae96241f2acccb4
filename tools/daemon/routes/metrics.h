#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string_view>
#include <utility>

#include "policy/thread_annotations.h"
#include "tools/daemon/sessions/work_metrics.h"

namespace okcvm::daemon {

class Exposition;

/// Answered requests by route and status, with a histogram of their times. Thread-safe.
class RequestMetrics final {
 public:
  void count(std::string_view route, int status, std::chrono::nanoseconds taken) EXCLUDES(mutex_);
  void print(Exposition& out) const EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  std::map<std::pair<std::string_view, int>, std::uint64_t> requests_ GUARDED_BY(mutex_);
  std::map<std::string_view, TimeHistogram> times_ GUARDED_BY(mutex_);
};

}  // namespace okcvm::daemon
