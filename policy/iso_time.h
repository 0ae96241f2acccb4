#pragma once

#include <time.h>

#include <optional>
#include <string>
#include <string_view>

namespace okcvm {

/// In UTC; of a time outside of the years 0 to 9999, for which the formats have no digits, the nearest in
/// them.
tm utc_of(time_t seconds);

/// ISO 8601 in UTC: "2026-11-21T22:05:05.123Z".
std::string time_text(const timespec& time);
/// Reads what time_text writes, and the seeds' "…+00:00" with any number of decimals; nothing else.
std::optional<timespec> parse_time(std::string_view text);

}  // namespace okcvm
