#include "tests/tools_cli/real_daemon.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "tests/support/watchdog.h"

namespace okcvm::cli::test {

namespace {

constexpr std::chrono::seconds kStartLimit{30};
constexpr std::chrono::seconds kStopLimit{30};
constexpr std::chrono::milliseconds kBetweenLooks{20};

/// Whether the child ended within the limit.
bool ended_within(pid_t pid, std::chrono::seconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (std::chrono::steady_clock::now() < deadline) {
    if (::waitpid(pid, nullptr, WNOHANG) != 0) return true;
    std::this_thread::sleep_for(kBetweenLooks);
  }
  return false;
}

}  // namespace

RealDaemon::RealDaemon() {
  for (const char* name : {"state", "run", "mnt"}) std::filesystem::create_directory(scratch_ / name);
  okcvm::test::Watchdog::instance().guard(scratch_.path());
  pid_ =
      okcvm::test::start_program({OKCVMD_PROGRAM, "--config", "/dev/null", "--state-dir", scratch_ / "state",
                                  "--run-dir", scratch_ / "run", "--mount-root", scratch_ / "mnt"},
                                 scratch_ / "log");
  const auto deadline = std::chrono::steady_clock::now() + kStartLimit;
  while (run("okcvm status").exit_code != 0) {
    if (::waitpid(pid_, nullptr, WNOHANG) != 0) {
      pid_ = -1;
      problem_ = "okcvmd ended at once:\n" + log();
      return;
    }
    if (std::chrono::steady_clock::now() > deadline) {
      problem_ = "okcvmd does not answer:\n" + log();
      return;
    }
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

RealDaemon::~RealDaemon() {
  if (pid_ > 0) {
    ::kill(pid_, SIGTERM);
    if (!ended_within(pid_, kStopLimit)) {
      ::kill(pid_, SIGKILL);
      ended_within(pid_, kStopLimit);
    }
  }
  okcvm::test::end_mounts_below(scratch_.path());
}

std::string RealDaemon::log() const {
  std::ostringstream text;
  text << std::ifstream(scratch_ / "log").rdbuf();
  return text.str();
}

okcvm::test::CommandResult RealDaemon::run(const std::string& script) const {
  const auto programs = std::filesystem::path(OKCVM_PROGRAM).parent_path().string();
  return okcvm::test::run({.arguments = {"bash", "-ec", "set -o pipefail; " + script},
                           .directory = scratch_.path(),
                           .environment = {"OKCVM_SOCKET=" + socket(), "PATH=" + programs + ":/usr/bin:/bin"},
                           .timeout = std::chrono::seconds(60)});
}

std::string why_no_daemon() {
  if (::geteuid() != 0) return "mounting needs root";
  if (::access("/dev/fuse", R_OK | W_OK) != 0) return "there is no /dev/fuse";
  return {};
}

}  // namespace okcvm::cli::test
