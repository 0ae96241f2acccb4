#pragma once

#include "policy/change_set.h"
#include "policy/error.h"
#include "snapshots/tree.h"

namespace okcvm::snapshots {

/// The moves of a change set, as the last snapshot knows them.
enum class Moves : std::uint8_t { kAreNew, kMayBeKnown };

/// Marks in the tree of the last snapshot what a change set says may differ, and moves what it says was
/// moved. Nothing of it is believed yet: changes are recorded before they are made, and some are then
/// refused. The capture that follows looks at what is there.
///
/// Where the last snapshot may already contain the moves of this set, both ends are read, and nothing is
/// moved. A set with `rescan` marks everything. False: following the moves would take too long, and the tree
/// is of no use any more.
Result<bool> replay(const ChangeSet& changes, Moves moves, Tree& tree);

/// Marks one path. What lies below something unknown is covered by its mark.
Result<void> mark(Tree& tree, const RelPath& path, std::uint8_t bits);

/// The path that a known node has in the snapshot that its tree was opened from.
std::string known_path(const Node& node);

/// Whether paths like this are in snapshots: a zone that is, or something in it.
bool is_snapshotted(const RelPath& path);

}  // namespace okcvm::snapshots
