#include "tools/daemon/host/clock.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <utility>

namespace okcvm::daemon {

timespec time_now() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  now.tv_nsec -= now.tv_nsec % 1'000'000;
  return now;
}

std::int64_t to_milliseconds(const timespec& time) {
  return static_cast<std::int64_t>(time.tv_sec) * 1000 + time.tv_nsec / 1'000'000;
}

timespec from_milliseconds(std::int64_t milliseconds) {
  std::int64_t seconds = milliseconds / 1000;
  std::int64_t rest = milliseconds % 1000;
  if (rest < 0) rest += 1000, --seconds;
  return timespec{static_cast<time_t>(seconds), static_cast<long>(rest * 1'000'000)};
}

std::string time_text(const timespec& time) {
  tm parts{};
  ::gmtime_r(&time.tv_sec, &parts);
  char text[64];
  std::snprintf(text, sizeof text, "%04d-%02d-%02dT%02d:%02d:%02d.%03ldZ", parts.tm_year + 1900,
                parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                time.tv_nsec / 1'000'000);
  return text;
}

std::optional<timespec> parse_time(std::string_view text) {
  const std::string copy(text.substr(0, 64));
  tm parts{};
  const char* rest = ::strptime(copy.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (!rest) return std::nullopt;
  timespec time{::timegm(&parts), 0};
  if (*rest == '.') {
    long unit = 100'000'000;
    for (++rest; *rest >= '0' && *rest <= '9'; ++rest, unit /= 10) time.tv_nsec += unit * (*rest - '0');
  }
  const std::string_view zone(rest);
  if (zone != "Z" && zone != "+00:00") return std::nullopt;
  return time;
}

std::int64_t ClockWatch::lead_now() {
  timespec since_boot{};
  ::clock_gettime(CLOCK_BOOTTIME, &since_boot);
  return time_now().tv_sec - since_boot.tv_sec;
}

ClockWatch::ClockWatch(std::filesystem::path file, Lead lead)
    : file_(std::move(file)), lead_(std::move(lead)), seen_(lead_()) {
  std::int64_t kept = 0;
  if (std::ifstream(file_) >> kept)
    seen_ = kept;
  else
    std::ofstream(file_) << seen_;
}

bool ClockWatch::was_set() {
  constexpr std::int64_t kHour = 3600;
  const auto now = lead_();
  if (std::abs(now - seen_.exchange(now)) <= kHour) return false;
  std::ofstream(file_) << now;
  return true;
}

}  // namespace okcvm::daemon
