#include "fusefs/stale_mounts.h"

#include <mntent.h>
#include <sys/mount.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <memory>
#include <utility>

#include "fusefs/mount_point.h"
#include "fusefs/session_mount.h"
#include "fusefs/short_child.h"

namespace okcvm::fusefs {
namespace {

constexpr std::chrono::seconds kAnswerTimeout{1};
constexpr int kDead = 1;
constexpr std::string_view kMountPrefix = "okcvm-";

enum class Service : std::uint8_t { kServed, kNone, kSilent };

/// Once every descriptor of the mount's device is closed any call on it answers ENOTCONN. Asked by a child
/// process, for a mount that answers nothing would keep whoever asks.
Service service_of(const char* mount_point, bool may_end) {
  ShortChild child(-1, [mount_point] {
    struct statfs status;  // unlike stat(2), never answered from the kernel's caches
    const bool failed = ::statfs(mount_point, &status) != 0;
    // A question that was asked before the end is answered by ECONNABORTED.
    return failed && (errno == ENOTCONN || errno == ECONNABORTED) ? kDead : 0;
  });
  if (!child) return Service::kServed;
  if (const auto status = child.status_within(kAnswerTimeout))
    return status == kDead ? Service::kNone : Service::kServed;
  if (!may_end) return Service::kServed;
  // What a dead daemon's notice waits for may wait for that daemon, and keeps its device open meanwhile.
  ::umount2(mount_point, MNT_FORCE | UMOUNT_NOFOLLOW);
  child.end();
  return Service::kSilent;
}

std::vector<std::filesystem::path> our_mount_points() {
  std::vector<std::filesystem::path> paths;
  const std::unique_ptr<FILE, int (*)(FILE*)> mounts(::setmntent("/proc/self/mounts", "re"), ::endmntent);
  if (!mounts) return paths;
  mntent row{};
  std::array<char, 4 * PATH_MAX> text;  // of a row
  while (::getmntent_r(mounts.get(), &row, text.data(), text.size()))
    if (std::string_view(row.mnt_type) == kFileSystemType) paths.emplace_back(row.mnt_dir);
  return paths;
}

}  // namespace

bool detach_served_through(int device, const std::filesystem::path& name) {
  const auto number = served_through(device);
  if (!number) return false;
  bool was_there = false;
  for (const auto& path : our_mount_points()) {
    if (path.filename() != name || mounted_at(path) != number) continue;
    // By force, for what the kernel has still to write would wait for the daemon that is about to serve.
    was_there |= ::umount2(path.c_str(), MNT_FORCE | MNT_DETACH | UMOUNT_NOFOLLOW) == 0;
    ::rmdir(path.c_str());
  }
  return was_there;
}

bool serves_others_only(int device, const std::filesystem::path& name) {
  const auto number = served_through(device);
  bool serves_others = false;
  if (number)
    for (const auto& path : our_mount_points())
      if (mounted_at(path) == number) {
        if (path.filename() == name) return false;
        serves_others = true;
      }
  return serves_others;
}

std::vector<std::string> detach_stale_mounts(const std::filesystem::path& mount_root,
                                             const std::filesystem::path& runtime_dir,
                                             const std::function<bool(std::string_view)>& is_ours) {
  const auto real_root = real_mount_root(mount_root);
  std::vector<std::filesystem::path> candidates;
  for (auto& path : our_mount_points())
    if (path.parent_path() == real_root && path.filename().string().starts_with(kMountPrefix) &&
        is_ours(path.filename().string()))
      candidates.push_back(std::move(path));
  std::vector<std::string> detached;
  for (const auto& path : candidates) {
    const auto id = SessionId::parse(path.filename().string().substr(kMountPrefix.size()));
    const Service service = service_of(path.c_str(), id && has_left_mount(runtime_dir, *id));
    if (service == Service::kServed) continue;
    const bool is_gone = ::umount2(path.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) == 0;
    if (!is_gone && service == Service::kNone) continue;
    ::rmdir(path.c_str());
    detached.push_back(path.filename());
  }
  return detached;
}

}  // namespace okcvm::fusefs
