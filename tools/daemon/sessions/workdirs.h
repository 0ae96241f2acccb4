#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "policy/error.h"
#include "policy/file_descriptor.h"
#include "tools/daemon/sessions/directory_steps.h"

namespace okcvm::daemon {

struct HostUser;

/// Finds and opens directories that sessions are to be bound to [S4], with the owner's rights and not the
/// daemon's. Thread-safe.
class Workdirs final {
 public:
  /// The roots and own trees are made real here; those that do not exist, or whose file system does not
  /// answer within some seconds, are taken as they are. Below the mount root there may be workdirs, but no
  /// part of it is in one.
  Workdirs(const std::vector<std::string>& allowed_roots, const std::vector<std::filesystem::path>& own_trees,
           const std::filesystem::path& mount_root);

  struct Opened {
    std::string path;          // real
    FileDescriptor directory;  // O_RDONLY | O_DIRECTORY
  };
  /// `forbidden`, `not_found` or `invalid_request`, with a reason fit for the user.
  Result<Opened> open(const std::string& requested, uid_t owner_uid, gid_t owner_gid) const;
  /// Opens again what open() found to be real, and follows no link any more: it could lead into a mount that
  /// is not served yet, and the open would wait for ever. `busy` where its file system does not answer within
  /// some seconds: other sessions are to be mounted, too.
  Result<Opened> reopen(const std::string& real_path, uid_t owner_uid, gid_t owner_gid) const;

 private:
  Result<Opened> reopen_however_long(const std::string& real_path, uid_t owner_uid, gid_t owner_gid) const;
  Result<Opened> open_with(const std::string& requested, uid_t owner_uid, gid_t owner_gid, Links links) const;

  std::vector<std::string> allowed_roots_;
  std::vector<std::string> own_trees_;
  std::string mount_root_;
  std::string mount_prefix_;  // of every session's mount point
};

}  // namespace okcvm::daemon
