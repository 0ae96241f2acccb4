#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace okcvm::fusefs {

/// Which slots of the node table stand below which: lists that share one array, 16 bytes a slot. A slot may
/// have been given to another node since: who goes through its children asks them for their parent. Slot 0 is
/// none. Not thread-safe.
class ChildLists {
 public:
  void put(std::uint32_t slot, std::uint32_t parent) {
    make_room(slot < parent ? parent : slot);
    if (links_[slot].parent == parent) return;
    take(slot);
    Links& links = links_[slot];
    std::uint32_t& first = links_[parent].first;
    links.parent = parent;
    links.next = first;
    if (first) links_[first].previous = slot;
    first = slot;
  }

  /// Its own children stay below it.
  void take(std::uint32_t slot) {
    if (slot >= links_.size() || !links_[slot].parent) return;
    Links& links = links_[slot];
    (links.previous ? links_[links.previous].next : links_[links.parent].first) = links.next;
    if (links.next) links_[links.next].previous = links.previous;
    links.parent = links.next = links.previous = 0;
  }

  std::uint32_t first(std::uint32_t parent) const {
    return parent < links_.size() ? links_[parent].first : 0;
  }
  std::uint32_t after(std::uint32_t slot) const { return links_[slot].next; }

  void clear() { links_.clear(); }

 private:
  struct Links {
    std::uint32_t parent = 0;
    std::uint32_t first = 0;  // child
    std::uint32_t next = 0, previous = 0;
  };
  static constexpr std::size_t kFewest = 32;
  void make_room(std::uint32_t slot) {
    if (slot >= links_.size()) links_.resize(std::max(std::size_t{slot} + 1, kFewest));
  }

  std::vector<Links> links_;
};

}  // namespace okcvm::fusefs
