#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "snapshots/delta.h"
#include "snapshots/pack_entry.h"

namespace okcvm::snapshots {

/// Has the versions of a folder, or a file, take the room of what changed from one to the next: of the trees
/// and blobs that go into one pack, those that are like another become deltas of it. What a delta is made of
/// is always a whole object. Not thread-safe.
class PackDeltas final {
 public:
  /// Two numbers that tell which objects may be versions of one folder.
  using Likeness = std::array<std::size_t, 2>;

  /// What to write for an object that stands whole in a pack, where `deltas` others are made of it.
  PackEntry shortened(const PackEntry& whole, std::size_t deltas);

 private:
  struct Base {
    Oid oid;
    ObjectKind kind;
    std::string bytes;
    Units units;  // of `bytes`
    std::size_t deltas;
  };
  /// Of what tells it best; none that takes more than `most` bytes.
  std::optional<PackEntry> as_delta(const Base& object, const Likeness& numbers, std::size_t most);

  std::deque<Base> bases_;
  std::size_t remembered_ = 0;  // bytes
  std::size_t compared_ = 0;    // bytes
  std::size_t read_ = 0;        // bytes of blobs
  std::map<std::size_t, std::vector<Base*>> like_;
};

}  // namespace okcvm::snapshots
