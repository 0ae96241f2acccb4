#pragma once

#include <filesystem>
#include <string>

#include "policy/error.h"

namespace okcvm::snapshots {

/// The address of a repository's remote "origin", or of its first remote if it has none of that name, as its
/// configuration gives it. `path` is the top of a working tree or a bare repository. `not_found` if it is no
/// repository or has no remote. Nothing but the repository's own configuration is read, and nothing is run or
/// changed.
Result<std::string> remote_url(const std::filesystem::path& path);

}  // namespace okcvm::snapshots
