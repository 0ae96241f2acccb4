#include "tools/daemon/sessions/owner_files.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace okcvm::daemon {

Result<void> become_for_files(const Caller& user) {
  if (user.uid == 0) return {};
  const auto groups = ::syscall(SYS_setgroups, user.groups.size(), user.groups.data());
  ::setfsgid(user.gid);
  ::setfsuid(user.uid);
  if (groups != 0 || static_cast<gid_t>(::setfsgid(static_cast<gid_t>(-1))) != user.gid ||
      static_cast<uid_t>(::setfsuid(static_cast<uid_t>(-1))) != user.uid)
    return fail_errno(EPERM, "the owner's rights to files cannot be taken");
  return {};
}

Result<FileDescriptor> open_at(int directory, const std::string& path, int flags, std::uint64_t resolve) {
  open_how how{};
  how.flags = static_cast<std::uint64_t>(flags | O_CLOEXEC);
  how.resolve = RESOLVE_NO_MAGICLINKS | resolve;
  FileDescriptor file(static_cast<int>(::syscall(SYS_openat2, directory, path.c_str(), &how, sizeof how)));
  if (!file) return fail_errno(errno);
  return file;
}

}  // namespace okcvm::daemon
