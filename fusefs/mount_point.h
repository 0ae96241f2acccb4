#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>

#include "policy/error.h"
#include "policy/file_descriptor.h"

namespace okcvm::fusefs {

/// The device number of the file system that is mounted there, if one is. Asked of the kernel's own memory:
/// it may be one that nobody serves at this moment.
std::optional<dev_t> mounted_at(const std::filesystem::path& path);

/// The directory of the mounts as the kernel names it in its own lists: without links. As it is given where
/// that cannot be told.
std::filesystem::path real_mount_root(const std::filesystem::path& mount_root);

/// The device number of the file system that is served through a /dev/fuse descriptor, where the kernel tells
/// it (Linux 6.17, proc_pid_fdinfo(5)).
std::optional<dev_t> served_through(int device);

/// Unmounts what is mounted there; by force whatever there is, one on top of the other, at once for new
/// calls. The errno (EBUSY: in use), or 0; nothing there is none.
int unmount_at(const std::filesystem::path& path, bool force);

/// Another reference to the mount at a place, by which put_back() mounts it there again; none if there is
/// none.
FileDescriptor hold_mount(const std::filesystem::path& place);
bool put_back(const FileDescriptor& mount, const std::filesystem::path& place);
/// A file system and the directory of it that is shown, as the kernel spells them.
struct MountedPart {
  std::string device;
  std::string part;
  friend bool operator==(const MountedPart&, const MountedPart&) = default;
};
/// What a mount at this place stands on.
std::optional<MountedPart> part_below(const std::filesystem::path& place);
/// Whether any process sees it, or a part of it, mounted, in whatever mount namespace. Where it stands on the
/// same as here it does not count: such a copy of all mounts a namespace begins with, asked for or not.
bool is_mounted_elsewhere(dev_t device, const std::optional<MountedPart>& below);

/// Whether a descriptor of this number may be the daemon's last one but for those that the sessions which are
/// there open as they are used; else `quota_exceeded`. Numbers are given from the lowest on.
Result<void> leave_descriptors(int latest);

/// Makes the mount point and mounts on it; answers the /dev/fuse descriptor. `busy` if something is there
/// already, `not_found` if its parent is missing, `forbidden` if /dev/fuse cannot be used.
Result<FileDescriptor> mount_device(const std::filesystem::path& mount_point);

}  // namespace okcvm::fusefs
