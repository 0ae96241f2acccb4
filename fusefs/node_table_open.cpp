// Who has which inodes open.

#include <fcntl.h>

#include <utility>

#include "fusefs/node_record.h"
#include "fusefs/node_table.h"

namespace okcvm::fusefs {

OpenState NodeTable::open_state(NodeId id) const {
  MutexLock lock(mutex_);
  const NodeRecord* row = live_record(id);
  return row ? open_state_of(*row) : OpenState{};
}

OpenState NodeTable::opened(NodeId id, int flags) {
  MutexLock lock(mutex_);
  NodeRecord* row = live_record(id);
  if (!row) return {};
  kernel_.forget_attributes(id.slot());
  ++row->opens;
  const int access = flags & O_ACCMODE;
  const bool outlives_close = row->backing_id && !rule_of(row->zone).changes_underneath;
  if (access == O_RDWR) row->mappers = (row->mappers + 1) | (outlives_close ? kMayBeMapped : 0);
  if (access != O_RDONLY && ++row->writers == 1) writing_.insert(id.slot());
  return open_state_of(*row);
}

OpenState NodeTable::closed(NodeId id, int flags) {
  MutexLock lock(mutex_);
  NodeRecord* row = live_record(id);
  if (!row) return {};
  if (row->opens) --row->opens;
  const int access = flags & O_ACCMODE;
  if (access == O_RDWR && (row->mappers & ~kMayBeMapped)) --row->mappers;
  if (access != O_RDONLY && row->writers && --row->writers == 0) writing_.erase(id.slot());
  return open_state_of(*row);
}

void NodeTable::set_backing(NodeId id, std::int32_t backing_id) {
  MutexLock lock(mutex_);
  if (NodeRecord* row = live_record(id)) row->backing_id = backing_id;
}

void NodeTable::set_not_mapped(NodeId id) {
  MutexLock lock(mutex_);
  NodeRecord* row = live_record(id);
  if (!row) return;
  row->mappers &= ~kMayBeMapped;
  if (row->volume == kWorkspaceVolume) awaited_.erase(row->inode);
}

void NodeTable::await_writers(std::unordered_set<std::uint64_t> inodes) {
  MutexLock lock(mutex_);
  awaited_ = std::move(inodes);
}

bool NodeTable::is_awaited(const InodeKey& key) const {
  return key.volume == kWorkspaceVolume && awaited_.contains(key.inode);
}

std::unordered_set<std::uint64_t> NodeTable::written_past_us() const {
  MutexLock lock(mutex_);
  auto inodes = awaited_;
  for (const NodeId id : all_ids())
    if (const NodeRecord* row = live_record(id);
        row && row->volume == kWorkspaceVolume && ((row->backing_id && row->writers) || row->mappers))
      inodes.insert(row->inode);
  return inodes;
}

std::vector<NodeId> NodeTable::open_for_writing() const {
  std::vector<NodeId> ids;
  MutexLock lock(mutex_);
  for (const auto slot : writing_) ids.push_back(NodeId{record(slot).id.load()});
  return ids;
}

std::vector<std::pair<NodeId, std::int32_t>> NodeTable::all_backings() const {
  std::vector<std::pair<NodeId, std::int32_t>> backings;
  MutexLock lock(mutex_);
  for (const NodeId id : all_ids())
    if (const NodeRecord* row = live_record(id); row && row->backing_id)
      backings.emplace_back(id, row->backing_id);
  return backings;
}

void NodeTable::clear_open_counts() {
  MutexLock lock(mutex_);
  for (const NodeId id : all_ids())
    if (NodeRecord* row = live_record(id)) {
      row->opens = row->writers = 0;
      row->mappers &= kMayBeMapped;
    }
  writing_.clear();
}

}  // namespace okcvm::fusefs
