#pragma once

#include <string>

#include "tools/daemon/sessions/registry.h"

namespace okcvm::daemon {

/// What a session shows of itself in its mount: the bytes of `.metadata.json`.
std::string metadata_file_of(const SessionRecord& record);

}  // namespace okcvm::daemon
