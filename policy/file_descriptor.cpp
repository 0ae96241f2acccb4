#include "policy/file_descriptor.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <map>
#include <utility>

#include "policy/thread_annotations.h"

namespace okcvm {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kOpensWithin{1};  // of a process, from its request on

/// Held for as long as we hold a lease.
Mutex leasing;
/// Until when a non-blocking writer is expected, by device and inode.
std::map<std::pair<dev_t, ino_t>, Clock::time_point> nonblocking_until GUARDED_BY(leasing);
Clock::time_point last_clearing GUARDED_BY(leasing);

bool expects_nonblocking_writer(int fd) REQUIRES(leasing) {
  if (nonblocking_until.empty()) return false;
  struct stat status {};
  if (::fstat(fd, &status) != 0) return true;
  const auto found = nonblocking_until.find({status.st_dev, status.st_ino});
  return found != nonblocking_until.end() && Clock::now() <= found->second;
}

}  // namespace

std::size_t descriptors_for_one_session() {
  rlimit most{};
  ::getrlimit(RLIMIT_NOFILE, &most);
  return most.rlim_cur / 4;
}

bool may_be_held(const FileDescriptor& file) {
  rlimit most{};
  ::getrlimit(RLIMIT_NOFILE, &most);
  return static_cast<std::size_t>(file.get()) < most.rlim_cur - most.rlim_cur / 4;
}

void expect_nonblocking_writer(dev_t device, ino_t inode) {
  const MutexLock lock(leasing);
  const auto now = Clock::now();
  if (now - last_clearing > kOpensWithin) {
    std::erase_if(nonblocking_until, [now](const auto& entry) { return entry.second < now; });
    last_clearing = now;
  }
  nonblocking_until[{device, inode}] = now + kOpensWithin;
}

void expect_no_nonblocking_writer(dev_t device, ino_t inode) {
  const MutexLock lock(leasing);
  nonblocking_until.erase({device, inode});
}

/// Should someone open the file for writing in the instant that we hold the lease, the kernel signals us:
/// with SIGURG, which does nothing unless it is wanted, instead of SIGIO, which kills.
std::optional<bool> has_writers(int fd) {
  const MutexLock lock(leasing);
  if (expects_nonblocking_writer(fd)) return true;
  if (::fcntl(fd, F_SETSIG, SIGURG) != 0) return std::nullopt;
  if (::fcntl(fd, F_SETLEASE, F_RDLCK) != 0) return errno == EAGAIN ? std::optional(true) : std::nullopt;
  ::fcntl(fd, F_SETLEASE, F_UNLCK);
  return false;
}

}  // namespace okcvm
