#pragma once

#include "snapshots/repository.h"
#include "snapshots/store.h"

namespace okcvm::snapshots {

/// Each snapshot brings a pack. When there are many, the small ones are copied into one, so that their number
/// grows with the logarithm of that of the snapshots, and the bytes copied with it. Of folders of which
/// several versions come together, all but one are stored as what changed (`pack_deltas`). Packs that someone
/// else made (git's deltas, `.keep`) stay as they are, and so do damaged ones. What goes wrong, or is stopped
/// by `progress`, is left for the next time.
void merge_packs(Repository& repository, const Progress& progress);

/// A pack of ours of which something cannot be read gives way to one with the rest of it, and is kept in our
/// own folder, as damaged-pack-…: libgit2 might take the damaged object before a good one. Open the
/// repository anew then. Takes as long as all packs take to read.
void set_damaged_packs_aside(Repository& repository);

/// What a crash in the middle of a merge leaves are packs without an index: the one that came, or one that
/// went. Removes those that a merge had to do with. Called under the repository's lock.
void clean_up_merge(const Repository& repository);

}  // namespace okcvm::snapshots
