#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "fusefs/types.h"

namespace okcvm::fusefs {

/// What the kernel was told of inodes, by their slot in the node table, and of directories' listings. Only a
/// hint: it may have forgotten. Not thread-safe.
class KernelKnowledge {
 public:
  void set_attributes(std::uint32_t slot, bool told);
  bool has_attributes(std::uint32_t slot) const { return slot < attributes_.size() && attributes_[slot]; }

  /// It was given so many names of a directory, and may keep them; with none it has all.
  void listed(NodeId directory, bool from_start, std::uint32_t names);
  /// It will ask for the attributes of one more file of this directory. Answers true once that is so for so
  /// many that giving the listing anew, attributes included, costs less than asking for each.
  bool should_list_again(NodeId directory);

  void forget(NodeId directory) { listings_.erase(directory.value); }
  void forget_all();

 private:
  struct Listing {
    std::uint32_t names = 0;
    std::uint32_t outdated = 0;
    bool complete = false;
  };
  std::vector<bool> attributes_;
  std::unordered_map<std::uint64_t, Listing> listings_;  // by directory
};

}  // namespace okcvm::fusefs
