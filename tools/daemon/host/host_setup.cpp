#include "tools/daemon/host/host_setup.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>

#include "tools/daemon/host/bounded_asking.h"
#include "tools/daemon/host/log.h"

namespace okcvm::daemon {
namespace {

constexpr int kBacklog = 1024;  // connections that wait while a daemon is replaced
constexpr std::chrono::seconds kDyingTimeout{5};

/// A directory of root's that nobody else can write to; made with its parents if it is absent.
Result<void> make_directory(const std::filesystem::path& path, mode_t mode) {
  const auto make = [&] { return ::mkdir(path.c_str(), mode) == 0 ? 0 : errno; };
  int error = make();
  if (error == ENOENT && path.has_parent_path() && path.parent_path() != path) {
    if (auto parent = make_directory(path.parent_path(), 0755); !parent) return parent;
    error = make();
  }
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0)
    return fail_errno(error && error != EEXIST ? error : errno, "cannot make the directory " + path.string());
  if (!S_ISDIR(status.st_mode)) return fail(Code::kInvalidRequest, path.string() + " is not a directory");
  if (status.st_uid != 0) return fail(Code::kForbidden, path.string() + " must belong to root");
  return {};
}

enum class Links : std::uint8_t { kFollowed, kRefused };

/// make_directory(), and it must be safe from others. Parents need not be (they may be sticky, as /tmp is).
Result<void> make_own_directory(const std::filesystem::path& path, mode_t mode, Links links) {
  if (auto made = make_directory(path, mode); !made) return made;
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return fail_errno(errno, "cannot read " + path.string());
  if (S_ISLNK(status.st_mode) && links == Links::kRefused)
    return fail(Code::kForbidden, path.string() +
                                      " is a symbolic link, and what is in it may be removed: put a "
                                      "directory there, and use mount --bind to have it elsewhere");
  if (::stat(path.c_str(), &status) != 0) return fail_errno(errno, "cannot read " + path.string());
  if ((status.st_mode & 022) != 0)
    return fail(Code::kForbidden, path.string() + " can be written to by others: use chmod 755");
  if (::access(path.c_str(), W_OK) != 0) return fail_errno(errno, "cannot write to " + path.string());
  // What is ours alone may have been made by another program, for others to read.
  if (links == Links::kRefused && (status.st_mode & ~mode & 0777) != 0 && ::chmod(path.c_str(), mode) != 0)
    return fail_errno(errno, "cannot close " + path.string() + " to others: use chmod 700");
  return {};
}

/// Early builds made this directory for all to write. It holds what changed before sessions were unmounted:
/// where that is missing their next snapshots compare everything, and where others could write it, it is not
/// to be believed, so it goes.
void drop_what_others_could_write(const std::filesystem::path& changes) {
  const auto aside = changes.parent_path() / ".changes.unsafe";
  struct stat status {};
  std::error_code ignored;
  if (::lstat(changes.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && (status.st_mode & 022)) {
    std::filesystem::remove_all(aside, ignored);
    if (::rename(changes.c_str(), aside.c_str()) != 0) return;
    log_warning("{} could be written to by others, so what was in it is not believed", changes.string());
  }
  std::filesystem::remove_all(aside, ignored);
}

Result<sockaddr_un> address_of(const std::filesystem::path& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const auto text = path.string();
  if (text.size() >= sizeof address.sun_path)
    return fail(Code::kInvalidRequest,
                "the socket's path " + text + " is longer than 107 bytes: use --socket");
  std::memcpy(address.sun_path, text.c_str(), text.size() + 1);
  return address;
}

/// Whether a process is on its way out, as one is for a moment after SIGKILL: it keeps its locks until its
/// memory is given back. Also of one that is gone by now. By the state and the flags (PF_EXITING) in
/// /proc/<pid>/stat, and the signals that wait in /proc/<pid>/status (proc(5)).
bool is_ending(const std::string& pid) {
  constexpr unsigned kExiting = 0x4;
  constexpr std::uint64_t kKilled = std::uint64_t{1} << (SIGKILL - 1);
  if (pid.empty()) return false;
  const std::string folder = "/proc/" + pid + "/";
  std::string stat;
  if (!std::getline(std::ifstream(folder + "stat"), stat)) return true;  // it is gone
  std::istringstream fields(stat.substr(std::min(stat.rfind(')') + 1, stat.size())));
  char state = 0;
  std::int64_t unused = 0;
  unsigned flags = 0;
  fields >> state;
  for (int field = 4; field < 9; ++field) fields >> unused;
  fields >> flags;
  if (state == 'Z' || state == 'X' || (flags & kExiting)) return true;
  std::ifstream status(folder + "status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("SigPnd:") || line.starts_with("ShdPnd:"))
      if (std::strtoull(line.c_str() + line.find(':') + 1, nullptr, 16) & kKilled) return true;
  return false;
}

/// Waits a moment for a process that is in the way while it ends. False: that is no use.
bool wait_for_end(const std::string& pid, std::chrono::steady_clock::time_point since) {
  if (!is_ending(pid) || std::chrono::steady_clock::now() > since + kDyingTimeout) return false;
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return true;
}

/// The process that listens at an address, or nothing.
std::optional<std::string> listener_at(const sockaddr_un& address) {
  const FileDescriptor probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe) return "";  // who can tell
  const bool is_heard =
      ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  if (!is_heard) return errno == EAGAIN ? std::optional<std::string>("") : std::nullopt;
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(probe.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? std::to_string(peer.pid)
                                                                               : "";
}

/// Takes away the socket of a daemon that is gone.
Result<void> clear_place(const std::filesystem::path& path, const sockaddr_un& address) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return {};
  if (!S_ISSOCK(status.st_mode))
    return fail(Code::kAlreadyExists, path.string() + " exists and is not a socket");
  const auto since = std::chrono::steady_clock::now();
  while (const auto pid = listener_at(address))
    if (!wait_for_end(*pid, since))
      return fail(Code::kBusy, "another program listens at " + path.string() +
                                   ": use --socket (the environment's OKCVM_SOCKET sets it, too)");
  if (::unlink(path.c_str()) != 0) return fail_errno(errno, "cannot replace " + path.string());
  return {};
}

/// The driver knows what is one file system by its device number.
Result<void> check_device_numbers(const std::filesystem::path& folder) {
  const FileDescriptor file(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  struct stat of_file {};
  struct stat of_folder {};
  if (!file || ::fstat(file.get(), &of_file) != 0 || ::stat(folder.c_str(), &of_folder) != 0 ||
      of_file.st_dev == of_folder.st_dev)
    return {};
  return fail(Code::kInvalidRequest,
              folder.string() +
                  ": files have another device number than their directory, as on an overlayfs "
                  "whose layers are on different file systems: use --state-dir elsewhere");
}

}  // namespace

Result<void> check_host(const Options& options) {
  if (::geteuid() != 0)
    return fail(Code::kForbidden, "okcvmd must run as root: it mounts file systems for several users");
  const FileDescriptor fuse(::open("/dev/fuse", O_RDWR | O_CLOEXEC));
  if (!fuse)
    return fail_errno(
        errno,
        "/dev/fuse cannot be used: load the fuse module (modprobe fuse), or give the container the device");
  struct stat status {};
  if (::stat(options.mount_root.c_str(), &status) != 0 || !S_ISDIR(status.st_mode))
    return fail(Code::kNotFound, "the mount root " + options.mount_root.string() +
                                     " is no directory: make it, or use --mount-root");
  if (status.st_uid != 0 || (status.st_mode & 022))
    log_warning(
        "the mount root {} can be written to by others, who can keep sessions from being mounted: "
        "use chmod 755",
        options.mount_root.string());
  return {};
}

Result<void> make_directories(const Options& options) {
  struct Row {
    std::filesystem::path path;
    mode_t mode;
    Links links = Links::kRefused;
  };
  if (auto made = make_own_directory(options.state_dir, 0700, Links::kFollowed); !made) return made;
  drop_what_others_could_write(options.state_dir / "changes");
  const std::array rows{
      Row{options.state_dir / "workspaces", 0700},  Row{options.state_dir / "snapshots", 0700},
      Row{options.state_dir / "changes", 0700},     Row{options.state_dir / "discarded", 0700},
      Row{options.run_dir, 0755, Links::kFollowed}, Row{options.run_dir / "sessions", 0700}};
  for (const auto& row : rows)
    if (auto made = make_own_directory(row.path, row.mode, row.links); !made) return made;
  if (auto usable = check_device_numbers(options.state_dir / "workspaces"); !usable) return usable;
  for (const auto& skills : options.skills_dirs)
    if (skills.parent_path() == options.state_dir) {
      const auto made = BoundedAsking().ask(
          skills, kAnswerTimeout, [skills] { return make_own_directory(skills, 0755, Links::kFollowed); });
      if (made && !*made) return *made;
    }
  return {};
}

bool may_lease_files_of_others() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> sets{};
  return ::syscall(SYS_capget, &header, sets.data()) == 0 && (sets[0].effective & (1u << CAP_LEASE));
}

bool is_in_memory(const std::filesystem::path& directory) {
  struct statfs system {};
  return ::statfs(directory.c_str(), &system) == 0 &&
         (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC);
}

Result<DirectoryLock> DirectoryLock::take(const std::filesystem::path& directory, std::string_view option) {
  const auto path = directory / "okcvmd.lock";
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return fail_errno(errno, "cannot open " + path.string());
  std::array<char, 32> text{};
  const auto since = std::chrono::steady_clock::now();
  while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return fail_errno(errno, "cannot lock " + path.string());
    const auto size = ::pread(file.get(), text.data(), text.size() - 1, 0);
    const std::string pid(text.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
    if (!wait_for_end(pid, since))
      return fail(Code::kBusy, directory.string() + " is held by another okcvmd, pid " + pid +
                                   ": stop that one, or use another " + std::string(option));
  }
  // The pid is there to be told. On a full disk, or at a quota, there may be no room for it, nor for making
  // the file shorter, and programs in live mounts wait all the same; what room it has is not given up in
  // between, or somebody else takes it.
  const int size = std::snprintf(text.data(), text.size(), "%d", ::getpid());
  const bool is_written = ::pwrite(file.get(), text.data(), static_cast<std::size_t>(size), 0) == size;
  [[maybe_unused]] const int cut = ::ftruncate(file.get(), is_written ? size : 0);
  return DirectoryLock(std::move(file));
}

Result<FileDescriptor> listen_at(const std::filesystem::path& path) {
  auto address = address_of(path);
  if (!address) return fail(address.error());
  if (auto cleared = clear_place(path, *address); !cleared) return fail(cleared.error());
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return fail_errno(errno, "cannot make the control socket");
  const mode_t old_mask = ::umask(0117);
  const int bound = ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address);
  const int error = errno;
  ::umask(old_mask);
  if (bound != 0) return fail_errno(error, "cannot make the control socket " + path.string());
  if (const auto* group = ::getgrnam("okcvm"))
    if (::chown(path.c_str(), 0, group->gr_gid) != 0)
      return fail_errno(errno, "cannot give " + path.string() + " its group");
  if (::listen(socket.get(), kBacklog) != 0) return fail_errno(errno, "cannot listen at " + path.string());
  return socket;
}

void raise_limits() {
  for (const auto which : {RLIMIT_NOFILE, RLIMIT_FSIZE}) {
    rlimit limit{};
    if (::getrlimit(which, &limit) != 0) continue;
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(which, &limit);
  }
}

}  // namespace okcvm::daemon
