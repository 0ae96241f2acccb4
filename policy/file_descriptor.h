#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <optional>
#include <utility>

namespace okcvm {

/// Owns one file descriptor and closes it. Move-only; not thread-safe.
class FileDescriptor final {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) noexcept : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() { reset(); }

  /// The descriptor, still owned; -1 when there is none.
  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  int release() noexcept { return std::exchange(fd_, -1); }
  void reset() noexcept {
    // clang-tidy does not see that fd_ is set in pairs that are made empty.
    if (fd_ >= 0)  // NOLINT(clang-analyzer-core.UndefinedBinaryOperatorResult)
      ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

/// How many descriptors a session may hold of each kind whose number its programs choose: a quarter of what
/// the process may open (RLIMIT_NOFILE).
std::size_t descriptors_for_one_session();
/// Whether a descriptor may be held for as long as programs choose. The lowest free number is the next, so it
/// tells how many are taken: the last quarter is for the daemon's own work, whatever all sessions together
/// do.
bool may_be_held(const FileDescriptor& file);

/// Somebody is about to open this file for writing without waiting (O_NONBLOCK): for a second, or until the
/// next call, has_writers() says that somebody can write to it, instead of taking a lease, which would make
/// that open fail. Answers once no lease of ours is in the way. Thread-safe.
void expect_nonblocking_writer(dev_t device, ino_t inode);
/// All who were expected there have closed it again.
void expect_no_nonblocking_writer(dev_t device, ino_t inode);

/// Whether anyone can write to the file that `fd` is open on for reading alone, be it through a mapping whose
/// descriptor is closed: then a read lease is refused (fcntl(2), F_SETLEASE). Nothing where that cannot be
/// told.
std::optional<bool> has_writers(int fd);

}  // namespace okcvm
