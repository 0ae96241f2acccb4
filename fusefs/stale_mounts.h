#pragma once

#include <filesystem>

namespace okcvm::fusefs {

/// The type of our mounts in /proc/self/mounts.
inline constexpr char kFileSystemType[] = "fuse.okcvm";

/// Ends the mounts of this name that are served through a /dev/fuse descriptor, wherever they are: the mount
/// root may be another one than it was. Answers whether there were any (as far as served_through() can tell).
bool detach_served_through(int device, const std::filesystem::path& name);

/// Whether a /dev/fuse descriptor serves mounts of ours, but none of this name (as far as served_through()
/// can tell).
bool serves_others_only(int device, const std::filesystem::path& name);

}  // namespace okcvm::fusefs
