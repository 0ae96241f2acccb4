#include "snapshots/delta.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "snapshots/oid.h"

namespace okcvm::snapshots {
namespace {

constexpr std::size_t kMostCopied = 0x10000;  // by one instruction, for readers of any age
constexpr std::size_t kMostInserted = 127;

std::size_t size_of(const Units& units) {
  std::size_t size = 0;
  for (const auto& unit : units) size += unit.size();
  return size;
}

class Instructions final {
 public:
  Instructions(std::size_t base_size, std::size_t target_size) {
    append_size(base_size);
    append_size(target_size);
  }

  void copy(std::size_t from, std::size_t size) {
    if (copied_ == 0 || from != from_ + copied_) {
      flush();
      from_ = from;
    }
    copied_ += size;
  }
  void insert(std::string_view bytes) {
    if (copied_ > 0) flush();
    inserted_ += bytes;
  }
  std::string finish() {
    flush();
    return std::move(bytes_);
  }

 private:
  void append_size(std::size_t size) {
    for (; size > 0x7f; size >>= 7) bytes_ += static_cast<char>(size | 0x80);
    bytes_ += static_cast<char>(size);
  }
  void append_copy(std::size_t from, std::size_t size) {
    const std::size_t start = bytes_.size();
    unsigned given = 0x80;  // which bytes of both numbers follow: those that are not zero
    bytes_ += '\0';
    const auto append = [&](std::size_t number, unsigned first, int most) {
      for (int i = 0; i < most; ++i, number >>= 8)
        if (number & 0xff) {
          given |= first << i;
          bytes_ += static_cast<char>(number & 0xff);
        }
    };
    append(from, 0x01, 4);
    append(size == kMostCopied ? 0 : size, 0x10, 2);
    bytes_[start] = static_cast<char>(given);
  }
  void flush() {
    while (copied_ > 0) {
      const auto size = std::min(copied_, kMostCopied);
      append_copy(from_, size);
      from_ += size;
      copied_ -= size;
    }
    for (std::string_view rest = inserted_; !rest.empty();) {
      const auto piece = rest.substr(0, kMostInserted);
      bytes_ += static_cast<char>(piece.size());
      bytes_ += piece;
      rest.remove_prefix(piece.size());
    }
    inserted_.clear();
  }

  std::string bytes_;
  // What comes next is one of both.
  std::size_t from_ = 0, copied_ = 0;
  std::string inserted_;
};

}  // namespace

Units tree_units(std::string_view tree) {
  Units units;
  while (!tree.empty()) {
    const auto name_end = tree.find('\0');
    if (name_end == tree.npos || tree.size() - name_end - 1 < Oid::kSize) return {};
    units.push_back(tree.substr(0, name_end + 1 + Oid::kSize));
    tree.remove_prefix(units.back().size());
  }
  return units;
}

Units block_units(std::string_view bytes) {
  constexpr std::size_t kBlock = 4096;
  Units units;
  for (; !bytes.empty(); bytes.remove_prefix(units.back().size())) units.push_back(bytes.substr(0, kBlock));
  return units;
}

Units line_units(std::string_view text) {
  Units units;
  while (!text.empty()) {
    units.push_back(text.substr(0, std::min(text.find('\n'), text.size() - 1) + 1));
    text.remove_prefix(units.back().size());
  }
  return units;
}

std::string delta_between(const Units& base, const Units& target) {
  Instructions instructions(size_of(base), size_of(target));
  // In order: a hash table takes quadratic time where somebody chose units that collide.
  std::vector<std::pair<std::string_view, std::size_t>> places;
  const auto place_of = [&](std::string_view unit) {
    if (places.empty()) {
      places.reserve(base.size());
      for (std::size_t i = 0; i < base.size(); ++i) places.emplace_back(base[i], i);
      std::sort(places.begin(), places.end());
    }
    const auto found = std::lower_bound(places.begin(), places.end(), std::pair(unit, std::size_t{0}));
    return found == places.end() || found->first != unit ? base.size() : found->second;
  };
  std::size_t next = 0;  // most units follow in the base as they do here, or after one that was replaced
  for (const auto& unit : target) {
    std::size_t at = next;
    if (at < base.size() && base[at] != unit) ++at;
    if (at >= base.size() || base[at] != unit) at = place_of(unit);
    if (at == base.size()) {
      instructions.insert(unit);
      continue;
    }
    instructions.copy(static_cast<std::size_t>(base[at].data() - base.front().data()), unit.size());
    next = at + 1;
  }
  return instructions.finish();
}

}  // namespace okcvm::snapshots
