#include "fusefs/listings.h"

#include <algorithm>
#include <utility>

namespace okcvm::fusefs {

Listings::Row* Listings::row_of(NodeId directory) {
  const auto row = std::find_if(rows_.begin(), rows_.end(),
                                [&](const Row& candidate) { return candidate.directory == directory; });
  return row == rows_.end() ? nullptr : &*row;
}

Listings::Listing Listings::begin(NodeId directory) {
  Listing former;  // closed after the lock is released
  MutexLock lock(mutex_);
  Row* row = row_of(directory);
  if (!row)
    row = std::min_element(rows_.begin(), rows_.end(),
                           [](const Row& one, const Row& other) { return one.begun < other.begun; });
  former = std::exchange(row->kept, {});
  row->directory = directory;
  row->begun = ++last_begun_;
  Listing listing;
  listing.begun = row->begun;
  return listing;
}

Listings::Listing Listings::take(NodeId directory) {
  MutexLock lock(mutex_);
  Row* const row = row_of(directory);
  return row ? std::exchange(row->kept, {}) : Listing();
}

void Listings::keep(NodeId directory, Listing listing) {
  MutexLock lock(mutex_);
  Row* const row = row_of(directory);
  if (row && row->begun == listing.begun) std::swap(row->kept, listing);
}

void Listings::drop(NodeId directory) {
  Listing dropped;  // closed after the lock is released
  MutexLock lock(mutex_);
  Row* const row = row_of(directory);
  if (!row) return;
  dropped = std::exchange(row->kept, {});
  row->directory = {};
  row->begun = 0;
}

}  // namespace okcvm::fusefs
