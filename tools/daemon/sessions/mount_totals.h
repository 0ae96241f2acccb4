#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string_view>

namespace okcvm::fusefs {
struct MountStatistics;
}

namespace okcvm::daemon {

/// What several mounts did together. Not thread-safe.
struct MountTotals {
  struct Operation {
    std::uint64_t count = 0;
    std::uint64_t nanoseconds = 0;
    std::array<std::uint64_t, 24> latency{};  // as in fusefs::MountStatistics
  };
  std::map<std::string_view, Operation> operations;
  std::map<int, std::uint64_t> errors;  // by errno
  std::uint64_t denials = 0;

  // Of the mounts there are now.
  std::uint64_t mounted = 0;
  std::uint64_t nodes = 0;
  std::uint64_t open_files = 0;

  /// Counters only grow. A mount that an earlier daemon served has some already; taking those off may wrap
  /// around for as long as the mount itself is not added, which brings the sums back.
  void add_counters(const fusefs::MountStatistics& statistics);
  void take_off_counters(const fusefs::MountStatistics& statistics);
  void add_mount(const fusefs::MountStatistics& statistics);
};

/// Calls of all operations together.
std::uint64_t request_count(const fusefs::MountStatistics& statistics);
/// Calls that were answered with an error.
std::uint64_t error_count(const fusefs::MountStatistics& statistics);

}  // namespace okcvm::daemon
