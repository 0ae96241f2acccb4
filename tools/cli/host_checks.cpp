#include "tools/cli/host_checks.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/openat2.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "policy/file_descriptor.h"
#include "tools/cli/text.h"

namespace okcvm::cli {

namespace {

constexpr long kOverlayfs = 0x794c7630, kFuse = 0x65735546, kNfs = 0x6969;  // statfs(2)
constexpr std::uint64_t kLittleSpace = std::uint64_t{1} << 30;
constexpr rlim_t kEnoughDescriptors = 65536;

std::string error_text() {
  return std::strerror(errno);
}

Finding check_rights(const HostLayout& layout) {
  if (::geteuid() == 0) return {Level::kOk, "rights", "running as root, as okcvmd has to", ""};
  if (layout.daemon_answers)
    return {Level::kWarn, "rights", "not root: what okcvmd itself needs was looked at only in part",
            "run 'sudo okcvm doctor' for the whole picture"};
  return {Level::kFail, "rights", "not root, and no daemon answers: okcvmd can only run as root",
          "run okcvmd (and this check) as root: sudo okcvm doctor"};
}

Finding check_device() {
  struct stat info {};
  if (::stat("/dev/fuse", &info) != 0)
    return {Level::kFail, "device", "/dev/fuse: " + error_text(),
            "modprobe fuse; in a container, start it with --device /dev/fuse --cap-add SYS_ADMIN"};
  if (!S_ISCHR(info.st_mode))
    return {Level::kFail, "device", "/dev/fuse is not a character device",
            "rm /dev/fuse && mknod /dev/fuse c 10 229"};
  const FileDescriptor device(::open("/dev/fuse", O_RDWR | O_CLOEXEC));
  if (device) return {Level::kOk, "device", "/dev/fuse is there and can be opened", ""};
  if (errno == EACCES && ::geteuid() != 0)
    return {Level::kWarn, "device", "/dev/fuse is there, but only root may open it", "sudo okcvm doctor"};
  return {Level::kFail, "device", "/dev/fuse cannot be opened: " + error_text(),
          "modprobe fuse; in a container, allow the device (--device /dev/fuse)"};
}

Finding check_kernel() {
  utsname name{};
  ::uname(&name);
  open_how how{};
  how.flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  const FileDescriptor root(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  const FileDescriptor tried(static_cast<int>(::syscall(SYS_openat2, root.get(), "proc", &how, sizeof how)));
  const std::string release = std::string("Linux ") + name.release;
  if (!tried && (errno == ENOSYS || errno == EPERM))
    return {Level::kFail, "kernel", release + " does not let openat2(2) through",
            "Linux 5.10 or newer is needed; in a container, allow openat2 in the seccomp profile"};
  return {Level::kOk, "kernel", release + ", openat2(2) works", ""};
}

void check_fuse_features(std::vector<Finding>& findings) {
  if (::geteuid() != 0) {
    utsname name{};
    ::uname(&name);
    int major = 0, minor = 0;
    const bool recent =
        std::sscanf(name.release, "%d.%d", &major, &minor) == 2 && (major > 6 || (major == 6 && minor >= 9));
    findings.push_back(
        {recent ? Level::kOk : Level::kWarn, "passthrough",
         recent ? "a kernel of this age knows passthrough and resend (not asked: not root)"
                : "this kernel is older than 6.9: no passthrough, mounts end with the daemon",
         recent ? "" : "Linux 6.9 or newer gives native data speed and mounts that outlive okcvmd"});
    return;
  }
  const FuseFeatures features = ask_kernel_for_fuse_features();
  if (!features.known) {
    findings.push_back({Level::kFail, "mount",
                        "a FUSE file system cannot be mounted here: " + features.problem,
                        "CAP_SYS_ADMIN and the fuse module are needed; in a container: --cap-add SYS_ADMIN "
                        "--device /dev/fuse, and no AppArmor profile that denies mount"});
    return;
  }
  findings.push_back({Level::kOk, "mount",
                      "a FUSE file system can be mounted, protocol " + std::to_string(features.major) + "." +
                          std::to_string(features.minor),
                      ""});
  findings.push_back(
      features.passthrough
          ? Finding{Level::kOk, "passthrough", "the kernel offers FUSE passthrough", ""}
          : Finding{Level::kWarn, "passthrough",
                    "the kernel offers no FUSE passthrough: data goes through the daemon",
                    "Linux 6.9 or newer with CONFIG_FUSE_PASSTHROUGH reads and writes at native speed"});
  findings.push_back(
      features.resend
          ? Finding{Level::kOk, "resend", "the kernel can resend requests: mounts outlive okcvmd", ""}
          : Finding{Level::kWarn, "resend",
                    "the kernel cannot resend requests: calls pending when okcvmd dies are lost",
                    "Linux 6.9 or newer lets calls wait for the next okcvmd"});
}

/// Tries what nodes are remembered by: a file handle, opened again.
std::string file_handle_problem(int folder) {
  struct {
    file_handle handle;
    std::array<unsigned char, MAX_HANDLE_SZ> bytes;
  } room{};
  room.handle.handle_bytes = MAX_HANDLE_SZ;
  int mount_id = 0;
  if (::name_to_handle_at(folder, "", &room.handle, &mount_id, AT_EMPTY_PATH) != 0) return error_text();
  const FileDescriptor again(::open_by_handle_at(folder, &room.handle, O_RDONLY | O_CLOEXEC));
  return again || errno == EPERM ? std::string() : error_text();
}

/// What statfs(2) says of a file system, asked by a child: it may never come back.
enum class Pulse : std::uint8_t { kAlive, kDead, kSilent };

Pulse pulse_of(const std::string& path) {
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) return Pulse::kAlive;
  const FileDescriptor read_end(pipe[0]);
  FileDescriptor write_end(pipe[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    struct statfs ignored {};
    const char verdict = ::statfs(path.c_str(), &ignored) != 0 && errno == ENOTCONN ? 'd' : 'a';
    _exit(::write(write_end.get(), &verdict, 1) == 1 ? 0 : 1);
  }
  write_end.reset();
  pollfd ready{read_end.get(), POLLIN, 0};
  char verdict = 0;
  if (child < 0 || ::poll(&ready, 1, 1000) <= 0 || ::read(read_end.get(), &verdict, 1) != 1) {
    if (child > 0) ::kill(child, SIGKILL);  // not waited for: it may be stuck until the connection is aborted
    return Pulse::kSilent;
  }
  ::waitpid(child, nullptr, 0);
  return verdict == 'd' ? Pulse::kDead : Pulse::kAlive;
}

/// Whether it answers at all; if not, that is a finding.
bool is_answered(const std::string& where, std::string_view check, std::vector<Finding>& findings) {
  if (pulse_of(where) != Pulse::kSilent) return true;
  findings.push_back({Level::kFail, std::string(check), where + " does not answer",
                      "see what its file system waits for (findmnt -T '" + where + "'), or choose another"});
  return false;
}

void check_state_file_system(const std::string& where, std::vector<Finding>& findings) {
  const FileDescriptor folder(::open(where.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) {
    const bool rights = errno == EACCES && ::geteuid() != 0;
    findings.push_back({rights ? Level::kWarn : Level::kFail, "state-dir", where + ": " + error_text(),
                        rights ? "sudo okcvm doctor" : "make the directory usable for root"});
    return;
  }
  struct statfs kind {};
  if (::fstatfs(folder.get(), &kind) == 0 &&
      (kind.f_type == kOverlayfs || kind.f_type == kFuse || kind.f_type == kNfs))
    findings.push_back({Level::kWarn, "state-fs",
                        where + " is on " +
                            (kind.f_type == kOverlayfs ? "overlayfs"
                             : kind.f_type == kFuse    ? "FUSE"
                                                       : "NFS") +
                            ": no passthrough over it, and file handles may be missing",
                        "put the state directory on ext4, xfs, btrfs or tmpfs (okcvmd --state-dir)"});
  if (const auto problem = file_handle_problem(folder.get()); !problem.empty())
    findings.push_back({Level::kWarn, "file-handles", where + ": no file handles (" + problem + ")",
                        "ext4, xfs, btrfs and tmpfs have them; without, okcvmd holds each known file open"});
  else
    findings.push_back({Level::kOk, "file-handles", where + ": file handles work", ""});

  const FileDescriptor scratch(::openat(folder.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!scratch) {
    const bool rights = errno == EACCES && ::geteuid() != 0;
    findings.push_back(
        {rights || errno == EOPNOTSUPP ? Level::kWarn : Level::kFail, "state-dir",
         where + " cannot be written: " + error_text(),
         rights ? "sudo okcvm doctor" : "mount it read-write, or choose another with --state-dir"});
  } else if (::fsetxattr(scratch.get(), "user.okcvm.doctor", "1", 1, 0) != 0) {
    findings.push_back(
        {Level::kWarn, "xattrs", where + ": no user extended attributes (" + error_text() + ")",
         "sessions will answer EOPNOTSUPP to setxattr; on ext3 or reiserfs mount with user_xattr"});
  } else {
    findings.push_back({Level::kOk, "xattrs", where + ": extended attributes work", ""});
  }
  struct statvfs space {};
  if (::fstatvfs(folder.get(), &space) != 0) return;
  const std::uint64_t free = std::uint64_t{space.f_bavail} * space.f_frsize;
  const bool counts_inodes = space.f_files > 0;
  const std::string inodes = counts_inodes ? " and " + std::to_string(space.f_favail) + " inodes" : "";
  findings.push_back(free < kLittleSpace || (counts_inodes && space.f_favail < 10000)
                         ? Finding{Level::kWarn, "space",
                                   where + ": only " + human_size(free) + inodes + " are free",
                                   "make room, or 'okcvm clean --older-than-days 1'"}
                         : Finding{Level::kOk, "space", where + ": " + human_size(free) + " free", ""});
}

void check_state_dir(const HostLayout& layout, std::vector<Finding>& findings) {
  if (!is_answered(layout.state_dir, "state-dir", findings)) return;
  std::error_code ignored;
  const auto wanted = std::filesystem::absolute(layout.state_dir, ignored);
  auto existing = wanted;
  while (!std::filesystem::exists(existing, ignored) && existing.has_relative_path())
    existing = existing.parent_path();
  if (existing != wanted)
    findings.push_back(
        {Level::kOk, "state-dir",
         layout.state_dir + " is not there yet: okcvmd will make it below " + existing.string(), ""});
  check_state_file_system(existing.string(), findings);
}

void check_mount_root(const HostLayout& layout, std::vector<Finding>& findings) {
  if (!is_answered(layout.mount_root, "mount-root", findings)) return;
  struct stat info {};
  findings.push_back(
      ::stat(layout.mount_root.c_str(), &info) == 0 && S_ISDIR(info.st_mode)
          ? Finding{Level::kOk, "mount-root", "sessions are mounted below " + layout.mount_root, ""}
          : Finding{Level::kFail, "mount-root", layout.mount_root + " is not a directory",
                    "mkdir -p " + layout.mount_root + ", or choose another with okcvmd --mount-root"});
}

Finding check_group() {
  if (::getgrnam("okcvm") != nullptr) return {Level::kOk, "group", "the group okcvm is there", ""};
  return {Level::kWarn, "group", "there is no group okcvm: only root can reach the control socket",
          "systemd-sysusers, or groupadd --system okcvm; then usermod -aG okcvm USER"};
}

Finding check_descriptors() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const std::string hard = limit.rlim_max == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_max);
  if (limit.rlim_max < kEnoughDescriptors)
    return {Level::kWarn, "descriptors", "at most " + hard + " open files a process (RLIMIT_NOFILE)",
            "a busy host needs 65536 or more: LimitNOFILE= in okcvmd.service, or ulimit -Hn"};
  return {Level::kOk, "descriptors", hard + " open files a process are allowed", ""};
}

/// Without such a driver the kernel puts idle processors to sleep whatever it was asked for.
bool has_idle_driver() {
  std::ifstream file("/sys/devices/system/cpu/cpuidle/current_driver");
  std::string driver;
  return !(file >> driver) || driver != "none";
}

Finding check_processors() {
  const FileDescriptor device(::open("/dev/cpu_dma_latency", O_WRONLY | O_CLOEXEC));
  if (device && !has_idle_driver())
    return {Level::kWarn, "processors",
            "no cpuidle driver is in use, so idle processors cannot be kept awake: requests may take up to "
            "three times longer",
            "in a virtual machine, boot its kernel with cpuidle_haltpoll.force=1"};
  if (device)
    return {Level::kOk, "processors", "idle processors can be kept awake while requests come in", ""};
  if (errno == EACCES && ::geteuid() != 0)
    return {Level::kOk, "processors", "/dev/cpu_dma_latency is for root alone, as it should be", ""};
  return {
      Level::kWarn, "processors",
      "/dev/cpu_dma_latency cannot be opened (" + error_text() +
          "): requests may take up to three times longer",
      "a kernel with CONFIG_CPU_IDLE has it; in a container, start it with --device /dev/cpu_dma_latency"};
}

void check_mounts(std::vector<Finding>& findings) {
  std::ifstream file("/proc/self/mountinfo");
  std::ostringstream text;
  text << file.rdbuf();
  std::size_t alive = 0;
  for (const auto& mount : parse_mountinfo(text.str())) {
    if (mount.type != "fuse.okcvm") continue;
    const Pulse pulse = pulse_of(mount.mount_point);
    if (pulse == Pulse::kAlive) ++alive;
    if (pulse == Pulse::kDead)
      findings.push_back(
          {Level::kWarn, "stale-mount", mount.mount_point + ": its daemon is gone",
           "start okcvmd, which detaches or takes it over; or umount -l '" + mount.mount_point + "'"});
    if (pulse == Pulse::kSilent)
      findings.push_back(
          {Level::kWarn, "silent-mount", mount.mount_point + " does not answer",
           "start okcvmd again if it is down (calls wait for it); to give the mount up: mount -t fusectl "
           "none /sys/fs/fuse/connections; echo 1 > /sys/fs/fuse/connections/" +
               std::to_string(mount.device_minor) + "/abort; umount -l '" + mount.mount_point + "'"});
  }
  findings.push_back({Level::kOk, "mounts", count_of(alive, "session mount") + " answering", ""});
}

std::string without_octal_escapes(const std::string& text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      plain += static_cast<char>(std::strtol(text.substr(i + 1, 3).c_str(), nullptr, 8));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

}  // namespace

std::string_view name_of(Level level) {
  constexpr std::array<std::string_view, 3> kNames{"ok", "warn", "fail"};
  return kNames[static_cast<std::size_t>(level)];
}

std::vector<MountLine> parse_mountinfo(const std::string& text) {
  // proc(5): 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
  std::vector<MountLine> mounts;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string id, parent, device, root, point, word;
    fields >> id >> parent >> device >> root >> point;
    while (fields >> word && word != "-") continue;
    MountLine mount;
    if (!(fields >> mount.type)) continue;
    mount.mount_point = without_octal_escapes(point);
    const auto colon = device.find(':');
    if (colon != std::string::npos)
      mount.device_minor = static_cast<std::uint32_t>(std::strtoul(device.c_str() + colon + 1, nullptr, 10));
    mounts.push_back(std::move(mount));
  }
  return mounts;
}

std::vector<Finding> check_host(const HostLayout& layout) {
  std::vector<Finding> findings{check_rights(layout), check_device(), check_kernel()};
  check_fuse_features(findings);
  check_state_dir(layout, findings);
  check_mount_root(layout, findings);
  findings.push_back(check_group());
  findings.push_back(check_descriptors());
  findings.push_back(check_processors());
  check_mounts(findings);
  return findings;
}

}  // namespace okcvm::cli
