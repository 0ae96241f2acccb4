#include "policy/file_descriptor.h"

#include <fcntl.h>

#include <cerrno>
#include <csignal>

namespace okcvm {

/// Should someone open the file for writing in the instant that we hold the lease, the kernel signals us:
/// with SIGURG, which does nothing unless it is wanted, instead of SIGIO, which kills.
std::optional<bool> has_writers(int fd) {
  if (::fcntl(fd, F_SETSIG, SIGURG) != 0) return std::nullopt;
  if (::fcntl(fd, F_SETLEASE, F_RDLCK) != 0) return errno == EAGAIN ? std::optional(true) : std::nullopt;
  ::fcntl(fd, F_SETLEASE, F_UNLCK);
  return false;
}

}  // namespace okcvm
