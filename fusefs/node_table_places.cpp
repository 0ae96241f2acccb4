// Where nodes stand: how deep, and below which others.

#include <sys/stat.h>

#include <algorithm>

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
