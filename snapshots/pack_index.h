#pragma once

#include <set>
#include <string>

namespace okcvm::snapshots {

/// Packs' indexes whose offsets lead out of their packs, where libgit2 (1.5) would follow them out of its
/// maps, go to our own folder in the repository as damaged-NAME; `git index-pack` makes another one from the
/// pack. Those of `known` packs are not looked at. False: one could not be moved.
bool set_unsound_indexes_aside(int repository, const std::set<std::string>& known = {});

/// Whether a pack's index, at a path below the repository, is not what its own checksum says.
bool is_damaged_index(int repository, const std::string& path);

}  // namespace okcvm::snapshots
