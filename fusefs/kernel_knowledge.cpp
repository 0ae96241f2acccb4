#include "fusefs/kernel_knowledge.h"

#include <algorithm>

namespace okcvm::fusefs {
namespace {

// A listing given anew costs three requests, and each of its names about an eighth of one.
constexpr std::uint32_t kFewOutdated = 4;
constexpr std::uint32_t kNamesForOneAttribute = 8;

}  // namespace

void KernelKnowledge::set_attributes(std::uint32_t slot, bool told) {
  if (slot >= attributes_.size()) {
    if (!told) return;
    attributes_.resize(slot + 1);
  }
  attributes_[slot] = told;
}

void KernelKnowledge::listed(NodeId directory, bool from_start, std::uint32_t names) {
  Listing& listing = listings_[directory.value];
  if (from_start) listing = {};
  listing.names += names;
  listing.complete = names == 0;
}

bool KernelKnowledge::should_list_again(NodeId directory) {
  const auto listing = listings_.find(directory.value);
  // The kernel would never again keep a listing of which it is made to forget a part (Linux 6.18).
  if (listing == listings_.end() || !listing->second.complete) return false;
  const auto enough = std::max(kFewOutdated, listing->second.names / kNamesForOneAttribute);
  if (++listing->second.outdated < enough) return false;
  listings_.erase(listing);
  return true;
}

void KernelKnowledge::forget_all() {
  attributes_.clear();
  listings_.clear();
}

}  // namespace okcvm::fusefs
