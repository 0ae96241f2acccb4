#include "tests/support/watchdog.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace okcvm::test {
namespace {

constexpr const char* kConnections = "/sys/fs/fuse/connections";

struct Mount {
  std::string device_minor;
  std::string point;
};

/// Mounts of no block device strictly below `top`, deepest last (as the kernel lists them). The scratch paths
/// hold no characters that mountinfo escapes.
std::vector<Mount> mounts_below(const std::string& top) {
  std::vector<Mount> found;
  std::ifstream table("/proc/self/mountinfo");
  for (std::string line; std::getline(table, line);) {
    std::istringstream fields(line);
    std::string id, parent, device, root, point;
    fields >> id >> parent >> device >> root >> point;
    if (device.starts_with("0:") && point.starts_with(top + "/"))
      found.push_back({device.substr(device.find(':') + 1), point});
  }
  return found;
}

std::string abort_file(const std::string& device_minor) {
  return std::string(kConnections) + "/" + device_minor + "/abort";
}

bool is_connected(const std::string& device_minor) {
  const std::string path = abort_file(device_minor);
  if (::access(kConnections, X_OK) == 0 && ::access((std::string(kConnections) + "/.").c_str(), F_OK) == 0 &&
      ::access(path.c_str(), F_OK) != 0)
    ::mount("none", kConnections, "fusectl", 0, nullptr);
  return ::access(path.c_str(), F_OK) == 0;
}

void abort_connection(const std::string& device_minor) {
  if (!is_connected(device_minor)) return;
  const FileDescriptor file(::open(abort_file(device_minor).c_str(), O_WRONLY | O_CLOEXEC));
  if (file && ::write(file.get(), "1", 1) != 1) std::perror("abort of a FUSE connection");
}

/// What the watchdog process knows: which directories it guards, and which connections were ever mounted
/// there. A mount that was detached while files are open in it is in no table any more, but can still hang.
class Guarded {
 public:
  void add(const std::string& top) { tops_.push_back(top); }

  void remember(const std::string& device_minor) { seen_.insert(device_minor); }

  void end_all() {
    for (const auto& top : tops_) end_mounts_below(top);
    // A number may be someone else's by now, whose mount is in the table, or soon will be.
    forget_others();
    if (!seen_.empty()) ::usleep(kMountingTime);
    forget_others();
    for (const auto& device_minor : seen_) abort_connection(device_minor);
  }

 private:
  static constexpr useconds_t kMountingTime = 500'000;  // in microseconds

  void forget_others() {
    for (const auto& mount : mounts_below("")) seen_.erase(mount.device_minor);
    std::erase_if(seen_, [](const std::string& device_minor) { return !is_connected(device_minor); });
  }

  std::vector<std::string> tops_;
  std::set<std::string> seen_;
};

/// The watchdog process: one message a datagram, its first letter says what it is.
[[noreturn]] void watch(int channel, pid_t test) {
  using Clock = std::chrono::steady_clock;
  Guarded guarded;
  auto deadline = Clock::time_point::max();
  for (;;) {
    pollfd ready{channel, POLLIN, 0};
    if (::poll(&ready, 1, 1000) == 0 && Clock::now() < deadline) continue;
    std::array<char, 4096> buffer;
    const bool hangs = Clock::now() >= deadline;
    const auto size = hangs ? 0 : ::recv(channel, buffer.data(), buffer.size(), 0);
    if (size > 0) {
      const std::string text(buffer.data() + 1, static_cast<std::size_t>(size) - 1);
      if (buffer[0] == 'G') guarded.add(text);
      if (buffer[0] == 'M') guarded.remember(text);
      if (buffer[0] == 'P') deadline = Clock::now() + std::chrono::milliseconds(std::stol(text));
      if (buffer[0] == 'R') deadline = Clock::time_point::max();
      continue;
    }
    if (hangs) std::fprintf(stderr, "watchdog: the test hangs; its FUSE mounts are aborted\n");
    guarded.end_all();
    if (hangs) ::kill(test, SIGABRT);
    ::_exit(0);
  }
}

}  // namespace

int end_mounts_below(const std::filesystem::path& top) {
  const auto mounts = mounts_below(top);
  for (const auto& mount : mounts) abort_connection(mount.device_minor);
  for (auto mount = mounts.rbegin(); mount != mounts.rend(); ++mount)
    ::umount2(mount->point.c_str(), MNT_DETACH);
  return static_cast<int>(mounts.size());
}

Watchdog& Watchdog::instance() {
  static Watchdog watchdog;
  return watchdog;
}

Watchdog::Watchdog() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
    throw std::runtime_error("socketpair");
  const pid_t test = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) throw std::runtime_error("fork");
  if (pid == 0) {
    ::setsid();
    constexpr int kChannel = 3;
    ::dup2(ends[1], kChannel);
    ::syscall(SYS_close_range, kChannel + 1, ~0U, 0);
    watch(kChannel, test);
  }
  ::close(ends[1]);
  channel_ = FileDescriptor(ends[0]);
}

void Watchdog::tell(char what, const std::string& text) {
  const std::string message = what + text;
  ::send(channel_.get(), message.data(), message.size(), MSG_NOSIGNAL);
}

void Watchdog::guard(const std::filesystem::path& top) {
  tell('G', top);
}

void Watchdog::note_mounts(const std::filesystem::path& top) {
  for (const auto& mount : mounts_below(top)) tell('M', mount.device_minor);
}

void Watchdog::expect_progress(std::chrono::seconds limit) {
  tell('P', std::to_string(limit.count() * 1000));
}

void Watchdog::rest() {
  tell('R', "");
}

std::chrono::seconds Watchdog::usual_limit() {
  const char* chosen = std::getenv("OKCVM_TEST_TIMEOUT");
  return std::chrono::seconds(chosen && *chosen ? std::atoi(chosen) : 120);
}

}  // namespace okcvm::test
