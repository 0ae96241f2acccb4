#pragma once

#include <string>

#include "policy/caller.h"
#include "policy/error.h"
#include "policy/file_descriptor.h"

namespace okcvm::daemon {

/// The address of the remote "origin", or of the first by name if there is none of that name, of the
/// repository whose working tree or bare repository `directory` is. Its files are read with the owner's
/// rights, and nothing but regular files of at most 1 MiB is opened, none of them in a file system that a
/// user's program serves. `not_found` if it is no repository or names no remote, else what kept its
/// configuration from being read.
Result<std::string> remote_url(const FileDescriptor& directory, const Caller& owner);

}  // namespace okcvm::daemon
