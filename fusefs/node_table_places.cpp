// Where nodes stand: how deep, and below which others.

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "fusefs/cycle_detector.h"
#include "fusefs/node_record.h"
#include "fusefs/node_table.h"

namespace okcvm::fusefs {
namespace {

bool is_misplaced_directory(const NodeRecord& row) {
  return row.trust == kMisplaced && row.type == S_IFDIR >> 12;
}

}  // namespace

/// From a node up to a fixed one: visits all before it, and answers how deep the first is.
template <typename Visitor>
std::optional<std::size_t> NodeTable::climb(NodeId id, const Visitor& visit) const {
  std::size_t steps = 0;
  CycleDetector cycle;
  for (const NodeRecord* row = live_record(id); row && !row->dead && !cycle.closes_at(row);
       row = live_record(NodeId{row->parent}), ++steps) {
    if (is_fixed(NodeId{row->id.load(std::memory_order_relaxed)})) return steps + 1;
    visit(*row, steps);
  }
  return std::nullopt;
}

std::optional<std::size_t> NodeTable::depth(NodeId id) const {
  constexpr std::size_t kLeast = 2;  // of what is in a zone
  MutexLock lock(mutex_);
  std::optional<std::size_t> least;  // wherever they are that are misplaced
  const auto depth = climb(id, [&](const NodeRecord& row, std::size_t steps) {
    if (is_misplaced_directory(row)) least = std::min(least.value_or(steps + kLeast), steps + kLeast);
  });
  return least && (!depth || *least < *depth) ? least : depth;
}

std::vector<NodeId> NodeTable::misplaced_from(NodeId id) const {
  std::vector<NodeId> ids;
  MutexLock lock(mutex_);
  climb(id, [&](const NodeRecord& row, std::size_t) {
    if (is_misplaced_directory(row)) ids.push_back(NodeId{row.id.load(std::memory_order_relaxed)});
  });
  return ids;
}

bool NodeTable::is_at_or_below(NodeId id, const std::vector<NodeId>& tops) const {
  MutexLock lock(mutex_);
  return std::any_of(tops.begin(), tops.end(),
                     [&](NodeId top) REQUIRES(mutex_) { return id == top || is_below(id, top); });
}

bool NodeTable::is_below(NodeId id, NodeId ancestor) const {
  CycleDetector cycle;
  for (const NodeRecord* row = live_record(id); row && !cycle.closes_at(row);
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
  if (const auto slot = index_.find(key, key_of())) place(record(*slot), parent, zone, name);
}

void NodeTable::place(NodeRecord& row, NodeId parent, Zone zone, std::string_view name) {
  place(row, parent, name);
  if (row.zone == zone) return;
  row.zone = zone;
  if (row.type != S_IFDIR >> 12) return;
  // Zones of one group only differ in name, but what is below must know where it is for reset and snapshots.
  visit_below(NodeId{row.id.load()}, [zone](NodeRecord& below) { below.zone = zone; });
}

void NodeTable::visit_children(NodeId parent, const Visit& visit) const {
  for (auto slot = children_.first(parent.slot()); slot; slot = children_.after(slot))
    if (NodeRecord& row = record(slot); row.id.load() && row.parent == parent.value) visit(row);
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

void NodeTable::set_bound_to_place(NodeId link) {
  MutexLock lock(mutex_);
  if (live_record(link)) bound_links_.insert(link.slot());
}

/// By what is below, or by the links that are bound: whichever is less.
std::vector<NodeId> NodeTable::bound_links_from(NodeId top) const {
  MutexLock lock(mutex_);
  std::vector<NodeId> links;
  if (live_record(top) && bound_links_.contains(top.slot())) links.push_back(top);
  std::size_t visits_left = bound_links_.size();
  std::vector<NodeId> directories{top};
  while (!directories.empty()) {
    const NodeId directory = directories.back();
    directories.pop_back();
    for (auto slot = children_.first(directory.slot()); slot; slot = children_.after(slot)) {
      if (visits_left-- == 0) return bound_links_by_their_places(top);
      const NodeRecord& row = record(slot);
      const NodeId id{row.id.load()};
      if (id.value == 0 || row.parent != directory.value || id == top) continue;  // the host can make circles
      if (bound_links_.contains(slot)) links.push_back(id);
      if (row.type == S_IFDIR >> 12) directories.push_back(id);
    }
  }
  return links;
}

std::vector<NodeId> NodeTable::bound_links_by_their_places(NodeId top) const {
  std::vector<NodeId> links;
  for (const auto slot : bound_links_)
    if (const NodeId id{record(slot).id.load()}; id == top || is_below(id, top)) links.push_back(id);
  return links;
}

std::vector<NodeId> NodeTable::part_with_all(NodeId top) {
  std::vector<NodeId> ids;
  MutexLock lock(mutex_);
  const auto add = [&](const NodeRecord& row) {
    if (!row.dead && (row.type == S_IFDIR >> 12 || row.type == S_IFLNK >> 12))
      ids.push_back(NodeId{row.id.load()});
  };
  if (const NodeRecord* row = live_record(top)) add(*row);
  visit_below(top, add);
  for (const NodeId id : ids) oust(id.slot());
  return ids;
}

std::vector<NodeId> NodeTable::all_of(const InodeKey& key) const {
  std::vector<NodeId> ids;
  MutexLock lock(mutex_);
  if (const auto slot = index_.find(key, key_of())) ids.push_back(NodeId{record(*slot).id.load()});
  for (const auto slot : former_)
    if (key_of()(slot) == key) ids.push_back(NodeId{record(slot).id.load()});
  return ids;
}

void NodeTable::set_misplaced(NodeId id) {
  MutexLock lock(mutex_);
  if (NodeRecord* row = live_record(id)) row->trust = kMisplaced;
  ++misplacements_;
}

bool NodeTable::is_misplaced(NodeId id) const {
  MutexLock lock(mutex_);
  const NodeRecord* row = live_record(id);
  return row && row->trust == kMisplaced;
}

std::uint64_t NodeTable::misplacements() const {
  MutexLock lock(mutex_);
  return misplacements_;
}

void NodeTable::set_found(NodeId id, std::uint64_t misplacements) {
  MutexLock lock(mutex_);
  NodeRecord* row = live_record(id);
  if (row && row->trust == kMisplaced && misplacements == misplacements_) row->trust = kUnverified;
}

std::vector<Node> NodeTable::directories() const {
  std::vector<Node> found;
  MutexLock lock(mutex_);
  for (const NodeId id : all_ids())
    if (const NodeRecord* row = live_record(id); row && row->type == S_IFDIR >> 12)
      found.push_back(copy_of(*row));
  return found;
}

}  // namespace okcvm::fusefs
