#pragma once

#include <time.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace okcvm::daemon {

/// The time of day, to the millisecond.
timespec time_now();

/// Milliseconds since 1970 and back.
std::int64_t to_milliseconds(const timespec& time);
timespec from_milliseconds(std::int64_t milliseconds);

/// ISO 8601 in UTC: "2026-11-21T22:05:05.123Z".
std::string time_text(const timespec& time);
/// Reads what time_text writes, and the seeds' "…+00:00" with any number of decimals; nothing else.
std::optional<timespec> parse_time(std::string_view text);

}  // namespace okcvm::daemon
