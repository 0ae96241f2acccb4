#include "tools/daemon/routes/metrics.h"

#include <sstream>

namespace okcvm::daemon {

void RequestMetrics::count(std::string_view route, int status, std::chrono::nanoseconds taken) {
  const double seconds = std::chrono::duration<double>(taken).count();
  const MutexLock lock(mutex_);
  ++requests_[{route, status}];
  auto& times = times_[route];
  ++times.count;
  times.seconds += seconds;
  for (std::size_t i = 0; i < kBounds.size(); ++i)
    if (seconds <= kBounds[i]) ++times.within[i];
}

std::string RequestMetrics::text() const {
  std::ostringstream out;
  const MutexLock lock(mutex_);
  out << "# HELP okcvm_control_requests_total Answered requests of the control socket.\n"
         "# TYPE okcvm_control_requests_total counter\n";
  for (const auto& [key, count] : requests_)
    out << "okcvm_control_requests_total{route=\"" << key.first << "\",status=\"" << key.second << "\"} "
        << count << "\n";
  out << "# HELP okcvm_control_request_seconds Time to answer.\n# TYPE okcvm_control_request_seconds "
         "histogram\n";
  for (const auto& [route, times] : times_) {
    for (std::size_t i = 0; i < kBounds.size(); ++i)
      out << "okcvm_control_request_seconds_bucket{route=\"" << route << "\",le=\"" << kBounds[i] << "\"} "
          << times.within[i] << "\n";
    out << "okcvm_control_request_seconds_bucket{route=\"" << route << "\",le=\"+Inf\"} " << times.count
        << "\n"
        << "okcvm_control_request_seconds_sum{route=\"" << route << "\"} " << times.seconds << "\n"
        << "okcvm_control_request_seconds_count{route=\"" << route << "\"} " << times.count << "\n";
  }
  return out.str();
}

}  // namespace okcvm::daemon
