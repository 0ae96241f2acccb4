#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "tools/cli/outcome.h"

namespace okcvm::cli {

/// Writes all bytes to a descriptor. A reader that went away (EPIPE) is a silent failure.
Outcome<void> write_all(int descriptor, std::string_view bytes, const std::string& name);

/// One that takes no escape sequences, as TERM says.
bool is_dumb_terminal();

/// Standard output. Nothing is held back.
class Output {
 public:
  Output();
  Outcome<void> write(std::string_view bytes) const;
  bool is_terminal() const { return terminal_; }

 private:
  bool terminal_;
};

/// One line on standard error that says how far long work is: only on a terminal, only after the first
/// second, and cleared when the work is over.
class ProgressLine {
 public:
  explicit ProgressLine(std::string what);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// `total` is 0 while unknown; `bytes` says that the two are byte counts.
  void show(std::string_view phase, std::uint64_t done, std::uint64_t total, bool bytes);

 private:
  std::string what_;
  bool terminal_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point next_;
};

}  // namespace okcvm::cli
