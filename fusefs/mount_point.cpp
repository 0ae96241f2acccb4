#include "fusefs/mount_point.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "fusefs/stale_mounts.h"
#include "policy/fault.h"
#include "policy/proc_path.h"
#include "policy/words.h"

namespace okcvm::fusefs {
namespace {

bool directory_is_empty(const std::filesystem::path& directory) {
  std::error_code error;
  return std::filesystem::directory_iterator(directory, error) == std::filesystem::directory_iterator() &&
         !error;
}

/// What /proc/<pid>/mountinfo (proc(5)) tells. There may be a thousand: only what is looked for is copied.
class SeenMounts {
 public:
  struct Mount {
    std::string_view number;
    std::string_view parent;  // its number
    std::string_view device, part, place;
  };

  explicit SeenMounts(const std::filesystem::path& process) {
    std::ostringstream whole;
    whole << std::ifstream(process / "mountinfo").rdbuf();
    text_ = std::move(whole).str();
    std::string_view rest = text_;
    while (!rest.empty()) {
      const auto end = std::min(rest.find('\n'), rest.size());
      auto line = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      Mount mount;
      for (auto* word : {&mount.number, &mount.parent, &mount.device, &mount.part, &mount.place})
        *word = take_word(line);
      all_.push_back(mount);
    }
  }
  SeenMounts(const SeenMounts&) = delete;
  SeenMounts& operator=(const SeenMounts&) = delete;

  const std::vector<Mount>& all() const { return all_; }
  /// Null if there is none of this number.
  const Mount* find(std::string_view number) const {
    const auto at =
        std::find_if(all_.begin(), all_.end(), [&](const auto& mount) { return mount.number == number; });
    return at == all_.end() ? nullptr : &*at;
  }

 private:
  std::string text_;
  std::vector<Mount> all_;
};

/// As it is told there.
std::string escaped(const std::string& path) {
  std::string text;
  for (const char c : path)
    if (constexpr std::string_view kEscaped = " \t\n\\"; kEscaped.find(c) == kEscaped.npos)
      text += c;
    else
      text.append({'\\', '0', static_cast<char>('0' + c / 8), static_cast<char>('0' + c % 8)});
  return text;
}

std::optional<Standing> standing_on(const SeenMounts::Mount& below, std::string_view place) {
  const std::string_view start = below.place == "/" ? std::string_view() : below.place;
  if (!place.starts_with(start)) return std::nullopt;
  return Standing{std::string(below.device), std::string(below.part),
                  std::string(place.substr(start.size()))};
}

std::string directory_below(const Standing& mount) {
  return mount.device + " " + (mount.part == "/" ? "" : mount.part) + mount.place;
}

bool is_mount_point(const std::filesystem::path& path) {
  struct stat self {};
  struct stat parent {};
  return ::lstat(path.c_str(), &self) != 0 ||  // a dead FUSE mount cannot even be looked at
         (::lstat(path.parent_path().c_str(), &parent) == 0 && self.st_dev != parent.st_dev);
}

/// The directory to mount on, as O_PATH. It was made here, or it is empty and nothing is mounted on it.
Result<FileDescriptor> prepare_mount_point(const std::filesystem::path& path) {
  const bool is_made = ::mkdir(path.c_str(), 0755) == 0;
  if (!is_made && errno == ENOENT)
    return fail(Code::kNotFound, "the mount root does not exist: make it or set --mount-root");
  if (!is_made && errno != EEXIST) return fail_errno(errno, "cannot make the mount point");
  if (!is_made && is_mount_point(path))
    return fail(Code::kBusy,
                "something else is mounted on the mount point: unmount that, then try again (okcvm load)");
  FileDescriptor place(::open(path.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!place || (!is_made && !directory_is_empty(ProcPath(place.get()).c_str())))
    return fail(
        Code::kBusy,
        "the mount point is not an empty directory: move what is there away, then try again (okcvm load)");
  return place;
}

}  // namespace

Result<void> leave_descriptors(int latest) {
  constexpr rlim_t kReserve = 8192;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return {};
  if (static_cast<rlim_t>(latest) + std::min(kReserve, limit.rlim_cur / 2) <= limit.rlim_cur) return {};
  return fail(Code::kQuotaExceeded,
              "the daemon has no descriptors left for another session: unmount some, or raise "
              "LimitNOFILE= (" +
                  std::to_string(limit.rlim_cur) + ")");
}

std::optional<dev_t> mounted_at(const std::filesystem::path& path) {
  struct statx status {};
  if (::statx(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_STATX_DONT_SYNC, 0,
              &status) != 0 ||
      !(status.stx_attributes & STATX_ATTR_MOUNT_ROOT))
    return std::nullopt;
  return makedev(status.stx_dev_major, status.stx_dev_minor);
}

std::filesystem::path real_mount_root(const std::filesystem::path& mount_root) {
  std::error_code error;
  auto real = std::filesystem::canonical(mount_root, error);
  return error ? mount_root : real;
}

std::optional<dev_t> served_through(int device) {
  std::ifstream lines("/proc/self/fdinfo/" + std::to_string(device));
  std::string key;
  for (unsigned number = 0; lines >> key; lines.ignore(std::numeric_limits<std::streamsize>::max(), '\n'))
    if (key == "fuse_connection:" && lines >> number) return makedev(0, number);
  return std::nullopt;
}

int unmount_at(const std::filesystem::path& path, bool force) {
  constexpr int kMostOnTop = 1000;
  for (int left = force ? kMostOnTop : 1; left > 0; --left)
    if (::umount2(path.c_str(), UMOUNT_NOFOLLOW | (force ? MNT_DETACH : 0)) != 0)
      return errno == EINVAL || errno == ENOENT ? 0 : errno;
  return 0;
}

FileDescriptor hold_mount(const std::filesystem::path& place) {
  constexpr unsigned kFlags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT;
  return FileDescriptor(static_cast<int>(::syscall(SYS_open_tree, AT_FDCWD, place.c_str(), kFlags)));
}

bool put_back(const FileDescriptor& mount, const std::filesystem::path& place) {
  return ::syscall(SYS_move_mount, mount.get(), "", AT_FDCWD, place.c_str(), MOVE_MOUNT_F_EMPTY_PATH) == 0;
}

std::optional<Standing> standing_at(const std::filesystem::path& place) {
  const auto directory = real_mount_root(place.parent_path());
  struct statx status {};
  if (::statx(AT_FDCWD, directory.c_str(), AT_STATX_DONT_SYNC, STATX_MNT_ID, &status) != 0)
    return std::nullopt;
  const SeenMounts mounts("/proc/self");
  const auto* const below = mounts.find(std::to_string(status.stx_mnt_id));
  if (!below) return std::nullopt;
  return standing_on(*below, escaped(directory / place.filename()));
}

Elsewhere mounted_elsewhere(dev_t device, const std::optional<Standing>& here) {
  const std::string wanted = std::to_string(major(device)) + ":" + std::to_string(minor(device));
  auto found = Elsewhere::kNowhere;
  std::set<std::string> seen;  // first lines: those of a mount namespace, and of a root in it, are the same
  std::error_code error;
  for (std::filesystem::directory_iterator process("/proc", error), end; !error && process != end;
       process.increment(error)) {
    if (process->path().filename().string().find_first_not_of("0123456789") != std::string::npos) continue;
    std::string line;
    if (!std::getline(std::ifstream(process->path() / "mountinfo"), line) || !seen.insert(line).second)
      continue;
    const SeenMounts mounts(process->path());
    for (const auto& mount : mounts.all()) {
      if (mount.device != wanted) continue;
      const auto* const below = mounts.find(mount.parent);
      // One whose parent is outside of what the process sees may be ours, seen from another root.
      const auto there = below ? standing_on(*below, mount.place) : here;
      if (mount.part == "/" && below && there && there == here) continue;
      const bool is_on_the_same =
          there && here && (there->device == wanted || directory_below(*there) == directory_below(*here));
      if (!is_on_the_same) return Elsewhere::kSomewhere;
      found = Elsewhere::kOnTheSame;
    }
  }
  return found;
}

Result<FileDescriptor> mount_device(const std::filesystem::path& mount_point) {
  FileDescriptor device(::open("/dev/fuse", O_RDWR | O_CLOEXEC));
  if (!device) {
    const int error = errno;
    Error refused =
        Error::from_errno(error, "cannot open /dev/fuse (is the fuse module loaded? run okcvm doctor)");
    if (error == ENOENT || error == ENODEV) refused.code = Code::kForbidden;
    return fail(std::move(refused));
  }
  if (auto enough = leave_descriptors(device.get()); !enough) return fail(enough.error());
  auto place = prepare_mount_point(mount_point);
  if (!place) return fail(place.error());
  const std::string options = "fd=" + std::to_string(device.get()) +
                              ",rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other";
  if (::mount("okcvm", ProcPath(place->get()).c_str(), kFileSystemType, MS_NOSUID | MS_NODEV,
              options.c_str()) != 0) {
    const int error = errno;
    ::rmdir(mount_point.c_str());
    return fail_errno(error, "cannot mount (root with CAP_SYS_ADMIN is needed)");
  }
  fault_point("mount.made");
  return device;
}

}  // namespace okcvm::fusefs
