#include "tools/daemon/sessions/mount_totals.h"

#include "fusefs/session_mount.h"

namespace okcvm::daemon {

void MountTotals::add_counters(const fusefs::MountStatistics& statistics) {
  denials += statistics.denials;
  for (const auto& [number, count] : statistics.errors) errors[number] += count;
  for (const auto& operation : statistics.operations) {
    auto& total = operations[operation.name];
    total.count += operation.count;
    total.nanoseconds += operation.nanoseconds;
    for (std::size_t i = 0; i < total.latency.size(); ++i) total.latency[i] += operation.latency[i];
  }
}

void MountTotals::take_off_counters(const fusefs::MountStatistics& statistics) {
  denials -= statistics.denials;
  for (const auto& [number, count] : statistics.errors) errors[number] -= count;
  for (const auto& operation : statistics.operations) {
    auto& total = operations[operation.name];
    total.count -= operation.count;
    total.nanoseconds -= operation.nanoseconds;
    for (std::size_t i = 0; i < total.latency.size(); ++i) total.latency[i] -= operation.latency[i];
  }
}

void MountTotals::add_mount(const fusefs::MountStatistics& statistics) {
  add_counters(statistics);
  ++mounted;
  nodes += statistics.nodes;
  open_files += statistics.open_files;
}

std::uint64_t request_count(const fusefs::MountStatistics& statistics) {
  std::uint64_t count = 0;
  for (const auto& operation : statistics.operations) count += operation.count;
  return count;
}

std::uint64_t error_count(const fusefs::MountStatistics& statistics) {
  std::uint64_t count = 0;
  for (const auto& [number, times] : statistics.errors) count += times;
  return count;
}

}  // namespace okcvm::daemon
