#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <unordered_set>

#include "fusefs/session_mount.h"

namespace okcvm::fusefs {

/// Where a mount keeps what must outlive its daemon. forget_mount() removes the files of every purpose.
enum class StateFile : std::uint8_t { kState, kNodes, kChanges, kGoing, kWriters, kWorkdir, kSkills };
std::filesystem::path state_file(const std::filesystem::path& runtime_dir, const SessionId& id,
                                 StateFile purpose);

/// The inodes that programs may still write to though their mount is gone (NodeTable::written_past_us), kept
/// for the next mounts; what cannot be kept or read counts as none.
void keep_writers(const std::filesystem::path& file, const std::unordered_set<std::uint64_t>& inodes);
std::unordered_set<std::uint64_t> kept_writers(const std::filesystem::path& file);
/// Of a mount that ended these are left, and none of its other files; at no moment neither.
void leave_only_writers(const std::filesystem::path& runtime_dir, const SessionId& id,
                        const std::unordered_set<std::uint64_t>& inodes);

/// No other directory has this, not even one with the same number later; empty where it is not known.
std::string identity_of(int directory);

/// Notes which directory is the workdir, for may_be_workdir(); -1: none is.
void note_workdir(const std::filesystem::path& file, int directory);

}  // namespace okcvm::fusefs
