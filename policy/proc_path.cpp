#include "policy/proc_path.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>

namespace okcvm {

ProcPath::ProcPath(int fd) {
  std::snprintf(text_, sizeof text_, "/proc/self/fd/%d", fd);
}

Result<std::string> kernel_path(int fd) {
  std::array<char, PATH_MAX> text;
  const ssize_t size = ::readlink(ProcPath(fd).c_str(), text.data(), text.size());
  if (size < 0) return fail_errno(errno);
  if (static_cast<std::size_t>(size) == text.size()) return fail_errno(ENAMETOOLONG);
  return std::string(text.data(), static_cast<std::size_t>(size));
}

}  // namespace okcvm
