#pragma once

#include <sys/types.h>

#include <cstdint>
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
/// Where a mount stands: a file system, the directory of it that is shown there, and the place in that. As
/// the kernel spells them.
struct Standing {
  std::string device, part, place;
  friend bool operator==(const Standing&, const Standing&) = default;
};
/// Of a mount at this place.
std::optional<Standing> standing_at(const std::filesystem::path& place);
/// Whether any process sees a file system, or a part of it, mounted elsewhere, in whatever mount namespace. A
/// copy that stands as the one here is not: with such copies of all mounts a namespace begins, asked for or
/// not.
enum class Elsewhere : std::uint8_t {
  kNowhere,
  kOnTheSame,  // only on the same directory as here, or on itself: these may go with the one here
  kSomewhere,
};
Elsewhere mounted_elsewhere(dev_t device, const std::optional<Standing>& here);

/// Whether a descriptor of this number may be the daemon's last one but for those that the sessions which are
/// there open as they are used; else `quota_exceeded`. Numbers are given from the lowest on.
Result<void> leave_descriptors(int latest);

/// Makes the mount point and mounts on it; answers the /dev/fuse descriptor. `busy` if something is there
/// already, `not_found` if its parent is missing, `forbidden` if /dev/fuse cannot be used.
Result<FileDescriptor> mount_device(const std::filesystem::path& mount_point);

}  // namespace okcvm::fusefs
