#pragma once

#include <sys/stat.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include "fusefs/node_table.h"

namespace okcvm::fusefs {

/// One slot of the node table's mapping. Free slots keep `generation`, so that no number is used twice.
struct NodeRecord {
  std::atomic<std::uint64_t> id;  // 0 while free; stored last
  std::uint64_t lookups;
  std::uint64_t parent;
  std::uint64_t inode;
  std::uint32_t generation;
  std::int32_t backing_id;
  std::uint32_t opens;
  std::uint32_t writers;
  std::uint32_t mappers;  // and kMayBeMapped
  std::uint32_t content_epoch;
  std::uint32_t coverage_epoch;
  std::uint32_t trust;  // the table's when the handle was last verified; or kMisplaced, kUnverified
  VolumeId volume;
  Zone zone;
  std::uint8_t type;  // S_IFMT >> 12
  bool dead;
  NodeTable::Coverage coverage;
  std::uint8_t handle_type;
  std::uint8_t handle_size;
  std::uint8_t name_size;  // 0: unknown
  std::array<std::uint8_t, Handle::kMaxSize> handle;
  std::array<char, 59> name;  // of a dead one: its last status
};
static_assert(sizeof(NodeRecord) == 160);

/// In place of `trust`: NodeTable::set_misplaced().
inline constexpr std::uint32_t kMisplaced = 0;
/// In place of it: to be verified before it is trusted, whenever that is.
inline constexpr std::uint32_t kUnverified = ~std::uint32_t{0};

/// In `mappers`: OpenState::may_be_mapped.
inline constexpr std::uint32_t kMayBeMapped = 1u << 31;
inline OpenState open_state_of(const NodeRecord& record) {
  return {record.backing_id,
          record.opens,
          record.writers,
          record.mappers & ~kMayBeMapped,
          (record.mappers & kMayBeMapped) != 0,
          record.dead};
}

/// Whether the numbers in a record are such that it can be used.
bool is_sound(const NodeRecord& record, std::uint32_t slot);

/// Forgets the name, and the last status in its place.
void clear_name(NodeRecord& record);

/// Keeps a status in a dead record whose name was cleared.
void note_last_status(NodeRecord& record, const struct stat& status);
/// What was kept there; nothing if it is alive, or died without.
std::optional<struct stat> last_status(const NodeRecord& record);

}  // namespace okcvm::fusefs
