#include "fusefs/short_child.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>

namespace okcvm::fusefs {

void ShortChild::close_all_but(int kept) {
  if (kept > 0) ::syscall(SYS_close_range, 0, kept - 1, 0);
  ::syscall(SYS_close_range, kept + 1, ~0u, 0);
}

void ShortChild::watch() {
  if (pid_ > 0) handle_ = FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
}

ShortChild::~ShortChild() {
  if (pid_ <= 0) return;
  constexpr int kEnds = 100;  // milliseconds; one that hangs in the kernel is not waited for
  ::kill(pid_, SIGKILL);
  pollfd ended{handle_.get(), POLLIN, 0};
  ::poll(&ended, 1, kEnds);
  ::waitpid(pid_, nullptr, WNOHANG);
}

std::optional<int> ShortChild::status_within(std::chrono::milliseconds timeout) {
  pollfd ended{handle_.get(), POLLIN, 0};
  int ready = 0;
  do ready = ::poll(&ended, 1, static_cast<int>(timeout.count()));
  while (ready < 0 && errno == EINTR);
  int status = 0;
  if (ready != 1 || ::waitpid(pid_, &status, 0) != pid_) return std::nullopt;
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void ShortChild::end() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

}  // namespace okcvm::fusefs
