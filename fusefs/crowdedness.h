#pragma once

#include <atomic>
#include <chrono>

#include "policy/file_descriptor.h"

namespace okcvm::fusefs {

/// Whether more wants to run on this machine than it has processors for (proc_loadavg(5)): then to wait awake
/// is to be in somebody's way. Looks every few milliseconds at the most. Thread-safe.
class Crowdedness final {
 public:
  static Crowdedness& instance();
  bool is_there(std::chrono::steady_clock::time_point now);

 private:
  Crowdedness();
  bool look() const;

  const FileDescriptor file_;
  const long processors_;
  std::atomic<std::chrono::steady_clock::time_point> next_look_{};
  std::atomic<bool> is_there_{false};
};

}  // namespace okcvm::fusefs
