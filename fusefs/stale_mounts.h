#pragma once

namespace okcvm::fusefs {

/// The type of our mounts in /proc/self/mounts.
inline constexpr char kFileSystemType[] = "fuse.okcvm";

}  // namespace okcvm::fusefs
