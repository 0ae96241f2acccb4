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

}  // namespace okcvm::daemon
