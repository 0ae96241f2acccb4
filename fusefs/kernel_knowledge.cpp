#include "fusefs/kernel_knowledge.h"

#include <algorithm>
#include <atomic>
#include <utility>

namespace okcvm::fusefs {
namespace {

// A listing given anew costs three requests, and each of its names about an eighth of one.
constexpr std::uint32_t kFewOutdated = 4;
constexpr std::uint32_t kNamesForOneAttribute = 8;
// A program that wants attributes asks for those of one piece of a listing one by one, which costs little
// beside so many names with theirs; one that wants none has the driver look at so many files for nothing.
constexpr std::uint32_t kNamesForOneAsked = 4096;

std::atomic<std::uint64_t> changes_so_far{0};

void set(std::vector<bool>& bits, std::uint32_t slot, bool value) {
  if (slot >= bits.size()) {
    if (!value) return;
    bits.resize(slot + 1);
  }
  bits[slot] = value;
}

}  // namespace

Asking& Asking::current() {
  thread_local Asking asking;
  return asking;
}

void Asking::begin(std::int32_t thread) {
  current() = {thread, changes_so_far.load()};
}

void KernelKnowledge::set_attributes(std::uint32_t slot) {
  set(attributes_, slot, true);
}

void KernelKnowledge::forget_attributes(std::uint32_t slot) {
  set(attributes_, slot, false);
}

bool KernelKnowledge::may_leave_out(std::uint32_t slot) {
  if (has_attributes(slot)) return true;
  const bool left_out = names_to_give_ == 0;
  if (!left_out) --names_to_give_;
  set(left_out_, slot, left_out);
  return left_out;
}

KernelKnowledge::Telling& KernelKnowledge::telling(std::uint32_t slot) {
  if (slot >= tellings_.size()) tellings_.resize(slot + 1);
  return tellings_[slot];
}

bool KernelKnowledge::tell(std::uint32_t slot) {
  if (slot < left_out_.size() && left_out_[slot]) {
    left_out_[slot] = false;
    ++asked_;
    is_asked_again_ = std::exchange(are_declined_, false);
    names_to_give_ = kNamesForOneAsked;
  }
  const Asking& asking = Asking::current();
  Telling& told = telling(slot);
  told.to = told.to == kNobody || told.to == asking.thread ? asking.thread : kSeveral;
  return told.changed_at <= asking.changes;
}

bool KernelKnowledge::changed(std::uint32_t slot) {
  forget_attributes(slot);
  Telling& told = telling(slot);
  const std::int32_t thread = Asking::current().thread;
  const bool only_this_thread = told.to == kNobody || (told.to == thread && thread != kUnknown);
  told = {kNobody, ++changes_so_far};
  return !only_this_thread;
}

void KernelKnowledge::is_new(std::uint32_t slot) {
  forget_attributes(slot);
  set(left_out_, slot, false);
  telling(slot) = {kNobody, 0};
}

void KernelKnowledge::listed(NodeId directory, bool from_start, std::uint32_t names) {
  Listing& listing = listings_[directory.value];
  if (from_start) listing = {.given_anew_at = listing.given_anew_at};
  listing.names += names;
  listing.complete = names == 0;
}

bool KernelKnowledge::Listing::is_outdated() const {
  // The kernel would never again keep a listing of which it is made to forget a part (Linux 6.18).
  return complete && outdated >= std::max(kFewOutdated, names / kNamesForOneAttribute);
}

bool KernelKnowledge::should_list_again(NodeId directory, std::uint32_t slot) {
  const auto listing = listings_.find(directory.value);
  if (listing == listings_.end() || !listing->second.complete) return false;
  ++listing->second.outdated;
  const bool is_unwanted = names_to_give_ == 0 && listing->second.given_anew_at == asked_;
  if (is_unwanted) {
    set(left_out_, slot, true);
    are_declined_ = true;
    return false;
  }
  if (!listing->second.is_outdated()) return false;
  listing->second = {.given_anew_at = asked_};
  return true;
}

std::vector<NodeId> KernelKnowledge::to_list_again() {
  std::vector<NodeId> directories;
  if (!std::exchange(is_asked_again_, false)) return directories;
  for (auto& [id, listing] : listings_) {
    if (!listing.is_outdated()) continue;
    directories.push_back(NodeId{id});
    listing = {.given_anew_at = asked_};
  }
  return directories;
}

void KernelKnowledge::forget_all() {
  attributes_.clear();
  left_out_.clear();
  tellings_.clear();
  listings_.clear();
}

}  // namespace okcvm::fusefs
