#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "policy/thread_annotations.h"

namespace okcvm::daemon {

/// Answered requests by route and status, with a histogram of their times. Thread-safe.
class RequestMetrics final {
 public:
  void count(std::string_view route, int status, std::chrono::nanoseconds taken) EXCLUDES(mutex_);
  /// In Prometheus text form.
  std::string text() const EXCLUDES(mutex_);

 private:
  static constexpr std::array<double, 8> kBounds{0.001, 0.005, 0.02, 0.1, 0.5, 2, 10, 60};  // seconds
  struct Times {
    std::array<std::uint64_t, kBounds.size()> within{};
    std::uint64_t count = 0;
    double seconds = 0;
  };
  mutable Mutex mutex_;
  std::map<std::pair<std::string_view, int>, std::uint64_t> requests_ GUARDED_BY(mutex_);
  std::map<std::string_view, Times> times_ GUARDED_BY(mutex_);
};

}  // namespace okcvm::daemon
