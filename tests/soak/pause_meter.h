#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <vector>

namespace okcvm::soak {

/// A process that makes, writes, stats and removes a file in a loop and notes when that took long.
class PauseMeter final {
 public:
  using Clock = std::chrono::steady_clock;

  PauseMeter(const std::filesystem::path& directory, const std::filesystem::path& stop);
  ~PauseMeter();
  PauseMeter(const PauseMeter&) = delete;
  PauseMeter& operator=(const PauseMeter&) = delete;

  /// Ends with its stop file. False when one of its calls failed.
  bool join();
  /// The longest round that was under way at some moment after `from` and before `to`, in milliseconds.
  double longest_between(Clock::time_point from, Clock::time_point to) const;

 private:
  struct Shared;
  Shared* shared_;
  pid_t pid_ = -1;
};

}  // namespace okcvm::soak
