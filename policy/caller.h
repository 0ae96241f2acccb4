#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <vector>

namespace okcvm {

/// Who asks: permissions are checked against it, new files belong to it.
struct Caller {
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;  // supplementary
};

/// Whether the mode and owner of an entry give a caller what he wants, as default_permissions has the kernel
/// check it (path_resolution(7)). `wanted` is made of R_OK, W_OK and X_OK.
bool may(const Caller& caller, const struct stat& status, unsigned wanted);

}  // namespace okcvm
