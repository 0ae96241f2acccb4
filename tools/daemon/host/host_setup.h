#pragma once

#include <filesystem>
#include <string_view>

#include "policy/error.h"
#include "policy/file_descriptor.h"
#include "tools/daemon/host/options.h"

namespace okcvm::daemon {

/// Root, /dev/fuse and the mount root: `forbidden` or `not_found`, and what to do about it.
Result<void> check_host(const Options& options);

/// Makes the state directory (0700) with its folders, the run directory (0755) and the folder of skills. One
/// that others could write to is refused.
Result<void> make_directories(const Options& options);

/// Whether a directory's file system keeps its files in memory, as that of /run does. In the run directory
/// sessions keep state that changes with every call of theirs: on a disk, creating one takes many times as
/// long.
bool is_in_memory(const std::filesystem::path& directory);

/// CAP_LEASE. Without it, a file that was open for writing counts as being written for good, as nobody can
/// tell that it is not mapped any more: each snapshot reads it again.
bool may_lease_files_of_others();

/// Keeps a second daemon off a directory for as long as it lives. Move-only.
class DirectoryLock final {
 public:
  /// `busy`, naming the process that has it, and the option that says where else to go; one that was killed
  /// and is on its way out is waited for.
  static Result<DirectoryLock> take(const std::filesystem::path& directory, std::string_view option);

 private:
  explicit DirectoryLock(FileDescriptor file) : file_(std::move(file)) {}
  FileDescriptor file_;
};

/// Binds the control socket: mode 0660, group okcvm where there is one. What a dead daemon left at `path` is
/// replaced; `busy` if a live one listens there. Before there are threads: the umask is changed meanwhile.
Result<FileDescriptor> listen_at(const std::filesystem::path& path);

/// As many descriptors as the system allows, for each session holds several, and files as large: what
/// programs write without passthrough, this process writes for them.
void raise_limits();

}  // namespace okcvm::daemon
