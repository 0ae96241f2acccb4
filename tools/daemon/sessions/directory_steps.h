#pragma once

#include <string>

#include "policy/error.h"
#include "policy/file_descriptor.h"

namespace okcvm::daemon {

enum class Links { kFollow, kRefuse };

/// Opens a directory (O_RDONLY) by its absolute path, step by step: nothing is asked of a file system before
/// it is known that no user's program serves it (FUSE, fusermount3(1)), for that may never answer.
/// `forbidden` where one does; ELOOP for a link that is refused, and for every link in /proc.
Result<FileDescriptor> open_by_steps(const std::string& path, Links links);

/// Finds (O_PATH) a file of any type in the same way, following links, by a path from that directory or an
/// absolute one.
Result<FileDescriptor> find_by_steps(const FileDescriptor& directory, const std::string& path);

}  // namespace okcvm::daemon
