#include "policy/iso_time.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace okcvm {

tm utc_of(time_t seconds) {
  constexpr time_t kYear0 = -62'167'219'200, kEndOfYear9999 = 253'402'300'799;
  const time_t shown = std::clamp(seconds, kYear0, kEndOfYear9999);
  tm parts{};
  ::gmtime_r(&shown, &parts);
  return parts;
}

std::string time_text(const timespec& time) {
  const tm parts = utc_of(time.tv_sec);
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
  // strptime(3) takes spaces, and days that are none.
  const std::string_view seconds(copy.data(), static_cast<std::size_t>(rest - copy.data()));
  if (!time_text(time).starts_with(seconds) || seconds.size() != std::strlen("2026-11-21T22:05:05"))
    return std::nullopt;
  if (*rest == '.') {
    long unit = 100'000'000;
    for (++rest; *rest >= '0' && *rest <= '9'; ++rest, unit /= 10) time.tv_nsec += unit * (*rest - '0');
  }
  const std::string_view zone(rest);
  if (zone != "Z" && zone != "+00:00") return std::nullopt;
  return time;
}

}  // namespace okcvm
