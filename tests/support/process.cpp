#include "tests/support/process.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "tests/support/file_io.h"

namespace okcvm::test {
namespace {

constexpr const char* kSearchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

int exit_status_of(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int wait_for(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0)
    if (errno != EINTR) return -1;
  return exit_status_of(status);
}

[[noreturn]] void execute(const Command& command) {
  ::setpgid(0, 0);
  if (::chdir(command.directory.c_str()) != 0) ::_exit(126);
  if (!become(command.user)) ::_exit(126);
  ::umask(022);
  std::vector<std::string> environment{std::string("PATH=") + kSearchPath,
                                       "HOME=/nonexistent",
                                       "LC_ALL=C",
                                       "GIT_CONFIG_NOSYSTEM=1",
                                       "GIT_AUTHOR_NAME=test",
                                       "GIT_AUTHOR_EMAIL=test@example.org",
                                       "GIT_COMMITTER_NAME=test",
                                       "GIT_COMMITTER_EMAIL=test@example.org"};
  environment.insert(environment.end(), command.environment.begin(), command.environment.end());
  ::clearenv();
  for (auto& line : environment) ::putenv(line.data());
  std::vector<char*> arguments;
  for (const auto& argument : command.arguments) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  ::_exit(127);
}

}  // namespace

bool become(const User& user) {
  if (user.uid == 0 && user.gid == 0 && user.groups.empty()) return true;
  return ::syscall(SYS_setgroups, user.groups.size(), user.groups.data()) == 0 &&
         ::syscall(SYS_setresgid, user.gid, user.gid, user.gid) == 0 &&
         ::syscall(SYS_setresuid, user.uid, user.uid, user.uid) == 0;
}

void wait_until_within(const std::atomic<pid_t>& thread, long number) {
  std::string text;
  do {
    std::this_thread::yield();
    if (thread) text = test::read("/proc/" + std::to_string(thread) + "/syscall");
  } while (!text.starts_with(std::to_string(number) + " "));
}

void as_user(const User& user, const std::function<void()>& body) {
  bool became = false;
  std::thread([&] {
    became = ::unshare(CLONE_FS) == 0 && become(user);
    if (became) body();
  }).join();
  if (!became) throw std::runtime_error("cannot act as another user");
}

namespace {

using CapabilitySets = std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3>;

/// Of the calling thread.
void change_capabilities(const std::function<void(CapabilitySets& sets)>& change) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  CapabilitySets sets{};
  if (::syscall(SYS_capget, &header, sets.data()) != 0) throw std::runtime_error("capget");
  change(sets);
  if (::syscall(SYS_capset, &header, sets.data()) != 0) throw std::runtime_error("capset");
}

}  // namespace

void as_root_without(std::initializer_list<int> capabilities, const std::function<void()>& body) {
  as_user({}, [&] {
    change_capabilities([&](CapabilitySets& sets) {
      for (const int capability : capabilities)
        sets.at(CAP_TO_INDEX(capability)).effective &= ~CAP_TO_MASK(capability);
    });
    body();
  });
}

void as_user_with(const User& user, std::initializer_list<int> capabilities,
                  const std::function<void()>& body) {
  as_user({}, [&] {
    ::prctl(PR_SET_KEEPCAPS, 1);
    if (!become(user)) throw std::runtime_error("become");
    change_capabilities([&](CapabilitySets& sets) {
      sets = {};
      for (const int capability : capabilities) {
        auto& set = sets.at(CAP_TO_INDEX(capability));
        set.permitted = set.effective |= CAP_TO_MASK(capability);
      }
    });
    body();
  });
}

ChildProcess::ChildProcess(const std::function<int(ChildProcess& self)>& body) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
    throw std::runtime_error("socketpair");
  FileDescriptor ours(ends[0]), theirs(ends[1]);
  pid_ = ::fork();
  if (pid_ < 0) throw std::runtime_error("fork");
  if (pid_ > 0) {
    channel_ = std::move(ours);
    return;
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ours.reset();
  channel_ = std::move(theirs);
  ::_exit(body(*this));
}

ChildProcess::~ChildProcess() {
  if (pid_ <= 0) return;
  kill(SIGKILL);
  join();
}

void ChildProcess::send(const std::string& message) {
  ::send(channel_.get(), message.data(), message.size(), MSG_NOSIGNAL);
}

std::string ChildProcess::receive() {
  std::array<char, 4096> buffer;
  const auto got = ::recv(channel_.get(), buffer.data(), buffer.size(), 0);
  return got > 0 ? std::string(buffer.data(), static_cast<std::size_t>(got)) : std::string();
}

void ChildProcess::signal() {
  send("!");
}

bool ChildProcess::wait() {
  return !receive().empty();
}

int ChildProcess::join() {
  return wait_for(std::exchange(pid_, -1));
}

void ChildProcess::kill(int signal_number) {
  if (pid_ > 0) ::kill(pid_, signal_number);
}

CommandResult run(const Command& command) {
  CommandResult result;
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return result;
  FileDescriptor output(ends[0]), theirs(ends[1]);
  const pid_t pid = ::fork();
  if (pid < 0) return result;
  if (pid == 0) {
    const int input = ::open("/dev/null", O_RDONLY);
    ::dup2(input, 0);
    ::dup2(theirs.get(), 1);
    ::dup2(theirs.get(), 2);
    execute(command);
  }
  ::setpgid(pid, pid);
  theirs.reset();
  const auto deadline = std::chrono::steady_clock::now() + command.timeout;
  std::array<char, 1 << 14> buffer;
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd ready{output.get(), POLLIN, 0};
    if (left.count() <= 0 || ::poll(&ready, 1, static_cast<int>(left.count())) == 0) {
      result.timed_out = true;
      ::kill(-pid, SIGKILL);
      break;
    }
    const auto got = ::read(output.get(), buffer.data(), buffer.size());
    if (got <= 0) break;
    result.output.append(buffer.data(), static_cast<std::size_t>(got));
  }
  result.exit_code = wait_for(pid);
  return result;
}

CommandResult run_script(const std::string& script, const std::filesystem::path& directory, const User& user,
                         std::chrono::seconds timeout) {
  Command command{{"/bin/sh", "-ec", script}, directory, user};
  command.timeout = timeout;
  return run(command);
}

pid_t start_program(std::vector<std::string> arguments, const std::filesystem::path& output) {
  const pid_t pid = ::fork();
  if (pid < 0) throw std::runtime_error("fork");
  if (pid > 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  const int file = ::open(output.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0644);
  ::dup2(file, STDOUT_FILENO);
  ::dup2(file, STDERR_FILENO);
  ::unsetenv("NOTIFY_SOCKET");
  std::vector<char*> pointers;
  for (auto& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  ::execv(pointers.front(), pointers.data());
  ::_exit(127);
}

bool have_program(const std::string& name) {
  const std::string path = kSearchPath;
  for (std::size_t at = 0; at < path.size();) {
    const auto end = std::min(path.find(':', at), path.size());
    if (::access((path.substr(at, end - at) + "/" + name).c_str(), X_OK) == 0) return true;
    at = end + 1;
  }
  return false;
}

}  // namespace okcvm::test
