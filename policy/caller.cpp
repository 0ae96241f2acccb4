#include "policy/caller.h"

#include <algorithm>

namespace okcvm {

bool may(const Caller& caller, const struct stat& status, unsigned wanted) {
  if (caller.uid == 0) return true;
  const bool in_group = status.st_gid == caller.gid || std::find(caller.groups.begin(), caller.groups.end(),
                                                                 status.st_gid) != caller.groups.end();
  const unsigned bits = caller.uid == status.st_uid ? status.st_mode >> 6
                        : in_group                  ? status.st_mode >> 3
                                                    : status.st_mode;
  return (bits & wanted) == wanted;
}

}  // namespace okcvm
