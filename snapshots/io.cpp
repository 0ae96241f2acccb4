#include "snapshots/io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "policy/fault.h"

namespace okcvm::snapshots {

Result<void> write_all(int fd, std::string_view bytes, std::string_view what) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return fail_errno(written < 0 ? errno : EIO, what);
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

Result<void> write_all_at(int fd, std::string_view bytes, std::uint64_t offset, std::string_view what) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return fail_errno(written < 0 ? errno : EIO, what);
    bytes.remove_prefix(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
  return {};
}

Result<std::size_t> read_at(int fd, char* buffer, std::size_t size, std::uint64_t offset) {
  std::size_t done = 0;
  while (done < size) {
    const ssize_t got = ::pread(fd, buffer + done, size - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail_errno(errno, "a file cannot be read");
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

Result<std::string> read_file(int directory, const char* name) {
  constexpr std::string_view kWhat = "a file of the repository cannot be read";
  const FileDescriptor file(::openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) return fail_errno(errno, kWhat);
  if (!S_ISREG(status.st_mode)) return fail_errno(EINVAL, kWhat);
  std::string bytes(static_cast<std::size_t>(status.st_size), '\0');
  auto got = read_at(file.get(), bytes.data(), bytes.size(), 0);
  if (!got) return fail(got.error());
  bytes.resize(*got);
  return bytes;
}

Result<void> replace_file(int directory, const char* name, std::string_view bytes, Durability durability) {
  constexpr std::string_view kWhat = "a file of the repository cannot be written";
  const std::string draft = std::string(name) + ".new";
  fault_point("io.replace");
  if (const int injected = fault_error("io.replace")) return fail_errno(injected, kWhat);
  const FileDescriptor file(
      ::openat(directory, draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return fail_errno(errno, kWhat);
  auto written = write_all(file.get(), bytes, kWhat);
  if (written && durability == Durability::kNow && ::fsync(file.get()) != 0)
    written = fail_errno(errno, kWhat);
  if (written) {
    fault_point("io.replace.rename");
    if (::renameat(directory, draft.c_str(), directory, name) != 0) written = fail_errno(errno, kWhat);
  }
  if (!written) {
    ::unlinkat(directory, draft.c_str(), 0);
    return written;
  }
  if (durability == Durability::kNow && ::fsync(directory) != 0) return fail_errno(errno, kWhat);
  return {};
}

Unexpected stopped() {
  return fail(
      Code::kBusy,
      "the work was given up: its client went away, or the session or the daemon is ending; try again");
}

Result<bool> is_there(const std::filesystem::path& path) {
  struct stat status {};
  const int injected = fault_error("io.is_there");
  if (injected == 0 && ::lstat(path.c_str(), &status) == 0) return true;
  const int error = injected ? injected : errno;
  if (error == ENOENT || error == ENOTDIR) return false;
  return fail_errno(error, "the session's files cannot be looked at");
}

}  // namespace okcvm::snapshots
