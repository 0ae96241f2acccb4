#pragma once

#include <filesystem>

#include "fusefs/session_mount.h"

namespace okcvm::fusefs {

/// Where a mount keeps what must outlive its daemon. forget_mount() removes the files of every purpose.
enum class StateFile : std::uint8_t { kState, kNodes, kChanges, kGoing };
std::filesystem::path state_file(const std::filesystem::path& runtime_dir, const SessionId& id,
                                 StateFile purpose);

}  // namespace okcvm::fusefs
