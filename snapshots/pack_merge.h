#pragma once

#include "snapshots/repository.h"

namespace okcvm::snapshots {

/// Each snapshot brings a pack. When there are many, the small ones are copied into one, so that their number
/// grows with the logarithm of that of the snapshots, and the bytes copied with it. Packs that someone else
/// made (deltas, `.keep`) stay as they are. What goes wrong is left for the next time.
void merge_packs(Repository& repository);

}  // namespace okcvm::snapshots
