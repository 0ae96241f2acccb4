#pragma once

#include <filesystem>

#include "policy/error.h"
#include "policy/file_descriptor.h"

namespace okcvm::fusefs {

/// Asked of the kernel's own memory: nobody serves the mount at this moment.
bool is_still_mounted(const std::filesystem::path& path);

/// Makes the mount point and mounts on it; answers the /dev/fuse descriptor. `busy` if something is there
/// already, `not_found` if its parent is missing, `forbidden` if /dev/fuse cannot be used.
Result<FileDescriptor> mount_device(const std::filesystem::path& mount_point);

}  // namespace okcvm::fusefs
