#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <string_view>

#include "policy/error.h"
#include "policy/thread_annotations.h"
#include "snapshots/store.h"

namespace okcvm::daemon {

/// How often something took how long. Not thread-safe.
struct TimeHistogram {
  static constexpr std::array<double, 10> kBounds{0.001, 0.002, 0.005, 0.02, 0.1, 0.5, 2, 10, 60, 300};
  std::array<std::uint64_t, kBounds.size()> within{};  // cumulative
  std::uint64_t count = 0;
  double seconds = 0;

  void add(std::chrono::nanoseconds taken);
};

/// What sessions cost beside their requests: their making and removing, snapshots, restores, bytes that came
/// in. Thread-safe.
class WorkMetrics final {
 public:
  using Time = std::chrono::nanoseconds;
  struct Work {
    TimeHistogram times;                                // of what succeeded
    std::map<std::string_view, std::uint64_t> refused;  // by error code
  };
  struct Figures {
    Work creations, deletions, snapshots, restores;
    std::uint64_t snapshot_bytes = 0;    // read for snapshots
    std::uint64_t snapshot_entries = 0;  // read for snapshots
    std::uint64_t rescans = 0;           // snapshots that had to compare everything
    std::uint64_t restored_entries = 0;
    std::uint64_t received_bytes = 0;  // of files over the control socket
  };

  void created(Time taken, const Error* refused) EXCLUDES(mutex_);
  void deleted(Time taken, const Error* refused) EXCLUDES(mutex_);
  void snapshot(Time taken, const Result<snapshots::Snapshot>& result, bool is_new) EXCLUDES(mutex_);
  void restored(Time taken, const Result<snapshots::RestoreResult>& result) EXCLUDES(mutex_);
  void received(std::uint64_t bytes) EXCLUDES(mutex_);

  Figures figures() const EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  Figures figures_ GUARDED_BY(mutex_);
};

}  // namespace okcvm::daemon
