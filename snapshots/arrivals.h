#pragma once

#include "snapshots/compare.h"
#include "snapshots/disk.h"
#include "snapshots/stat_index.h"

namespace okcvm::snapshots {

/// Tells the index of what a restore changed: forgets what went or gave way, and looks at what came, so that
/// it is recognised when it is next moved. Nobody may be able to change any of it meanwhile. What does not
/// look as `after`, the tree of the deltas' other side, says is left out.
void note_arrivals(const std::vector<Delta>& deltas, const Disk& disk, const Tree& after, StatIndex& index);

}  // namespace okcvm::snapshots
