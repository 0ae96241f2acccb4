#pragma once

#include <string>

#include "policy/error.h"

namespace okcvm {

/// The path by which calls that know no descriptors reach exactly what `fd` is open on, as long as it is open
/// (proc(5), /proc/pid/fd).
class ProcPath final {
 public:
  explicit ProcPath(int fd);
  const char* c_str() const { return text_; }

 private:
  char text_[sizeof "/proc/self/fd/" + 11];
};

/// Where the kernel says now that it is: ENAMETOOLONG beyond PATH_MAX. Of what was removed, or is on no mount
/// of ours, it is no path that leads anywhere.
Result<std::string> kernel_path(int fd);

}  // namespace okcvm
