#include "tests/soak/kept_daemon.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <stdexcept>

namespace okcvm::soak {
namespace fs = std::filesystem;

KeptDaemon::KeptDaemon(const fs::path& top, const std::vector<std::string>& more_options) : top_(top) {
  for (const char* made : {"state", "run", "mnt"}) fs::create_directory(top_ / made);
  std::vector<std::string> arguments{OKCVMD_PROGRAM, "--keeper",   "--state-dir",  top_ / "state",
                                     "--run-dir",    top_ / "run", "--mount-root", top_ / "mnt"};
  arguments.insert(arguments.end(), more_options.begin(), more_options.end());
  keeper_ = test::start_program(std::move(arguments), log());
  for (int i = 0; i < 200; ++i) {
    if (command({"status"}, std::chrono::seconds(10)).exit_code == 0) return;
    ::usleep(50'000);
  }
  stop();
  throw std::runtime_error("okcvmd does not answer; see " + log().string());
}

KeptDaemon::~KeptDaemon() {
  stop();
}

pid_t KeptDaemon::daemon() const {
  std::ifstream children("/proc/" + std::to_string(keeper_) + "/task/" + std::to_string(keeper_) +
                         "/children");
  pid_t pid = 0;
  children >> pid;
  return pid;
}

bool KeptDaemon::kill_daemon() {
  const pid_t pid = daemon();
  return pid > 0 && ::kill(pid, SIGKILL) == 0;
}

bool KeptDaemon::upgrade() {
  return ::kill(keeper_, SIGHUP) == 0;
}

void KeptDaemon::crash() {
  const pid_t pid = daemon();
  ::kill(keeper_, SIGKILL);
  ::waitpid(keeper_, nullptr, 0);
  keeper_ = -1;
  if (pid > 0) ::kill(pid, SIGKILL);
}

void KeptDaemon::stop() {
  if (keeper_ <= 0) return;
  ::kill(keeper_, SIGTERM);
  ::waitpid(keeper_, nullptr, 0);
  keeper_ = -1;
}

test::CommandResult KeptDaemon::command(std::vector<std::string> arguments,
                                        std::chrono::seconds timeout) const {
  arguments.insert(arguments.begin(), OKCVM_PROGRAM);
  return test::run({.arguments = std::move(arguments),
                    .environment = {"OKCVM_SOCKET=" + socket().string()},
                    .timeout = timeout});
}

KeptDaemon::Size KeptDaemon::size() const {
  Size size;
  const auto process = "/proc/" + std::to_string(daemon());
  std::error_code gone;
  for (fs::directory_iterator at(process + "/fd", gone), end; !gone && at != end; at.increment(gone))
    ++size.descriptors;
  std::ifstream pages(process + "/statm");
  long total = 0, resident = 0;
  if (pages >> total >> resident) size.resident_kib = resident * ::sysconf(_SC_PAGESIZE) / 1024;
  return size;
}

}  // namespace okcvm::soak
