#pragma once

#include "snapshots/disk.h"
#include "snapshots/renames.h"
#include "snapshots/stat_index.h"

namespace okcvm::snapshots {

/// Tells the index of what a restore did: forgets what went or gave way, and looks at what came, so that it
/// is recognised when it is next moved. Nobody may be able to change that meanwhile. What does not look as
/// `after`, the tree that was to come, says is left out.
void note_arrivals(const Work& work, const Disk& disk, const Tree& after, StatIndex& index);

}  // namespace okcvm::snapshots
