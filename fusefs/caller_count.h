#pragma once

#include <array>
#include <chrono>
#include <cstdint>

namespace okcvm::fusefs {

/// How many programs make requests at the same time, judged by the latest requests. Programs that take turns,
/// as a shell and its commands or the threads of one event loop do, are one. Not thread-safe.
class CallerCount {
 public:
  using Clock = std::chrono::steady_clock;

  /// Called with each request's process id (0, the kernel's own doing, says nothing), and whether it was made
  /// while another's was waiting or being served.
  void add(std::uint32_t pid, bool overlaps);
  /// 1 until there is reason to think otherwise.
  int count() const { return count_; }
  void start_again();

 private:
  // In requests. All of a window must come one after the other, as far as a program that waits awake is
  // concerned.
  static constexpr int kWindow = 128;
  static constexpr int kFewOverlaps = kWindow / 16;
  static constexpr int kSmallShare = kWindow / 16;
  static constexpr std::chrono::milliseconds kLongestWindow{8};

  struct Share {
    std::uint32_t pid = 0;
    int requests = 0;
  };

  void judge();

  std::array<Share, 16> shares_{};  // of the window; those that find no room are small
  Clock::time_point since_;
  std::uint32_t last_ = 0;
  int requests_ = 0;
  int overlaps_ = 0;
  int count_ = 1;
};

}  // namespace okcvm::fusefs
