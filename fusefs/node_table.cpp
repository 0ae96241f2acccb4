#include "fusefs/node_table.h"

#include <algorithm>
#include <cstring>

#include "fusefs/cycle_detector.h"
#include "fusefs/handout.h"
#include "fusefs/node_record.h"
#include "policy/fault.h"

namespace okcvm::fusefs {
namespace {

struct TableHeader {
  std::uint64_t magic;
  std::uint32_t record_size;
  std::uint32_t next_slot;  // slots from here on were never used
  std::uint32_t trust;
  std::uint32_t uncovered_epoch;  // the newest of forgotten nodes that were kKnown: nothing is covered in it
};
constexpr std::uint64_t kMagic = 0x6f6b63766d6e6401;  // "okcvmnd", version 1
constexpr std::size_t kHeaderSize = 64;

TableHeader& header_of(const SharedRegion& region) {
  return *reinterpret_cast<TableHeader*>(region.data());
}

/// Whether the host put what the kernel knows in one directory into another. The kernel would move it there
/// with all it keeps, texts of links among it, which were judged by where they stood.
bool was_carried_off(const NodeRecord& known, const Node& found) {
  const bool is_judged = found.is_directory() || (S_ISLNK(found.type) && !found.stays_in_anywhere);
  return rule_of(found.zone).changes_underneath && is_judged && known.parent != found.parent.value;
}

}  // namespace

Result<std::unique_ptr<NodeTable>> NodeTable::open(const std::filesystem::path& path, Start start) {
  bool is_new = false;
  auto region = SharedRegion::open(path, kHeaderSize + std::size_t{kMaxNodes} * sizeof(NodeRecord), is_new);
  if (!region) return fail(region.error());
  if (start == Start::kTakeOver && is_new)
    return fail(Code::kCorrupt, "the run-time state of the session is missing");
  if (start == Start::kAnew && !is_new) region->clear();
  if (auto ready = region->reserve(kHeaderSize + kFirstFreeSlot * sizeof(NodeRecord)); !ready)
    return fail(ready.error());

  TableHeader& header = header_of(*region);
  if (start == Start::kTakeOver && (header.magic != kMagic || header.record_size != sizeof(NodeRecord) ||
                                    header.next_slot < kFirstFreeSlot || header.next_slot > kMaxNodes))
    return fail(Code::kCorrupt, "the run-time state of the session is of another version or damaged");
  if (start == Start::kAnew) {
    std::memset(region->data(), 0, kHeaderSize + kFirstFreeSlot * sizeof(NodeRecord));
    header.record_size = sizeof(NodeRecord);
    header.next_slot = kFirstFreeSlot;
    header.trust = 1;
    header.magic = kMagic;
  }
  std::unique_ptr<NodeTable> table(new NodeTable(std::move(*region)));
  MutexLock lock(table->mutex_);
  table->next_slot_ = header.next_slot;
  table->trust_ = header.trust;
  if (auto ready = table->region_.reserve(kHeaderSize + std::size_t{header.next_slot} * sizeof(NodeRecord));
      !ready)
    return fail(ready.error());
  for (std::uint32_t slot = kFirstFreeSlot; slot < header.next_slot; ++slot)
    if (const NodeRecord& row = table->record(slot); row.id.load() && !is_sound(row, slot))
      return fail(Code::kCorrupt, "the run-time state of the session is damaged");
  for (const auto& rule : kZoneRules) {
    NodeRecord& row = table->record(node_of(rule.zone).slot());
    row.zone = rule.zone;
    row.type = S_IFDIR >> 12;
    row.parent = kRootNode.value;
    row.volume = rule.zone == Zone::kWorkdir ? kWorkdirVolume : kWorkspaceVolume;
    row.name_size = static_cast<std::uint8_t>(rule.name.copy(row.name.data(), row.name.size()));
    row.id.store(node_of(rule.zone).value);
  }
  NodeRecord& metadata = table->record(kMetadataNode.slot());
  metadata.type = S_IFREG >> 12;
  metadata.parent = kRootNode.value;
  metadata.id.store(kMetadataNode.value);
  table->rebuild();
  return table;
}

NodeTable::~NodeTable() = default;

NodeRecord& NodeTable::record(std::uint32_t slot) const {
  return reinterpret_cast<NodeRecord*>(region_.data() + kHeaderSize)[slot];
}

NodeRecord* NodeTable::live_record(NodeId id) const {
  if (id.slot() >= next_slot_ || id.value == 0) return nullptr;
  NodeRecord& row = record(id.slot());
  return row.id.load(std::memory_order_relaxed) == id.value ? &row : nullptr;
}

InodeKey NodeTable::KeyOf::operator()(std::uint32_t slot) const {
  const NodeRecord& row = table.record(slot);
  return {row.volume, row.inode};
}

Node NodeTable::copy_of(const NodeRecord& row) const {
  Node node;
  node.id = NodeId{row.id.load(std::memory_order_relaxed)};
  node.parent = NodeId{row.parent};
  node.key = {row.volume, row.inode};
  node.zone = row.zone;
  node.type = static_cast<mode_t>(row.type) << 12;
  node.dead = row.dead;
  node.handle.type = row.handle_type;
  node.handle.size = row.handle_size;
  node.handle.bytes = row.handle;
  node.name.assign(row.name.data(), row.name_size);
  return node;
}

void NodeTable::rebuild() {
  free_.clear();
  writing_.clear();
  former_.clear();
  dead_.clear();
  bound_links_.clear();
  children_.clear();
  in_skills_.clear();
  live_ = 0;
  index_.clear();
  for (const auto& rule : kZoneRules) note_parent(record(node_of(rule.zone).slot()));
  for (std::uint32_t slot = kFirstFreeSlot; slot < next_slot_; ++slot) {
    NodeRecord& row = record(slot);
    if (row.id.load() == 0) {
      free_.push_back(slot);
      continue;
    }
    ++live_;
    count_in_skill(row, 1);
    if (row.writers) writing_.insert(slot);
    if (row.type == S_IFLNK >> 12) bound_links_.insert(slot);  // nobody knows what the kernel was given
    if (row.dead) {
      former_.insert(slot);
      dead_.insert(slot);
    } else {
      index_.insert(slot, key_of());
    }
    note_parent(row);
  }
}

Result<Node> NodeTable::find(NodeId id) const {
  MutexLock lock(mutex_);
  const NodeRecord* row = live_record(id);
  if (!row) return fail_errno(ESTALE);
  return copy_of(*row);
}

Zone NodeTable::zone_of(NodeId id) const {
  MutexLock lock(mutex_);
  const NodeRecord* row = live_record(id);
  return row ? row->zone : Zone::kRoot;
}

std::optional<NodeId> NodeTable::reference_known(const InodeKey& key, NodeId parent, std::string_view name) {
  MutexLock lock(mutex_);
  const auto slot = index_.find(key, key_of());
  if (!slot) return std::nullopt;
  NodeRecord& row = record(*slot);
  if (row.trust != trust_) return std::nullopt;
  place(row, parent, name);
  return refer_to(row);
}

NodeId NodeTable::refer_to(NodeRecord& row) {
  const NodeId id{row.id.load(std::memory_order_relaxed)};
  ++row.lookups;
  Handout::taken(id);
  return id;
}

void NodeTable::oust(std::uint32_t slot) {
  former_.insert(slot);  // first: that may need memory
  dead_.insert(slot);
  index_.erase(slot, key_of());
  record(slot).dead = true;
}

void NodeTable::part_with(NodeId id) {
  MutexLock lock(mutex_);
  if (const NodeRecord* row = live_record(id); row && !row->dead) oust(id.slot());
}

Result<Referenced> NodeTable::reference(const Node& found) {
  MutexLock lock(mutex_);
  if (const auto slot = index_.find(found.key, key_of())) {
    NodeRecord& row = record(*slot);
    if (copy_of(row).handle == found.handle && row.type == found.type >> 12 && !was_carried_off(row, found) &&
        (row.trust != kMisplaced || found.is_directory())) {
      if (row.trust != kMisplaced) row.trust = trust_;
      place(row, found.parent, found.zone, found.name);
      return Referenced{refer_to(row), false};
    }
    oust(*slot);
  }
  index_.make_room(key_of());  // first: what has an id must be found
  auto slot = take_slot();
  if (!slot) return fail(slot.error());
  NodeRecord& row = record(*slot);
  kernel_.is_new(*slot);
  row.inode = found.key.inode;
  row.volume = found.key.volume;
  row.backing_id = 0;
  row.lookups = row.opens = row.writers = row.mappers = 0;
  if (is_awaited(found.key)) row.mappers = kMayBeMapped;
  row.content_epoch = row.coverage_epoch = 0;
  row.trust = trust_;
  row.zone = found.zone;
  row.type = static_cast<std::uint8_t>(found.type >> 12);
  row.dead = false;
  row.handle_type = found.handle.type;
  row.handle_size = found.handle.size;
  row.handle = found.handle.bytes;
  clear_name(row);
  place(row, found.parent, found.name);
  const NodeId id{(std::uint64_t{++row.generation} << 32) | *slot};
  fault_point("nodes.made");
  row.id.store(id.value);
  index_.insert(*slot, key_of());
  ++live_;
  count_in_skill(row, 1);
  return Referenced{refer_to(row), true};
}

Forgotten NodeTable::forget(NodeId id, std::uint64_t count) {
  MutexLock lock(mutex_);
  NodeRecord* row = live_record(id);
  if (!row || is_fixed(id)) return {};
  Handout::given_back(id);
  row->lookups -= std::min(row->lookups, count);
  if (row->lookups || own_.contains(id.value)) return {};
  free_.push_back(id.slot());  // first: it may need memory
  if (!row->dead) index_.erase(id.slot(), key_of());
  if (auto& epoch = header_of(region_).uncovered_epoch; !row->dead && row->coverage == Coverage::kKnown)
    epoch = std::max(epoch, row->coverage_epoch);
  const Forgotten forgotten{true, {row->volume, row->inode}};
  row->id.store(0);
  fault_point("nodes.forgotten");
  row->backing_id = 0;
  writing_.erase(id.slot());
  former_.erase(id.slot());
  dead_.erase(id.slot());
  bound_links_.erase(id.slot());
  children_.take(id.slot());
  kernel_.forget(id);
  --live_;
  count_in_skill(*row, -1);
  return forgotten;
}

void NodeTable::make_own(NodeId id) {
  MutexLock lock(mutex_);
  NodeRecord* row = live_record(id);
  if (!row || is_fixed(id) || row->lookups == 0) return;
  ++own_[id.value];
  --row->lookups;
}

void NodeTable::give_back_own(NodeId id) {
  MutexLock lock(mutex_);
  const auto own = own_.find(id.value);
  NodeRecord* row = live_record(id);
  if (own == own_.end() || !row) return;
  ++row->lookups;
  if (--own->second == 0) own_.erase(own);
}

std::vector<NodeId> NodeTable::unreferenced() const {
  std::vector<NodeId> ids;
  MutexLock lock(mutex_);
  for (const NodeId id : all_ids())
    if (record(id.slot()).lookups == 0 && !own_.contains(id.value)) ids.push_back(id);
  return ids;
}

std::vector<NodeId> NodeTable::nameless() const {
  std::vector<NodeId> ids;
  MutexLock lock(mutex_);
  ids.reserve(dead_.size());
  for (const auto slot : dead_) ids.push_back(NodeId{record(slot).id.load()});
  return ids;
}

bool NodeTable::knows_any_in(VolumeId volume) const {
  if (volume < kFirstSkillVolume) return true;
  MutexLock lock(mutex_);
  return in_skills_.contains(volume);
}

void NodeTable::count_in_skill(const NodeRecord& row, int change) {
  if (row.volume < kFirstSkillVolume) return;
  const auto count = in_skills_.try_emplace(row.volume, 0).first;
  count->second += change;
  if (count->second == 0) in_skills_.erase(count);
}

std::optional<NodeId> NodeTable::id_of(const InodeKey& key) const {
  MutexLock lock(mutex_);
  const auto slot = index_.find(key, key_of());
  if (!slot) return std::nullopt;
  return NodeId{record(*slot).id.load(std::memory_order_relaxed)};
}

void NodeTable::unlinked(const InodeKey& key, NodeId parent, std::string_view name, bool last) {
  MutexLock lock(mutex_);
  const auto slot = index_.find(key, key_of());
  if (!slot) return;
  NodeRecord& row = record(*slot);
  const bool was_this_name =
      row.parent == parent.value && std::string_view(row.name.data(), row.name_size) == name;
  if (was_this_name || last) clear_name(row);
  if (!last) return;
  dead_.insert(*slot);
  index_.erase(*slot, key_of());
  row.dead = true;
}

void NodeTable::note_last_status(NodeId id, const struct stat& status) {
  MutexLock lock(mutex_);
  if (NodeRecord* row = live_record(id)) fusefs::note_last_status(*row, status);
}

std::optional<struct stat> NodeTable::last_status(NodeId id) const {
  MutexLock lock(mutex_);
  const NodeRecord* row = live_record(id);
  return row ? fusefs::last_status(*row) : std::nullopt;
}

void NodeTable::drop_last_status(NodeId id) {
  MutexLock lock(mutex_);
  if (NodeRecord* row = live_record(id); row && row->dead) clear_name(*row);
}

void NodeTable::named(NodeId id, NodeId parent, Zone zone, std::string_view name) {
  MutexLock lock(mutex_);
  NodeRecord* row = live_record(id);
  if (!row || !row->dead) return;
  clear_name(*row);
  place(*row, parent, name);
  row->zone = zone;
  fault_point("nodes.named");
  index_.make_room(key_of());
  row->dead = false;
  former_.erase(id.slot());
  dead_.erase(id.slot());
  index_.insert(id.slot(), key_of());
}

void NodeTable::distrust_all() {
  MutexLock lock(mutex_);
  header_of(region_).trust = ++trust_;
  kernel_.forget_all();
}

AttributesTold NodeTable::told(NodeId id, bool has_one_name) {
  MutexLock lock(mutex_);
  const NodeRecord* row = live_record(id);
  if (!row) return {};
  const bool may_be_kept = kernel_.tell(id.slot());
  if (may_be_kept && has_one_name && row->writers == 0 && row->mappers == 0)
    kernel_.set_attributes(id.slot());
  else
    kernel_.forget_attributes(id.slot());
  return {open_state_of(*row), may_be_kept, kernel_.to_list_again()};
}

bool NodeTable::changed(NodeId id) {
  MutexLock lock(mutex_);
  return live_record(id) && kernel_.changed(id.slot());
}

bool NodeTable::may_leave_out(const InodeKey& key, NodeId parent, std::string_view name) {
  MutexLock lock(mutex_);
  const auto slot = index_.find(key, key_of());
  if (!slot) return false;
  const NodeRecord& row = record(*slot);
  const bool by_this_name =
      row.parent == parent.value && std::string_view(row.name.data(), row.name_size) == name;
  return by_this_name && kernel_.may_leave_out(*slot);
}

void NodeTable::listed(NodeId directory, bool from_start, std::uint32_t names) {
  MutexLock lock(mutex_);
  if (!live_record(directory)) return;
  kernel_.listed(directory, from_start, names);
  kernel_.forget_attributes(directory.slot());  // its access time moves
}

void NodeTable::not_told(NodeId id) {
  MutexLock lock(mutex_);
  if (live_record(id)) kernel_.forget_attributes(id.slot());
}

std::optional<NodeId> NodeTable::outdated(NodeId id) {
  MutexLock lock(mutex_);
  const NodeRecord* row = live_record(id);
  if (!row || row->opens || kernel_.has_attributes(id.slot())) return std::nullopt;
  if (rule_of(row->zone).changes_underneath) return std::nullopt;  // soon asked again anyway
  const NodeId directory{row->parent};
  return kernel_.should_list_again(directory, id.slot()) ? std::optional(directory) : std::nullopt;
}

bool NodeTable::is_recorded(NodeId id, std::uint32_t epoch) const {
  MutexLock lock(mutex_);
  const NodeRecord* row = live_record(id);
  return row && row->content_epoch == epoch;
}

void NodeTable::set_recorded(NodeId id, std::uint32_t epoch) {
  MutexLock lock(mutex_);
  if (NodeRecord* row = live_record(id)) row->content_epoch = epoch;
}

void NodeTable::set_coverage(NodeId id, std::uint32_t epoch, Coverage coverage) {
  MutexLock lock(mutex_);
  NodeRecord* row = live_record(id);
  if (!row) return;
  row->coverage_epoch = epoch;
  row->coverage = coverage;
}

bool NodeTable::is_covered(NodeId id, std::uint32_t epoch) const {
  MutexLock lock(mutex_);
  if (header_of(region_).uncovered_epoch == epoch) return false;
  CycleDetector cycle;
  for (const NodeRecord* row = live_record(id); row && !row->dead && !cycle.closes_at(row);
       row = live_record(NodeId{row->parent})) {
    if (row->coverage_epoch == epoch) return row->coverage == Coverage::kWhole;
    if (row->trust == kMisplaced) return false;  // it is elsewhere by now
    if (is_fixed(NodeId{row->id.load(std::memory_order_relaxed)})) return false;
  }
  return false;
}

std::uint64_t NodeTable::size() const {
  MutexLock lock(mutex_);
  return live_;
}

std::vector<NodeId> NodeTable::all_ids() const {
  std::vector<NodeId> ids;
  ids.reserve(live_);
  for (std::uint32_t slot = kFirstFreeSlot; slot < next_slot_; ++slot)
    if (const auto id = record(slot).id.load(std::memory_order_relaxed)) ids.push_back(NodeId{id});
  return ids;
}

Result<std::uint32_t> NodeTable::take_slot() {
  if (!free_.empty()) {
    const auto slot = free_.back();
    free_.pop_back();
    return slot;
  }
  if (next_slot_ >= kMaxNodes) return fail_errno(ENOMEM);
  if (auto ready = region_.reserve(kHeaderSize + (std::size_t{next_slot_} + 1) * sizeof(NodeRecord)); !ready)
    return fail_errno(ENOMEM);
  header_of(region_).next_slot = next_slot_ + 1;
  return next_slot_++;
}

}  // namespace okcvm::fusefs
