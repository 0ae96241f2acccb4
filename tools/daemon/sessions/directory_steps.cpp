#include "tools/daemon/sessions/directory_steps.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <fstream>
#include <string_view>
#include <vector>

#include "tools/daemon/sessions/owner_files.h"

namespace okcvm::daemon {
namespace {

constexpr int kMostLinks = 40;  // as the kernel, path_resolution(7)

/// Puts the components of a path before those that are still to come, the next one last.
void queue(std::string_view path, std::vector<std::string>& pending) {
  std::vector<std::string> parts;
  for (std::size_t start = 0; start < path.size();) {
    const auto end = std::min(path.find('/', start), path.size());
    if (end > start) parts.emplace_back(path.substr(start, end - start));
    start = end + 1;
  }
  pending.insert(pending.end(), parts.rbegin(), parts.rend());
}

/// As proc(5) has it in /proc/pid/mountinfo: "36 35 98:0 / /mnt rw - fuse.sshfs host: rw,user_id=1000,…".
bool is_served_by_user(std::uint64_t mount_id) {
  std::ifstream mounts("/proc/self/mountinfo");
  const auto start = std::to_string(mount_id) + " ";
  for (std::string line; std::getline(mounts, line);) {
    if (!line.starts_with(start)) continue;
    const auto kind = line.find(" - ");
    if (kind == line.npos || !std::string_view(line).substr(kind + 3).starts_with("fuse")) return false;
    constexpr std::string_view kUser = "user_id=";
    const auto user = line.rfind(kUser);
    return user == line.npos || line.compare(user + kUser.size(), 2, "0,") != 0;
  }
  return true;  // it is gone already
}

/// Asks no file system: the kernel knows by itself what is mounted where.
Result<void> check_mount(const FileDescriptor& found) {
  struct statx status {};
  if (::statx(found.get(), "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, 0, &status) != 0) return fail_errno(errno);
  if ((status.stx_attributes & STATX_ATTR_MOUNT_ROOT) && is_served_by_user(status.stx_mnt_id))
    return fail(Code::kForbidden, "a workdir cannot be in a file system that a user's program serves (FUSE)");
  return {};
}

/// The text of a link; ENOTDIR if it is none.
Result<std::string> link_text(const FileDescriptor& directory, const std::string& name, Links links) {
  const auto link = open_at(directory.get(), name, O_PATH | O_NOFOLLOW);
  if (!link) return fail(link.error());
  std::array<char, PATH_MAX> text{};
  const auto size = ::readlinkat(link->get(), "", text.data(), text.size());
  if (size < 0) return fail_errno(ENOTDIR);
  struct statfs kind {};
  if (links == Links::kRefuse || ::fstatfs(link->get(), &kind) != 0 || kind.f_type == PROC_SUPER_MAGIC)
    return fail_errno(ELOOP);
  return std::string(text.data(), static_cast<std::size_t>(size));
}

Result<FileDescriptor> root_directory() {
  return open_at(AT_FDCWD, "/", O_PATH | O_DIRECTORY);
}

enum class Last { kDirectory, kAny };

/// Finds (O_PATH) what a path leads to from `here`.
Result<FileDescriptor> walk(Result<FileDescriptor> here, const std::string& path, Links links, Last last) {
  if (path.starts_with('/')) here = root_directory();
  std::vector<std::string> pending;
  queue(path, pending);
  for (int followed = 0; here && !pending.empty();) {
    const std::string name = std::move(pending.back());
    pending.pop_back();
    auto next = open_at(here->get(), name, O_PATH | O_DIRECTORY | O_NOFOLLOW);
    if (!next && next.error().errno_value != ENOTDIR) return next;
    if (!next) {
      auto text = link_text(*here, name, links);
      if (text) {
        if (++followed > kMostLinks) return fail_errno(ELOOP);
        if (text->starts_with('/')) here = root_directory();
        queue(*text, pending);
        continue;
      }
      const bool is_found = last == Last::kAny && pending.empty() && text.error().errno_value == ENOTDIR;
      if (!is_found) return fail(text.error());
      next = open_at(here->get(), name, O_PATH | O_NOFOLLOW);
      if (!next) return next;
    }
    if (auto checked = check_mount(*next); !checked) return fail(checked.error());
    here = std::move(next);
  }
  return here;
}

}  // namespace

Result<FileDescriptor> open_by_steps(const std::string& path, Links links) {
  auto found = walk(root_directory(), path, links, Last::kDirectory);
  if (!found) return found;
  return open_at(found->get(), ".", O_RDONLY | O_DIRECTORY);
}

Result<FileDescriptor> find_by_steps(const FileDescriptor& directory, const std::string& path) {
  return walk(open_at(directory.get(), ".", O_PATH | O_DIRECTORY), path, Links::kFollow, Last::kAny);
}

}  // namespace okcvm::daemon
