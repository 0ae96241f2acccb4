#pragma once

#include <vector>

#include "policy/error.h"
#include "snapshots/renames.h"
#include "snapshots/tree.h"

namespace okcvm::snapshots {

/// Lets a file whose other names come or go live on: of the names that shall be one file, one that has the
/// bytes already keeps its inode, and the others are linked to that. Who has it open keeps it, and nothing of
/// it is written. `live` is what the workspace is once the names of `work` are given, and the rest of `work`
/// how it differs from `target` in `scope`. What is outside of that stays: a file that has names there keeps
/// its inode for those, and goes on inside only where it is wholly as `target` has it.
Result<void> keep_links(Tree& live, Tree& target, const std::vector<RelPath>& scope, Work& work);

}  // namespace okcvm::snapshots
