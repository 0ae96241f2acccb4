#pragma once

#include <optional>
#include <vector>

#include "snapshots/oid.h"

namespace okcvm::snapshots {

/// The ids of a repository's snapshots in the order in which they were taken. Each commit names the one
/// before it, too, but one that is lost does not. A lost or damaged ledger is written anew from the commits.
/// Text, a line each: the id, and a checksum of it and of the id before it (none in those of older daemons).
class Ledger final {
 public:
  struct Ids {
    std::vector<Oid> ids;  // oldest first; without those of damaged lines
    bool is_sound = true;
  };
  /// `own_folder` is borrowed.
  explicit Ledger(int own_folder) : own_folder_(own_folder) {}

  Ids all() const;
  /// After the one before it, if there is one. A ledger that does not end with that is of no use any more.
  void add(const Oid& snapshot, const std::optional<Oid>& before) const;
  void write(const std::vector<Oid>& newest_first) const;

 private:
  int own_folder_;
};

}  // namespace okcvm::snapshots
