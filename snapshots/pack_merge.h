#pragma once

#include "snapshots/repository.h"

namespace okcvm::snapshots {

/// Each snapshot brings a pack. When there are many, the small ones are copied into one, so that their number
/// grows with the logarithm of that of the snapshots, and the bytes copied with it. Packs that someone else
/// made (deltas, `.keep`) stay as they are. What goes wrong is left for the next time.
void merge_packs(Repository& repository);

/// What a crash in the middle of a merge leaves are packs without an index: the one that came, or one that
/// went. Removes those that a merge had to do with. Called under the repository's lock.
void clean_up_merge(const Repository& repository);

}  // namespace okcvm::snapshots
