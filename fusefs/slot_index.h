#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "fusefs/types.h"

namespace okcvm::fusefs {

/// Finds slots of the node table by their inodes. A hash table with open addressing that keeps the numbers of
/// the slots alone, four bytes each: `key_of` tells the inode of a slot. Slot 0 is none. Not thread-safe.
class SlotIndex {
 public:
  template <typename KeyOf>
  std::optional<std::uint32_t> find(const InodeKey& key, const KeyOf& key_of) const {
    std::size_t at = home(key);
    while (slots_[at] && !(key_of(slots_[at]) == key)) at = next(at);
    return slots_[at] ? std::optional(slots_[at]) : std::nullopt;
  }

  /// So that an insert() that follows needs no memory.
  template <typename KeyOf>
  void make_room(const KeyOf& key_of) {
    if ((count_ + 1) * 3 > slots_.size() * 2) grow(key_of);
  }

  template <typename KeyOf>
  void insert(std::uint32_t slot, const KeyOf& key_of) {
    make_room(key_of);
    if (place(slot, key_of)) ++count_;
  }

  /// Removes by shifting the rest of the run back, so that no tombstones pile up.
  template <typename KeyOf>
  void erase(std::uint32_t slot, const KeyOf& key_of) {
    std::size_t hole = home(key_of(slot));
    while (slots_[hole] && slots_[hole] != slot) hole = next(hole);
    if (!slots_[hole]) return;
    for (std::size_t at = next(hole); slots_[at]; at = next(at)) {
      if (distance(home(key_of(slots_[at])), at) < distance(hole, at)) continue;
      slots_[hole] = slots_[at];
      hole = at;
    }
    slots_[hole] = 0;
    --count_;
  }

  void clear() { *this = {}; }

 private:
  static constexpr std::size_t kFirstSize = 64;

  std::size_t mask() const { return slots_.size() - 1; }
  std::size_t next(std::size_t at) const { return (at + 1) & mask(); }
  std::size_t distance(std::size_t from, std::size_t to) const { return (to - from) & mask(); }
  std::size_t home(const InodeKey& key) const {
    const std::uint64_t mixed = (key.inode + (std::uint64_t{key.volume} << 48)) * 0x9e3779b97f4a7c15u;
    return static_cast<std::size_t>(mixed ^ (mixed >> 29)) & mask();
  }

  /// Whether it was not there yet.
  template <typename KeyOf>
  bool place(std::uint32_t slot, const KeyOf& key_of) {
    std::size_t at = home(key_of(slot));
    while (slots_[at] && slots_[at] != slot) at = next(at);
    const bool is_new = !slots_[at];
    slots_[at] = slot;
    return is_new;
  }

  template <typename KeyOf>
  void grow(const KeyOf& key_of) {
    std::vector<std::uint32_t> former(slots_.size() * 2, 0);
    former.swap(slots_);
    for (const auto slot : former)
      if (slot) place(slot, key_of);
  }

  std::vector<std::uint32_t> slots_ = std::vector<std::uint32_t>(kFirstSize, 0);
  std::size_t count_ = 0;
};

}  // namespace okcvm::fusefs
