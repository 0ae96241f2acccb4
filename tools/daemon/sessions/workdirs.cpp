#include "tools/daemon/sessions/workdirs.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <thread>

#include "policy/workdir_rule.h"
#include "tools/daemon/sessions/peer.h"

namespace okcvm::daemon {
namespace {

/// Opens a directory as the kernel would let the owner. A thread of its own takes the owner's identity for
/// file access and ends with it, so no other work can run under it (setfsuid(2) and the raw setgroups(2) are
/// per thread).
Result<FileDescriptor> open_as(const std::string& path, uid_t uid, gid_t gid,
                               const std::vector<gid_t>& groups) {
  int descriptor = -1;
  int error = 0;
  std::thread([&]() noexcept {
    if (uid != 0) {
      ::syscall(SYS_setgroups, groups.size(), groups.data());
      ::setfsgid(gid);
      ::setfsuid(uid);
      if (static_cast<uid_t>(::setfsuid(static_cast<uid_t>(-1))) != uid) {
        error = EPERM;
        return;
      }
    }
    descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) error = errno;
  }).join();
  if (descriptor < 0) return fail_errno(error, "the workdir cannot be opened by the session's owner");
  return FileDescriptor(descriptor);
}

bool may_write(const struct stat& status, uid_t uid, gid_t gid, const std::vector<gid_t>& groups) {
  if (uid == 0) return true;
  const bool in_group =
      status.st_gid == gid || std::find(groups.begin(), groups.end(), status.st_gid) != groups.end();
  const mode_t needed = status.st_uid == uid ? S_IWUSR | S_IXUSR
                        : in_group           ? S_IWGRP | S_IXGRP
                                             : S_IWOTH | S_IXOTH;
  return (status.st_mode & needed) == needed;
}

Result<std::string> real_path_of(const FileDescriptor& directory) {
  std::array<char, 4096> text{};
  const auto link = "/proc/self/fd/" + std::to_string(directory.get());
  const auto size = ::readlink(link.c_str(), text.data(), text.size());
  if (size <= 0 || static_cast<std::size_t>(size) == text.size() || text.front() != '/')
    return fail(Code::kInvalidRequest, "the workdir's real path cannot be found");
  return std::string(text.data(), static_cast<std::size_t>(size));
}

std::string made_real(const std::filesystem::path& path) {
  std::error_code error;
  const auto real = std::filesystem::canonical(path, error);
  return error ? path.lexically_normal().string() : real.string();
}

}  // namespace

Workdirs::Workdirs(const std::vector<std::string>& allowed_roots,
                   const std::vector<std::filesystem::path>& own_trees,
                   const std::filesystem::path& mount_root)
    : mount_prefix_((std::filesystem::path(made_real(mount_root)) / "okcvm-").string()) {
  for (const auto& root : allowed_roots) allowed_roots_.push_back(made_real(root));
  for (const auto& tree : own_trees) own_trees_.push_back(made_real(tree));
}

Result<Workdirs::Opened> Workdirs::open(const std::string& requested, uid_t owner_uid,
                                        gid_t owner_gid) const {
  if (requested.find('\0') != requested.npos)
    return fail(Code::kInvalidRequest, "a workdir may not contain a NUL byte");
  const auto user = host_user(owner_uid);
  const auto home = user ? user->home : std::string();
  const auto path = expand_home(requested, home);
  if (path.empty() || path.front() != '/')
    return fail(Code::kInvalidRequest, "a workdir is an absolute path, or starts with ~/");
  if (path.starts_with(mount_prefix_))
    return fail(Code::kForbidden, "a session cannot be the workdir of a session");
  if (allowed_roots_.empty()) return fail(check_workdir(path, {}).error());

  const auto groups = user ? user->groups : std::vector<gid_t>();
  auto directory = open_as(path, owner_uid, owner_gid, groups);
  if (!directory) return fail(directory.error());
  // The rules are held against what was opened, so that nothing can be swapped in between.
  auto real = real_path_of(*directory);
  if (!real) return fail(real.error());
  if (real->starts_with(mount_prefix_))
    return fail(Code::kForbidden, "a session cannot be the workdir of a session");
  if (auto allowed = check_workdir(*real, WorkdirRule{allowed_roots_, own_trees_, home}); !allowed)
    return fail(allowed.error());
  struct stat status {};
  if (::fstat(directory->get(), &status) != 0 || status.st_nlink == 0)
    return fail(Code::kNotFound, "the workdir is gone");
  if (!may_write(status, owner_uid, owner_gid, groups))
    return fail(Code::kForbidden, "the session's owner may not write to the workdir");
  return Opened{*real, std::move(*directory)};
}

}  // namespace okcvm::daemon
