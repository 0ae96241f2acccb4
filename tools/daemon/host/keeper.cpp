#include "tools/daemon/host/keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "policy/file_descriptor.h"
#include "policy/proc_path.h"
#include "tools/daemon/host/host_setup.h"
#include "tools/daemon/host/keeper_notices.h"

namespace okcvm::daemon {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kMostOnItsWay = 4096;    // more than net.unix.max_dgram_qlen
constexpr milliseconds kSteady{1000};  // a daemon that lived so long is started again at once
constexpr milliseconds kFirstPause{100};
constexpr milliseconds kLongestPause{5000};
constexpr milliseconds kLongestAfterKill{300};
constexpr int kMostFailures =
    10;  // in a row, before programs in the mounts are told by letting the mounts go

constexpr int kUsageError = 2;

class Keeper {
 public:
  Keeper(char** arguments, const std::filesystem::path& run_dir) : arguments_(arguments), run_dir_(run_dir) {}
  int run();

 private:
  bool set_up();
  void start_child();
  [[noreturn]] void become_child();
  bool take_message();
  void take_signal();
  void pass_signal_on();
  /// How a child ended: its wait status (waitpid(2)).
  struct Ending {
    int status;
    bool has_exited() const { return WIFEXITED(status); }
    /// SIGKILL says nothing of how the next one will fare.
    bool was_killed() const { return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL; }
  };
  std::optional<Ending> child_ending() const;
  void reap();
  bool was_to_end(const Ending& ending) const;
  bool gives_up(const Ending& ending) const;
  void plan_next_start(const Ending& ending);
  int wait_time() const;

  char** const arguments_;
  const std::filesystem::path& run_dir_;
  const pid_t pid_ = ::getpid();
  std::array<char, 4096> program_{};
  NoticeSocket notices_;
  FileDescriptor signals_;
  sigset_t old_mask_{};
  KeptDescriptors kept_;
  pid_t child_ = -1;
  int failures_ = 0;  // daemons in a row that never became ready
  bool stopping_ = false;
  bool replacing_ = false;
  bool is_unsaid_ = false;  // stopping_ or replacing_, to the child
  int told_to_stop_ = 0;    // so many daemons
  int result_ = -1;         // the exit status, once it is over
  Clock::time_point started_{};
  Clock::time_point next_start_{};
  milliseconds pause_{0};
};

bool Keeper::set_up() {
  // The path, not the inode: after an upgrade the new program stands there.
  if (::readlink("/proc/self/exe", program_.data(), program_.size() - 1) <= 0) return false;
  // Whoever started this may have it ignored, and then a process is not told when its children end.
  ::signal(SIGCHLD, SIG_DFL);
  sigset_t mask;
  sigemptyset(&mask);
  for (const int signal : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) sigaddset(&mask, signal);
  if (::sigprocmask(SIG_BLOCK, &mask, &old_mask_) != 0) return false;
  signals_ = FileDescriptor(::signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
  auto made = make_notice_socket(run_dir_);
  if (!signals_ || !made) return false;
  notices_ = std::move(*made);
  return true;
}

void Keeper::start_child() {
  kept_.forget_ready();
  replacing_ = false;
  is_unsaid_ = stopping_;
  started_ = Clock::now();
  child_ = ::fork();
  if (child_ == 0) become_child();
  if (child_ < 0) next_start_ = Clock::now() + kFirstPause;
}

/// In the child: the kept descriptors go to 3 and up, as LISTEN_FDS has it (sd_listen_fds(3)), and the way to
/// the notices behind them.
void Keeper::become_child() {
  std::vector<int> moved;
  std::string names;
  const int way = 3 + static_cast<int>(kept_.all().size());
  const int above = way + 1;
  const auto handed = [](int descriptor) {
    if (descriptor >= 0) return descriptor;
    std::perror("okcvmd: cannot hand over what is kept");  // without one of them a mount would be lost
    ::_exit(1);
  };
  for (const auto& [name, descriptor] : kept_.all()) {
    moved.push_back(handed(::fcntl(descriptor.get(), F_DUPFD_CLOEXEC, above)));
    names += (names.empty() ? "" : ":") + name;
  }
  moved.push_back(handed(::fcntl(notices_.way.get(), F_DUPFD_CLOEXEC, above)));
  for (std::size_t i = 0; i < moved.size(); ++i) handed(::dup2(moved[i], 3 + static_cast<int>(i)));
  ::setenv(kKeeperVariable, std::to_string(pid_).c_str(), 1);
  ::setenv("NOTIFY_SOCKET", ProcPath(way).c_str(), 1);
  ::setenv("FDSTORE", std::to_string(KeptDescriptors::kMost).c_str(), 1);
  ::setenv("LISTEN_FDS", std::to_string(kept_.all().size()).c_str(), 1);
  ::setenv("LISTEN_FDNAMES", names.c_str(), 1);
  ::setenv("LISTEN_PID", std::to_string(::getpid()).c_str(), 1);
  std::vector<char*> arguments;
  for (char** argument = arguments_; *argument; ++argument)
    if (std::strcmp(*argument, "--keeper") != 0) arguments.push_back(*argument);
  arguments.push_back(nullptr);
  ::sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
  ::execv(program_.data(), arguments.data());
  std::perror("okcvmd: cannot start the daemon");
  ::_exit(1);
}

/// False: there was none.
bool Keeper::take_message() {
  auto notice = receive_notice(notices_.socket.get());
  if (!notice) return false;
  if (notice->sender == child_) kept_.carry_out(std::move(*notice));
  return true;
}

void Keeper::take_signal() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    if (info.ssi_signo == SIGCHLD) {
      reap();
      continue;
    }
    if (info.ssi_signo == SIGHUP)
      replacing_ = child_ > 0;
    else
      stopping_ = true;
    is_unsaid_ = child_ > 0;
    if (!stopping_ || child_ > 0) continue;
    next_start_ = Clock::now();  // mounts are for a daemon to end
    if (!kept_.has_mounts()) result_ = 0;
  }
}

/// Not before the child can listen: until then a signal would end it with the mounts half taken over.
void Keeper::pass_signal_on() {
  if (!is_unsaid_ || child_ < 0 || !kept_.is_ready()) return;
  is_unsaid_ = false;
  if (stopping_) ++told_to_stop_;
  ::kill(child_, stopping_ ? SIGTERM : SIGHUP);
}

/// The child's, if it has ended. As the first process of a container a keeper is given the tellers of its
/// daemons, too.
std::optional<Keeper::Ending> Keeper::child_ending() const {
  std::optional<Ending> ending;
  int status = 0;
  for (pid_t ended = 0; (ended = ::waitpid(-1, &status, WNOHANG)) > 0;)
    if (ended == child_) ending = Ending{status};
  return ending;
}

void Keeper::reap() {
  const auto ending = child_ending();
  if (!ending) return;
  // What it gave away last is still on its way; others may send as well, without end.
  for (int left = kMostOnItsWay; left > 0 && take_message(); --left) {
  }
  child_ = -1;
  if (kept_.is_ready())
    failures_ = 0;
  else if (!ending->was_killed())
    ++failures_;
  if (was_to_end(*ending) || gives_up(*ending))
    result_ = ending->has_exited() ? WEXITSTATUS(ending->status) : 1;
  else
    plan_next_start(*ending);
}

/// Whether the daemon ended because somebody wanted no daemon any more.
bool Keeper::was_to_end(const Ending& ending) const {
  // One that was not told to stop yet, or was killed just then, or was to be replaced, leaves mounts for
  // another.
  const bool was_stopped = !is_unsaid_ && !replacing_ && (ending.has_exited() || told_to_stop_ > 1);
  const bool has_failed = failures_ > 0 && ending.has_exited();
  if (stopping_ && (was_stopped || has_failed || !kept_.has_mounts())) return true;
  // One that was told to leave the mounts, by whomever, left its socket here, too.
  const bool left_nothing = ending.has_exited() && WEXITSTATUS(ending.status) == 0 && kept_.all().empty();
  return left_nothing && !replacing_;
}

/// Whether no other daemon is tried. One that never became ready has told why on standard error. Where
/// nothing is kept yet it was the first: wrong options.
bool Keeper::gives_up(const Ending& ending) const {
  if (failures_ > 0 && ending.has_exited() && !kept_.has_mounts()) return true;
  if (failures_ < kMostFailures) return false;
  if (kept_.has_mounts())
    std::fprintf(stderr,
                 "okcvmd: %d daemons in a row did not become ready, and the mounts are given up: fix what "
                 "they said above, and start okcvmd again\n",
                 failures_);
  return true;
}

void Keeper::plan_next_start(const Ending& ending) {
  const bool was_steady = kept_.is_ready() && (replacing_ || Clock::now() - started_ >= kSteady);
  const auto longest = ending.was_killed() ? kLongestAfterKill : kLongestPause;
  pause_ = was_steady ? milliseconds(0) : std::clamp(pause_ * 2, kFirstPause, longest);
  next_start_ = Clock::now() + pause_;
}

int Keeper::wait_time() const {
  if (child_ > 0) return -1;
  const auto left = std::chrono::duration_cast<milliseconds>(next_start_ - Clock::now());
  return static_cast<int>(std::max<std::int64_t>(left.count(), 0));
}

int Keeper::run() {
  if (const char* process = std::getenv("LISTEN_PID"); process && process == std::to_string(pid_)) {
    std::fputs(
        "okcvmd: --keeper takes no sockets over (LISTEN_FDS): leave it out where a service manager has them, "
        "which keeps the mounts, too\n",
        stderr);
    return kUsageError;
  }
  if (!set_up()) return std::perror("okcvmd: the keeper cannot start"), 1;
  raise_limits();
  start_child();
  while (result_ < 0) {
    std::array<pollfd, 2> waiting{pollfd{notices_.socket.get(), POLLIN, 0},
                                  pollfd{signals_.get(), POLLIN, 0}};
    ::poll(waiting.data(), waiting.size(), wait_time());
    if (waiting[0].revents) take_message();
    if (waiting[1].revents) take_signal();
    pass_signal_on();
    if (result_ < 0 && child_ < 0 && Clock::now() >= next_start_) start_child();
  }
  return result_;
}

}  // namespace

int run_keeper(char** arguments, const std::filesystem::path& run_dir) {
  return Keeper(arguments, run_dir).run();
}

}  // namespace okcvm::daemon
