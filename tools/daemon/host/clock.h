#pragma once

#include <time.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace okcvm::daemon {

/// The time of day, to the millisecond.
timespec time_now();

/// Milliseconds since 1970 and back.
std::int64_t to_milliseconds(const timespec& time);
timespec from_milliseconds(std::int64_t milliseconds);

/// Notices when the time of day was set, rather than corrected: by more than an hour, also while another
/// daemon ran on this host. Thread-safe.
class ClockWatch final {
 public:
  /// How many seconds the time of day is ahead of the time since boot.
  using Lead = std::function<std::int64_t()>;
  static std::int64_t lead_now();

  /// The lead of the last look is kept in `file`.
  explicit ClockWatch(std::filesystem::path file, Lead lead = lead_now);
  /// Since the last look.
  bool was_set();

 private:
  std::filesystem::path file_;
  Lead lead_;
  std::atomic<std::int64_t> seen_;
};

}  // namespace okcvm::daemon
