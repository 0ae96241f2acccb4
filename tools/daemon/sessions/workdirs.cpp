#include "tools/daemon/sessions/workdirs.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <future>
#include <system_error>
#include <thread>

#include "policy/proc_path.h"
#include "policy/workdir_rule.h"
#include "tools/daemon/host/bounded_asking.h"
#include "tools/daemon/host/log.h"
#include "tools/daemon/sessions/owner_files.h"
#include "tools/daemon/sessions/peer.h"

namespace okcvm::daemon {
namespace {

// All sessions that a daemon finds at its start are to be back within a minute or so.
constexpr std::chrono::milliseconds kTimeout{2000};
constexpr std::chrono::milliseconds kTimeoutOfMany{200};
constexpr int kFewTimesLate = 32;

Result<std::string> real_path_of(const FileDescriptor& directory) {
  auto path = kernel_path(directory.get());
  if (!path || !path->starts_with('/'))
    return fail(Code::kInvalidRequest, "the workdir's real path cannot be found");
  return path;
}

std::string made_real(const std::filesystem::path& path) {
  const auto absolute = std::filesystem::absolute(path);
  if (const auto directory = open_by_steps(absolute, Links::kFollow))
    if (auto real = real_path_of(*directory)) return *std::move(real);
  return absolute.lexically_normal().string();
}

/// As it is named where its file system does not answer: the daemon is to serve all the same.
std::string made_real_in_time(const std::filesystem::path& path) {
  return BoundedAsking()
      .ask(path, kAnswerTimeout, [path] { return made_real(path); })
      .value_or(std::filesystem::absolute(path).lexically_normal().string());
}

}  // namespace

Workdirs::Workdirs(const std::vector<std::string>& allowed_roots,
                   const std::vector<std::filesystem::path>& own_trees,
                   const std::filesystem::path& mount_root)
    : mount_root_(made_real(mount_root)),
      mount_prefix_((std::filesystem::path(mount_root_) / "okcvm-").string()) {
  for (const auto& root : allowed_roots) allowed_roots_.push_back(made_real_in_time(root));
  for (const auto& tree : own_trees) own_trees_.push_back(made_real_in_time(tree));
  for (const auto& root : allowed_roots_) {
    const auto below = check_workdir(root + "/any", WorkdirRule{allowed_roots_, own_trees_, {}});
    if (!below) log_warning("--workdir-allow-root {} allows nothing: {}", root, below.error().message);
  }
}

Result<Workdirs::Opened> Workdirs::open(const std::string& requested, uid_t owner_uid,
                                        gid_t owner_gid) const {
  return open_with(requested, owner_uid, owner_gid, Links::kFollow);
}

Result<Workdirs::Opened> Workdirs::reopen(const std::string& real_path, uid_t owner_uid,
                                          gid_t owner_gid) const {
  static std::atomic<int> times_late{0};  // one after the other
  // The thread may outlive this object.
  std::packaged_task<Result<Opened>()> opening([workdirs = *this, real_path, owner_uid, owner_gid] {
    return workdirs.reopen_however_long(real_path, owner_uid, owner_gid);
  });
  auto opened = opening.get_future();
  try {
    std::thread(std::move(opening)).detach();
  } catch (const std::system_error&) {  // the host has no more threads
    return reopen_however_long(real_path, owner_uid, owner_gid);
  }
  if (opened.wait_for(times_late < kFewTimesLate ? kTimeout : kTimeoutOfMany) == std::future_status::ready) {
    times_late = 0;
    return opened.get();
  }
  ++times_late;
  return fail(Code::kBusy, "its file system does not answer");
}

Result<Workdirs::Opened> Workdirs::reopen_however_long(const std::string& real_path, uid_t owner_uid,
                                                       gid_t owner_gid) const {
  auto opened = open_with(real_path, owner_uid, owner_gid, Links::kRefuse);
  if (!opened && opened.error().errno_value == ELOOP)
    return fail(Code::kForbidden, "the workdir's path has a link in it now: bind it anew");
  struct statvfs answer {};  // asked of the file system each time, unlike what is open and known already
  if (opened && ::fstatvfs(opened->directory.get(), &answer) != 0)
    return fail_errno(errno, "the workdir's file system cannot be asked");
  return opened;
}

Result<Workdirs::Opened> Workdirs::open_with(const std::string& requested, uid_t owner_uid, gid_t owner_gid,
                                             Links links) const {
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

  const Caller owner{owner_uid, owner_gid, user ? user->groups : std::vector<gid_t>()};
  auto directory = as_owner(owner, [&] { return open_by_steps(path, links); });
  if (!directory && !directory.error().message.empty()) return fail(directory.error());
  if (!directory)
    return fail_errno(directory.error().errno_value, "the workdir cannot be opened by the session's owner");
  // The rules are held against what was opened, so that nothing can be swapped in between.
  auto real = real_path_of(*directory);
  if (!real) return fail(real.error());
  if (real->starts_with(mount_prefix_))
    return fail(Code::kForbidden, "a session cannot be the workdir of a session");
  if (*real == mount_root_ || mount_root_.starts_with(*real + "/"))
    return fail(Code::kForbidden, "the directory that sessions are mounted in cannot be part of a workdir");
  std::string real_home;
  if (!home.empty())
    real_home = as_owner(owner, [&]() -> Result<std::string> { return made_real(home); }).value_or(home);
  if (auto allowed = check_workdir(*real, WorkdirRule{allowed_roots_, own_trees_, real_home}); !allowed)
    return fail(allowed.error());
  struct stat status {};
  if (::fstat(directory->get(), &status) != 0 || status.st_nlink == 0)
    return fail(Code::kNotFound, "the workdir is gone");
  if (!may(owner, status, W_OK | X_OK))
    return fail(Code::kForbidden, "the session's owner may not write to the workdir");
  return Opened{*real, std::move(*directory)};
}

}  // namespace okcvm::daemon
