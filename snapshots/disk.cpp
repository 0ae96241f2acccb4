#include "snapshots/disk.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace okcvm::snapshots {
namespace {

constexpr std::string_view kWhat = "the workspace cannot be read";
constexpr std::string_view kUserXattr = "user.";

struct CloseStream {
  void operator()(DIR* stream) const { ::closedir(stream); }
};

}  // namespace

Result<std::optional<Disk>> Disk::open(const std::filesystem::path& workspace) {
  FileDescriptor root(::open(workspace.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  if (root) return std::optional(Disk(std::move(root)));
  if (errno == ENOENT) return std::optional<Disk>();
  return fail_errno(errno, kWhat);
}

Result<FileDescriptor> Disk::open(const std::string& path, int flags) const {
  open_how how{};
  how.flags = static_cast<std::uint64_t>(flags | O_CLOEXEC);
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  const char* text = path.empty() ? "." : path.c_str();
  while (true) {
    FileDescriptor fd(static_cast<int>(::syscall(SYS_openat2, root_.get(), text, &how, sizeof how)));
    if (fd) return fd;
    if (errno != EINTR && errno != EAGAIN) return fail_errno(errno, kWhat, path);
  }
}

Result<FileDescriptor> Disk::open_directory(const std::string& path) const {
  return open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NOATIME);
}

Result<std::optional<struct stat>> Disk::stat(const std::string& path) const {
  auto entry = open(path, O_PATH | O_NOFOLLOW);
  if (!entry && is_gone(entry.error().errno_value)) return std::optional<struct stat>();
  if (!entry) return fail(entry.error());
  struct stat status {};
  if (::fstat(entry->get(), &status) != 0) return fail_errno(errno, kWhat, path);
  return std::optional(status);
}

bool is_gone(int errno_value) {
  return errno_value == ENOENT || errno_value == ENOTDIR || errno_value == ELOOP || errno_value == ESTALE;
}

Result<Identity> identity_of(int directory) {
  struct statx status {};
  if (::statx(directory, "", AT_EMPTY_PATH, STATX_INO | STATX_BTIME, &status) != 0)
    return fail_errno(errno, kWhat);
  Identity identity{status.stx_ino, 0};
  if (status.stx_mask & STATX_BTIME)
    identity.born_ns = status.stx_btime.tv_sec * 1'000'000'000LL + status.stx_btime.tv_nsec;
  return identity;
}

Result<std::vector<DiskRow>> rows_in(int directory) {
  // A description of its own: reading a listing moves the offset.
  const int fd = ::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOATIME);
  if (fd < 0) return fail_errno(errno, kWhat);
  const std::unique_ptr<DIR, CloseStream> stream(::fdopendir(fd));
  if (!stream) {
    const int error = errno;
    ::close(fd);
    return fail_errno(error, kWhat);
  }
  std::vector<DiskRow> rows;
  for (errno = 0; const dirent* entry = ::readdir(stream.get()); errno = 0) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") rows.push_back({entry->d_name, entry->d_ino, entry->d_type});
  }
  if (errno != 0) return fail_errno(errno, kWhat);
  return rows;
}

Attributes attributes_of(const struct stat& status) {
  Attributes attributes;
  attributes.mode = status.st_mode & 07777;
  attributes.uid = status.st_uid;
  attributes.gid = status.st_gid;
  attributes.modified = status.st_mtim;
  return attributes;
}

Result<std::string> xattr_names(int fd) {
  std::string names(1024, '\0');
  ssize_t size = ::flistxattr(fd, names.data(), names.size());
  if (size < 0 && errno == ERANGE) {
    names.resize(64 << 10);  // XATTR_LIST_MAX
    size = ::flistxattr(fd, names.data(), names.size());
  }
  if (size < 0 && errno != EOPNOTSUPP) return fail_errno(errno, kWhat);
  names.resize(size < 0 ? 0 : static_cast<std::size_t>(size));
  return names;
}

Result<Attributes> attributes_of(int fd, const struct stat& status) {
  Attributes attributes = attributes_of(status);
  const auto listed = xattr_names(fd);
  if (!listed) return fail(listed.error());
  const std::string& names = *listed;
  Xattrs::List found;
  std::string room;  // kept apart from the values, which are many and small
  for (std::size_t at = 0; at < names.size(); at = names.find('\0', at) + 1) {
    const char* name = names.data() + at;
    if (!std::string_view(name).starts_with(kUserXattr)) continue;
    room.resize(64 << 10);  // XATTR_SIZE_MAX
    const ssize_t length = ::fgetxattr(fd, name, room.data(), room.size());
    if (length < 0 && errno == ENODATA) continue;
    if (length < 0) return fail_errno(errno, kWhat);
    found.emplace_back(name, room.substr(0, static_cast<std::size_t>(length)));
  }
  std::sort(found.begin(), found.end());
  attributes.xattrs = Xattrs(std::move(found));
  return attributes;
}

Result<std::string> link_text(int directory, const char* name) {
  std::string text(4096, '\0');
  const ssize_t size = ::readlinkat(directory, name, text.data(), text.size());
  if (size < 0) return fail_errno(errno, kWhat);
  text.resize(static_cast<std::size_t>(size));
  return text;
}

}  // namespace okcvm::snapshots
