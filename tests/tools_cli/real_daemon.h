#pragma once

#include <sys/types.h>

#include <string>

#include "tests/support/process.h"
#include "tests/support/scratch.h"

namespace okcvm::cli::test {

/// An okcvmd of its own, with private state, run and mount directories; ended with this object.
class RealDaemon final {
 public:
  /// Starts it and waits until it answers. `problem()` says why it does not.
  RealDaemon();
  ~RealDaemon();
  RealDaemon(const RealDaemon&) = delete;
  RealDaemon& operator=(const RealDaemon&) = delete;

  const std::string& problem() const { return problem_; }
  std::string socket() const { return (scratch_ / "run/control.sock").string(); }
  std::string log() const;
  /// Runs a shell script (bash, -e) with OKCVM_SOCKET and the programs' folder in PATH.
  okcvm::test::CommandResult run(const std::string& script) const;

 private:
  okcvm::test::ScratchDirectory scratch_{"daemon"};
  pid_t pid_ = -1;
  std::string problem_;
};

/// Why okcvmd cannot mount here; empty if it can.
std::string why_no_daemon();

}  // namespace okcvm::cli::test
