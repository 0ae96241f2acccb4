// Where nodes stand: how deep, and below which others.

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "fusefs/circle.h"
#include "fusefs/node_record.h"
#include "fusefs/node_table.h"

namespace okcvm::fusefs {

std::optional<std::size_t> NodeTable::depth(NodeId id) const {
  MutexLock lock(mutex_);
  std::size_t depth = 0;
  Circle circle;
  for (const NodeRecord* row = live_record(id); row && !row->dead && !circle.closes_at(row);
       row = live_record(NodeId{row->parent}), ++depth)
    if (is_fixed(NodeId{row->id.load(std::memory_order_relaxed)}))
      return row->zone == Zone::kSkills ? depth - std::min<std::size_t>(depth, 1) : depth + 1;
  return std::nullopt;
}

bool NodeTable::is_at_or_below(NodeId id, const std::vector<NodeId>& tops) const {
  MutexLock lock(mutex_);
  return std::any_of(tops.begin(), tops.end(),
                     [&](NodeId top) REQUIRES(mutex_) { return id == top || is_below(id, top); });
}

bool NodeTable::is_below(NodeId id, NodeId ancestor) const {
  Circle circle;
  for (const NodeRecord* row = live_record(id); row && !circle.closes_at(row);
       row = live_record(NodeId{row->parent})) {
    if (row->parent == ancestor.value) return true;
    if (row->parent == kRootNode.value) return false;
  }
  return false;
}

void NodeTable::note_parent(const NodeRecord& row) {
  const auto slot = static_cast<std::uint32_t>(&row - &record(0));
  const auto parent = NodeId{row.parent}.slot();
  if (slot != parent && parent < next_slot_) children_.put(slot, parent);
}

void NodeTable::place(NodeRecord& row, NodeId parent, std::string_view name) {
  row.parent = parent.value;
  note_parent(row);
  row.name_size = 0;
  if (name.size() > row.name.size()) return;
  std::memcpy(row.name.data(), name.data(), name.size());
  row.name_size = static_cast<std::uint8_t>(name.size());
}

void NodeTable::moved(const InodeKey& key, NodeId parent, Zone zone, std::string_view name) {
  MutexLock lock(mutex_);
  const auto slot = index_.find(key, key_of());
  if (!slot) return;
  NodeRecord& row = record(*slot);
  place(row, parent, name);
  if (row.zone == zone) return;
  row.zone = zone;
  if (row.type != S_IFDIR >> 12) return;
  // Zones of one group only differ in name, but what is below must know where it is for reset and snapshots.
  visit_below(NodeId{row.id.load()}, [zone](NodeRecord& below) { below.zone = zone; });
}

void NodeTable::visit_children(NodeId parent, const Visit& visit) const {
  children_.visit(parent.slot(), [&](std::uint32_t slot) REQUIRES(mutex_) {
    if (NodeRecord& row = record(slot); row.id.load() && row.parent == parent.value) visit(row);
  });
}

void NodeTable::visit_below(NodeId ancestor, const Visit& visit) const {
  std::vector<NodeId> directories{ancestor};
  while (!directories.empty()) {
    const NodeId directory = directories.back();
    directories.pop_back();
    visit_children(directory, [&](NodeRecord& row) {
      const NodeId id{row.id.load()};
      if (id == ancestor) return;  // the host can make circles
      visit(row);
      if (row.type == S_IFDIR >> 12) directories.push_back(id);
    });
  }
}

std::vector<NodeId> NodeTable::links_from(NodeId top) const {
  std::vector<NodeId> links;
  MutexLock lock(mutex_);
  const auto add = [&](const NodeRecord& row) {
    if (row.type == S_IFLNK >> 12) links.push_back(NodeId{row.id.load()});
  };
  if (const NodeRecord* row = live_record(top)) add(*row);
  visit_below(top, add);
  return links;
}

std::vector<NodeId> NodeTable::all_of(const InodeKey& key) const {
  std::vector<NodeId> ids;
  MutexLock lock(mutex_);
  if (const auto slot = index_.find(key, key_of())) ids.push_back(NodeId{record(*slot).id.load()});
  for (const auto slot : former_)
    if (key_of()(slot) == key) ids.push_back(NodeId{record(slot).id.load()});
  return ids;
}

void NodeTable::set_moved_deeper(NodeId id) {
  MutexLock lock(mutex_);
  if (NodeRecord* row = live_record(id)) row->trust = kMovedDeeper;
}

bool NodeTable::has_moved_deeper(NodeId id) const {
  MutexLock lock(mutex_);
  const NodeRecord* row = live_record(id);
  return row && row->trust == kMovedDeeper;
}

}  // namespace okcvm::fusefs
