#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "snapshots/delta.h"
#include "snapshots/pack_entry.h"

namespace okcvm::snapshots {

/// Has the versions of a folder take the room of what changed from one to the next: of the trees and records
/// of folders (`folder_record`) that go into one pack, those that are like another become deltas of it. What
/// a delta is made of is always a whole object. Not thread-safe.
class PackDeltas final {
 public:
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
  /// What `delta` tells best; null if nothing is like it.
  Base* find_base(const Units& units, ObjectKind kind, std::string& delta);
  void remember(const Oid& oid, ObjectKind kind, std::string bytes, std::size_t deltas);

  std::deque<Base> bases_;
  std::size_t remembered_ = 0;  // bytes
  std::size_t compared_ = 0;    // bytes
  std::unordered_map<std::size_t, std::vector<Base*>> like_;
};

}  // namespace okcvm::snapshots
