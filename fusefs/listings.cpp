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

std::optional<NodeId> Listings::listed_at(NodeId directory, const timespec& changed) {
  MutexLock lock(mutex_);
  std::optional<NodeId> forgotten;
  if (changed_.size() >= kMostTimes && !changed_.contains(directory.value)) {
    forgotten = NodeId{changed_.begin()->first};
    changed_.erase(changed_.begin());
  }
  changed_.try_emplace(directory.value, changed);
  return forgotten;
}

bool Listings::is_outdated(NodeId directory, const timespec& changed) {
  MutexLock lock(mutex_);
  const auto found = changed_.find(directory.value);
  if (found == changed_.end()) return false;
  const timespec& then = found->second;
  if (then.tv_sec == changed.tv_sec && then.tv_nsec == changed.tv_nsec) return false;
  changed_.erase(found);
  return true;
}

}  // namespace okcvm::fusefs
