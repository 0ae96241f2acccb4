#include "policy/file_descriptor.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <tuple>

#include "policy/thread_annotations.h"

namespace okcvm {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kHaste{1};  // within that a process opens what it has asked for

/// Held while a lease is.
Mutex leasing;
/// Until when one is expected, by device and inode; files that fall together are taken for each other.
std::array<Clock::time_point, 4096> hasty_until GUARDED_BY(leasing);

std::size_t place_of(dev_t device, ino_t inode) {
  return (inode ^ (device * 0x9e3779b97f4a7c15)) % std::tuple_size_v<decltype(hasty_until)>;
}

bool expects_hasty_writer(int fd) REQUIRES(leasing) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return true;
  return Clock::now() <= hasty_until[place_of(status.st_dev, status.st_ino)];
}

}  // namespace

std::size_t descriptors_for_one_session() {
  rlimit most{};
  ::getrlimit(RLIMIT_NOFILE, &most);
  return most.rlim_cur / 4;
}

void expect_hasty_writer(dev_t device, ino_t inode) {
  const MutexLock lock(leasing);
  hasty_until[place_of(device, inode)] = Clock::now() + kHaste;
}

/// Should someone open the file for writing in the instant that we hold the lease, the kernel signals us:
/// with SIGURG, which does nothing unless it is wanted, instead of SIGIO, which kills.
std::optional<bool> has_writers(int fd) {
  const MutexLock lock(leasing);
  if (expects_hasty_writer(fd)) return true;
  if (::fcntl(fd, F_SETSIG, SIGURG) != 0) return std::nullopt;
  if (::fcntl(fd, F_SETLEASE, F_RDLCK) != 0) return errno == EAGAIN ? std::optional(true) : std::nullopt;
  ::fcntl(fd, F_SETLEASE, F_UNLCK);
  return false;
}

}  // namespace okcvm
