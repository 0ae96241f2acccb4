#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "policy/file_descriptor.h"

namespace okcvm::test {

/// Who does something. The numbers stand for nobody on a usual host.
struct User {
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;  // supplementary
};
inline const User kAlice{54321, 54321, {}};
inline const User kBob{54322, 54322, {}};

/// Runs `body` as that user on a thread of its own (with its own umask and working directory), and waits.
/// Failed expectations in it count.
void as_user(const User& user, const std::function<void()>& body);

/// Runs `body` as root who gave these capabilities up, as as_user() does.
void as_root_without(std::initializer_list<int> capabilities, const std::function<void()>& body);

/// Runs `body` as a user with these capabilities and no others, as as_user() does.
void as_user_with(const User& user, std::initializer_list<int> capabilities,
                  const std::function<void()>& body);

/// Becomes that user in this process or, being raw system calls, in this thread alone.
bool become(const User& user);

/// A forked process that runs `body` and exits with what it returns. Parent and child can wait for each
/// other: each wait() returns once the other side has called signal() as often (false if it is gone).
class ChildProcess final {
 public:
  explicit ChildProcess(const std::function<int(ChildProcess& self)>& body);
  ~ChildProcess();  // kills it if it still runs
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  bool wait();
  void signal();
  /// Bytes from one side to the other, one message at a time (at most 4 KiB).
  void send(const std::string& message);
  std::string receive();

  /// Waits for the end: the exit status, or 128 + the signal.
  int join();
  void kill(int signal_number);
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  FileDescriptor channel_;
};

/// Built with a sanitizer, which takes memory as it likes and keeps what is freed.
inline constexpr bool kIsSanitized =
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    true;
#else
    false;
#endif

/// Waits until a thread, or a process of one, sleeps in the system call `number` (proc(5), syscall).
void wait_until_within(const std::atomic<pid_t>& thread, long number);

struct Command {
  std::vector<std::string> arguments;
  std::filesystem::path directory = "/";
  User user = {};
  std::vector<std::string> environment = {};  // "NAME=value", on top of a small fixed one
  std::chrono::seconds timeout{120};
};

struct CommandResult {
  int exit_code = -1;  // 128 + the signal when killed; -1 when it could not be run
  bool timed_out = false;
  std::string output;  // standard output and standard error, as they came
};

/// Runs a program to its end or kills it and its process group at the timeout.
CommandResult run(const Command& command);
/// `sh -ec SCRIPT` in a directory.
CommandResult run_script(const std::string& script, const std::filesystem::path& directory,
                         const User& user = {}, std::chrono::seconds timeout = std::chrono::seconds(120));

/// Starts a program that runs on, with its output added to a file, no NOTIFY_SOCKET, and SIGTERM when this
/// thread ends. Throws std::runtime_error.
pid_t start_program(std::vector<std::string> arguments, const std::filesystem::path& output);

/// Whether a program can be found in the PATH given to commands.
bool have_program(const std::string& name);

}  // namespace okcvm::test
