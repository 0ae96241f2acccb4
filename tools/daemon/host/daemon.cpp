#include "tools/daemon/host/daemon.h"

#include <fcntl.h>
#include <malloc.h>
#include <sys/inotify.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <csignal>
#include <fstream>
#include <memory>

#include "tools/daemon/host/clock.h"
#include "tools/daemon/host/host_setup.h"
#include "tools/daemon/host/log.h"
#include "tools/daemon/host/service_manager.h"
#include "tools/daemon/http/one_at_a_time.h"
#include "tools/daemon/http/server.h"
#include "tools/daemon/http/worker_pool.h"
#include "tools/daemon/routes/metrics.h"
#include "tools/daemon/routes/router.h"

namespace okcvm::daemon {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr std::chrono::hours kCleanEvery{24};
// The mounts are to go, too, before systemd loses patience (TimeoutStopSec). The rest is for the next daemon.
constexpr std::chrono::seconds kLongestCleanAtStop{30};
constexpr std::chrono::hours kFirstCleanAfter{
    1};  // where daemons are replaced daily, none lives to its second
constexpr std::chrono::seconds kTimeoutAtStop{10};
constexpr std::chrono::seconds kTimeoutOfWork{10};  // that was given up, or that nobody asked for
constexpr std::chrono::minutes kStopTimeout{2};     // TimeoutStopSec of the unit
constexpr std::chrono::seconds kTimeoutAtReplacement{kStopTimeout - kTimeoutAtStop};

SessionsConfig sessions_config(const Options& options) {
  return {options.state_dir,
          options.run_dir,
          options.mount_root,
          options.skills_dirs,
          options.symlink_host_roots,
          options.workdir_allow_roots,
          options.snapshots,
          options.passthrough,
          static_cast<std::size_t>(options.max_sessions),
          static_cast<std::size_t>(options.max_checkpoints)};
}

ServerLimits server_limits(const Options& options) {
  ServerLimits limits;
  limits.connections = static_cast<std::size_t>(options.max_connections);
  limits.connections_per_user = static_cast<std::size_t>(options.max_connections_per_user);
  limits.idle = std::chrono::seconds(options.idle_seconds);
  return limits;
}

struct ControlSocket {
  FileDescriptor socket;
  bool is_units = false;  // a socket unit's, which is the unit's to keep and to remove
  FileDescriptor file{};  // that it is bound to. While this is open no other has its inode number
};

bool is_same_socket(const std::filesystem::path& a, const std::filesystem::path& b) {
  struct stat first {};
  struct stat second {};
  return ::lstat(a.c_str(), &first) == 0 && ::lstat(b.c_str(), &second) == 0 && S_ISSOCK(first.st_mode) &&
         first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

/// Only if it is still the one at the path: another daemon may have made its own there.
void remove_socket(const ControlSocket& control, const std::filesystem::path& path) {
  struct stat ours {};
  struct stat there {};
  if (::fstat(control.file.get(), &ours) == 0 && ::lstat(path.c_str(), &there) == 0 &&
      ours.st_dev == there.st_dev && ours.st_ino == there.st_ino)
    ::unlink(path.c_str());
}

/// Whoever waits at a socket that nobody serves waits for ever, so its owner has to be told.
void tell_unserved(const Inherited::Socket& inherited, const std::string& wanted) {
  if (inherited.path.empty())
    log_warning(
        "a listening socket without a path was inherited and is not served: "
        "set ListenStream={} in okcvmd.socket",
        wanted);
  else if (inherited.path == wanted)
    log_warning(
        "the inherited socket {} was removed from there, so that no client finds it; "
        "a new one is made: restart okcvmd.socket",
        wanted);
  else
    log_warning(
        "the inherited socket {} is not served, as --socket is {}: "
        "set ListenStream={} in okcvmd.socket, or use --socket {}",
        inherited.path, wanted, wanted, inherited.path);
}

/// The inherited socket that is the one at the path, else a new one there.
Result<ControlSocket> control_socket(const Options& options, const ServiceManager& manager,
                                     std::vector<Inherited::Socket> inherited) {
  ControlSocket control;
  bool is_own_stale = false;
  for (auto& candidate : inherited) {
    if (is_same_socket(candidate.path, options.socket)) {
      if (!control.socket) control = {std::move(candidate.socket), !candidate.is_own, {}};
      continue;
    }
    is_own_stale = is_own_stale || candidate.is_own;
    tell_unserved(candidate, options.socket.string());
  }
  inherited.clear();
  if (is_own_stale) manager.forget_control();
  if (!control.socket) {
    auto made = listen_at(options.socket);
    if (!made) return fail(made.error());
    control.socket = std::move(*made);
  }
  control.file = FileDescriptor(::open(options.socket.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (!control.is_units) manager.keep_control(control.socket.get());
  return control;
}

/// The signals that end the daemon. They are blocked in all threads from its first moment to its last, and
/// read while it serves: neither a start nor a stop is broken off, which would leave mounts behind that
/// nobody serves.
sigset_t stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal);
  return signals;
}

/// After large work the allocator keeps what was freed. This gives it back once what is resident (to it, what
/// was given back is free as before: the kernel tells) exceeds what is in use by more than kMostKept.
void give_back_memory() {
  constexpr std::size_t kMostKept = 32 << 20;  // bytes
  static const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::size_t all = 0, resident = 0, shared = 0;  // pages (proc_pid_statm(5))
  std::ifstream("/proc/self/statm") >> all >> resident >> shared;
  const auto memory = ::mallinfo2();
  if ((resident - shared) * page > memory.uordblks + memory.hblkhd + kMostKept) ::malloc_trim(0);
}

/// The running daemon: timers and signals around the server.
class Running {
 public:
  Running(const Options& options, Sessions& sessions, EventHub& events, const ServiceManager& manager,
          int telling_ends)
      : options_(options),
        sessions_(sessions),
        manager_(manager),
        clock_(options.run_dir / "clock"),
        service_{sessions,
                 events,
                 metrics_,
                 options.session_ttl_days,
                 static_cast<std::uint64_t>(options.max_upload_bytes),
                 [&manager] { return manager.kept_by(); },
                 time_now(),
                 std::chrono::steady_clock::now(),
                 [this] { return server_.connections(); }},
        workers_(static_cast<std::size_t>(options.max_connections) * 2 + 8),
        server_(io_, workers_, server_limits(options), make_router(service_),
                [this](std::string_view route, int status, std::chrono::nanoseconds taken) {
                  metrics_.count(route, status, taken);
                }),
        signals_(io_),
        teller_(io_),
        registry_(io_),
        watch_(io_),
        minute_(io_),
        clean_(io_) {
    if (const int teller = ::fcntl(telling_ends, F_DUPFD_CLOEXEC, 0); teller >= 0) teller_.assign(teller);
    if (const int watch = ::inotify_init1(IN_CLOEXEC | IN_NONBLOCK); watch >= 0) registry_.assign(watch);
  }

  /// What is in hand still needs the server.
  ~Running() { workers_.finish(); }
  /// Waits for it, though not for ever. False: some of it goes on, and needs all that it uses.
  bool finish_work() { return workers_.finish_within(kTimeoutOfWork); }

  /// Serves until a signal ends it. True: the mounts are to be left to the next daemon.
  Result<bool> serve(FileDescriptor control) {
    if (auto heard = hear_signals(); !heard) return fail(heard.error());
    if (teller_.is_open()) watch_teller();
    if (registry_.is_open()) {
      sessions_.skills().watch(registry_.native_handle());
      watch_registry();
    }
    if (auto served = server_.serve(std::move(control)); !served) return fail(served.error());
    if (const auto interval = manager_.watch_interval()) keep_watch(*interval);
    every(minute_, std::chrono::minutes(1), minutes_work_);
    if (options_.session_ttl_days > 0) every(clean_, kCleanEvery, cleaning_, kFirstCleanAfter);
    manager_.ready("serving " + options_.socket.string());
    log_info("okcvmd {} serves {} (pid {}, mounts kept by {})", OKCVM_VERSION, options_.socket.string(),
             ::getpid(), manager_.kept_by());
    io_.run();
    return leave_mounts_;
  }

  /// Who is left alone serves on, but no next daemon can take over.
  void look_for_keeper() {
    const bool is_kept = manager_.kept_by() != "nobody";
    if (was_kept_ && !is_kept)
      log_warning("the keeper is gone: when this daemon ends, so do its mounts. Stop it and start it anew");
    was_kept_ = is_kept;
  }

  void clean_old(std::chrono::seconds at_most) {
    if (clock_.was_set()) {
      log_warning("the clock was set: nobody knows how long sessions were unused, so all count as used now");
      return sessions_.count_all_as_used();
    }
    const auto until = std::chrono::steady_clock::now() + at_most;
    const auto in_time = [until](std::string_view, std::uint64_t, std::uint64_t) {
      return std::chrono::steady_clock::now() < until;
    };
    const auto unused_for = std::chrono::hours(24) * options_.session_ttl_days;
    const auto cleaned = sessions_.clean(Peer(), unused_for, false, in_time);
    for (const auto& id : cleaned.removed) log_info("session {} was not used for days and is removed", id);
  }

 private:
  Result<void> hear_signals() {
    const sigset_t wanted = stop_signals();
    const int signals = ::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals < 0) return fail_errno(errno, "signals cannot be heard");
    signals_.assign(signals);
    wait_for_signal();
    return {};
  }

  void wait_for_signal() {
    signals_.async_wait(asio::posix::stream_descriptor::wait_read, [this](error_code error) {
      if (error) return;
      signalfd_siginfo info{};
      while (::read(signals_.native_handle(), &info, sizeof info) == sizeof info)
        take_signal(static_cast<int>(info.ssi_signo));
      wait_for_signal();
    });
  }

  void take_signal(int signal) {
    // HUP replaces the daemon under its mounts; so does a stop that systemd will follow with a start. A stop
    // may still come while the last work is done; what was to be stopped is not replaced any more.
    const bool is_first = !is_stopping_;
    const bool replaces =
        manager_.is_there() && (signal == SIGHUP || (signal == SIGTERM && manager_.is_restarting()));
    leave_mounts_ = replaces && (is_first || leave_mounts_);
    is_stopping_ = true;
    log_info("signal {}: stopping{}", signal, leave_mounts_ ? ", the mounts stay" : "");
    if (!leave_mounts_)
      manager_.stopping();
    else if (manager_.watch_interval())
      manager_.end_within(kStopTimeout);  // for the manager it runs still; the work in hand takes its time
    if (is_first)
      for (auto* timer : {&watch_, &minute_, &clean_}) timer->cancel();
    server_.stop(leave_mounts_ ? kTimeoutAtReplacement : kTimeoutAtStop, [this] { io_.stop(); });
  }

  void watch_teller() {
    teller_.async_wait(asio::posix::stream_descriptor::wait_read, [this](error_code error) {
      if (error) return;
      log_error("the process that tells the kernel what to forget has ended{}",
                manager_.is_there() ? ": the next daemon will have one" : ": this daemon tells it by itself");
      if (manager_.is_there()) ::kill(::getpid(), SIGHUP);
    });
  }

  void do_minutes_work() {
    sessions_.save_uses();
    sessions_.try_again();
    sessions_.forget_unknown();
    renewal_.post();  // of skills that no folder tells of
    look_for_keeper();
    give_back_memory();
  }

  /// The folders' file systems may be slow.
  void renew_skills() {
    if (registry_.is_open()) sessions_.skills().watch(registry_.native_handle());
    sessions_.renew_skills();
  }

  void watch_registry() {
    registry_.async_wait(asio::posix::stream_descriptor::wait_read, [this](error_code error) {
      if (error) return;
      std::array<char, 4096> events{};
      while (::read(registry_.native_handle(), events.data(), events.size()) > 0) {
      }
      renewal_.post();
      watch_registry();
    });
  }

  void keep_watch(std::chrono::milliseconds interval) {
    manager_.keep_watch();
    watch_.expires_after(interval);
    watch_.async_wait([this, interval](error_code error) {
      if (!error) keep_watch(interval);
    });
  }

  void every(asio::steady_timer& timer, std::chrono::seconds interval, OneAtATime& work,
             std::optional<std::chrono::seconds> first = {}) {
    timer.expires_after(first.value_or(interval));
    timer.async_wait([this, &timer, interval, &work](error_code error) {
      if (error) return;
      work.post();
      every(timer, interval, work);
    });
  }

  const Options& options_;
  Sessions& sessions_;
  const ServiceManager& manager_;
  ClockWatch clock_;
  bool is_stopping_ = false;
  bool was_kept_ = manager_.kept_by() != "nobody";
  bool leave_mounts_ = false;
  RequestMetrics metrics_;
  Service service_;  // answers that nobody waited for, which end with the I/O context, hold its turns
  asio::io_context io_{1};
  WorkerPool workers_;
  OneAtATime minutes_work_{workers_, [this] { do_minutes_work(); }};
  OneAtATime cleaning_{workers_, [this] { clean_old(kCleanEvery); }};
  OneAtATime renewal_{workers_, [this] { renew_skills(); }};
  Server server_;
  asio::posix::stream_descriptor signals_;
  asio::posix::stream_descriptor teller_;
  asio::posix::stream_descriptor registry_;  // inotify(7) on the folders of skills
  asio::steady_timer watch_;
  asio::steady_timer minute_;
  asio::steady_timer clean_;
};

/// Some work goes on, as where its file system does not answer, and needs what a return would take away.
[[noreturn]] void end_under_work() {
  log_warning("okcvmd stopped before the end of some work, which most likely waits for a file system");
  ::_exit(0);
}

Result<void> run(const Options& options, Backends backends) {
  if (auto fit = check_host(options); !fit) return fit;
  if (auto made = make_directories(options); !made) return made;
  if (!is_in_memory(options.run_dir))
    log_warning("the run directory {} is on a disk, which makes sessions slow: use a tmpfs, as /run is",
                options.run_dir.string());
  if (!may_lease_files_of_others())
    log_warning("CAP_LEASE is missing: each snapshot reads again every file that was ever open for writing");
  auto state_lock = DirectoryLock::take(options.state_dir, "--state-dir");
  if (!state_lock) return fail(state_lock.error());
  // What mounts of another daemon leave to its next would be taken for what a dead one left.
  auto run_lock = DirectoryLock::take(options.run_dir, "--run-dir");
  if (!run_lock) return fail(run_lock.error());

  const ServiceManager manager;
  auto inherited = ServiceManager::take_inherited();
  // Reading the whole registry takes its time; programs in live mounts are waiting.
  auto registry = Registry::open(options.state_dir / "sessions.db", inherited.devices.empty());
  if (!registry) return fail(registry.error());
  auto control = control_socket(options, manager, std::move(inherited.sockets));
  if (!control) return fail(control.error());

  if (manager.is_there()) {
    backends.keep_device = [&manager](const SessionId& id, int device) {
      manager.keep_device(id.text(), device);
    };
    backends.forget_device = [&manager](const SessionId& id) { manager.forget_device(id.text()); };
  }
  const int telling_ends = backends.telling_ends;
  EventHub events;
  Sessions sessions(sessions_config(options), std::move(backends), std::move(*registry), events);
  if (auto started = sessions.start(std::move(inherited.devices)); !started) return started;

  auto running = std::make_unique<Running>(options, sessions, events, manager, telling_ends);
  const auto served = running->serve(std::move(control->socket));
  if (!served) return fail(served.error());
  const bool leave_mounts = *served;
  if (!leave_mounts && options.session_ttl_days > 0) running->clean_old(kLongestCleanAtStop);
  const bool is_work_done = running->finish_work();
  if (is_work_done) running.reset();
  if (leave_mounts) manager.let_reload_end();
  const bool have_ended = sessions.stop(leave_mounts);
  if (!leave_mounts && !control->is_units) {
    manager.forget_control();
    remove_socket(*control, options.socket);
  }
  if (!is_work_done || !have_ended) end_under_work();
  return {};
}

}  // namespace

int run_daemon(const Options& options, Backends backends) {
  const sigset_t waiting = stop_signals();
  ::pthread_sigmask(SIG_BLOCK, &waiting, nullptr);
  set_up_log(options.log_level, options.log_format);
  ::umask(0);  // modes are given in full where something is made, or are below a folder that is root's alone
  for (const int signal : {SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_IGN);  // they come as errors
  raise_limits();
  if (auto ran = run(options, std::move(backends)); !ran) {
    log_error("okcvmd cannot run: {}", ran.error().message);
    return 1;
  }
  log_info("okcvmd stopped");
  return 0;
}

}  // namespace okcvm::daemon
