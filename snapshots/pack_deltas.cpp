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
constexpr std::size_t kShortLine = 8;              // bytes; those of records and lists are longer

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

/// The start of a folder's record (folder_record.h), or of a list of names that are one file (path_table.h).
bool starts_a_list(std::string_view text) {
  constexpr std::string_view kRecordStart = ". ";
  if (text.starts_with(kRecordStart)) return true;
  const auto number = text.find_first_not_of("0123456789");
  return number != 0 && number != text.npos && text[number] == ' ';
}

/// None of a blob that cannot be one of those: of that there may be any number of lines.
Units units_of(std::string_view bytes, ObjectKind kind) {
  if (kind == ObjectKind::kTree) return tree_units(bytes);
  const auto lines = static_cast<std::size_t>(std::count(bytes.begin(), bytes.end(), '\n'));
  return lines > bytes.size() / kShortLine ? Units() : line_units(bytes);
}

/// The object, if it is a tree or may be a list.
std::optional<std::string> read_list(std::string_view entry, const PackEntryHead& head) {
  if (entry.size() < kWorthIt || head.size > kLargest || !head.kind || *head.kind == ObjectKind::kCommit)
    return std::nullopt;
  if (*head.kind == ObjectKind::kBlob) {
    constexpr std::size_t kLongestStart = 11;  // bytes: a number of 32 bits and a space
    const auto start = inflate_entry(entry, head, kLongestStart);
    if (!start || !starts_a_list(*start)) return std::nullopt;
  }
  auto bytes = inflate_entry(entry, head, head.size);
  if (!bytes) return std::nullopt;
  return std::move(*bytes);
}

}  // namespace

PackEntry PackDeltas::shortened(const PackEntry& whole, std::size_t deltas) {
  const auto head = head_of(whole.bytes);
  auto bytes = head ? read_list(whole.bytes, *head) : std::nullopt;
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
    return delta ? std::move(*delta) : whole;
  }
  remembered_ += object.bytes.size() + object.units.size() * sizeof object.units.front();
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
