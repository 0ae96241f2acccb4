#include "snapshots/pack_deltas.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <string_view>
#include <utility>

namespace okcvm::snapshots {
namespace {

constexpr std::size_t kWorthIt = 256;              // bytes; of a smaller one a delta saves little
constexpr std::uint64_t kLargest = 16 << 20;       // bytes
constexpr std::size_t kMostRemembered = 32 << 20;  // bytes
constexpr std::size_t kMostCompared = 512 << 20;   // bytes, for one pack: a second, or a few
constexpr std::size_t kTries = 4;                  // with the same number
constexpr std::size_t kMostDeltas = 40;            // of one object, which are all lost with it
constexpr std::size_t kMostRead = 512 << 20;       // bytes of blobs, for one pack
constexpr std::size_t kShortLine = 8;              // bytes

/// Two numbers, of which versions of a folder mostly have one in common: the least and the greatest hash of a
/// unit, which only go with that unit.
PackDeltas::Likeness likeness(const Units& units) {
  std::size_t least = std::numeric_limits<std::size_t>::max(), greatest = 0;
  for (const auto& unit : units) {
    const auto hash = std::hash<std::string_view>()(unit);
    least = std::min(least, hash);
    greatest = std::max(greatest, hash);
  }
  return {least, greatest};
}

/// What can be inserted or left out: a tree's entries, a text's lines. Elsewhere, and where lines are too
/// many for their length, pieces that stay where they are.
Units units_of(std::string_view bytes, ObjectKind kind) {
  if (kind == ObjectKind::kTree) return tree_units(bytes);
  const auto lines = static_cast<std::size_t>(std::count(bytes.begin(), bytes.end(), '\n'));
  const bool is_text = bytes.find('\0') == bytes.npos && lines > 0 && lines <= bytes.size() / kShortLine;
  return is_text ? line_units(bytes) : block_units(bytes);
}

}  // namespace

PackEntry PackDeltas::shortened(const PackEntry& whole, std::size_t deltas) {
  const auto head = head_of(whole.bytes);
  if (!head || !head->kind || *head->kind == ObjectKind::kCommit) return whole;
  if (whole.bytes.size() < kWorthIt || head->size > kLargest) return whole;
  if (*head->kind == ObjectKind::kBlob && (read_ += head->size) > kMostRead) return whole;
  auto bytes = inflate_entry(whole.bytes, *head, head->size);
  if (!bytes) return whole;
  if (remembered_ > kMostRemembered) {
    like_.clear();
    bases_.clear();
    remembered_ = 0;
  }
  Base& object = bases_.emplace_back(Base{whole.oid, *head->kind, std::move(*bytes), {}, deltas});
  object.units = units_of(object.bytes, object.kind);
  const auto numbers = likeness(object.units);
  auto delta = deltas == 0 ? as_delta(object, numbers, whole.bytes.size() / 2) : std::nullopt;
  if (delta || object.units.empty()) {
    bases_.pop_back();
    if (!delta) return whole;
    return std::move(*delta);
  }
  remembered_ += object.bytes.size() + object.units.size() * sizeof(Units::value_type);
  for (const auto number : numbers) {
    auto& others = like_[number];
    if (others.size() == kTries) others.erase(others.begin());
    others.push_back(&object);
  }
  return whole;
}

std::optional<PackEntry> PackDeltas::as_delta(const Base& object, const Likeness& numbers, std::size_t most) {
  Base* best = nullptr;
  std::string delta;
  for (const auto number : numbers) {
    const auto found = like_.find(number);
    if (found == like_.end()) continue;
    for (Base* const base : found->second) {
      if (base == best || base->kind != object.kind || base->deltas >= kMostDeltas) continue;
      if ((compared_ += base->bytes.size()) > kMostCompared) break;
      auto other = delta_between(base->units, object.units);
      if (best && other.size() >= delta.size()) continue;
      best = base;
      delta = std::move(other);
    }
  }
  if (!best) return std::nullopt;
  auto entry = make_delta_entry(object.oid, best->oid, delta);
  if (!entry || entry->bytes.size() > most) return std::nullopt;
  ++best->deltas;
  return std::move(*entry);
}

}  // namespace okcvm::snapshots
