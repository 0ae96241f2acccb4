#pragma once

#include <optional>
#include <vector>

#include "snapshots/oid.h"

namespace okcvm::snapshots {

/// The ids of a repository's snapshots in the order in which they were taken. Each commit names the one
/// before it, too, but one that is lost does not. A lost ledger is written anew from the commits; what of it
/// is no id is passed over.
class Ledger final {
 public:
  /// `own_folder` is borrowed.
  explicit Ledger(int own_folder) : own_folder_(own_folder) {}

  /// Oldest first.
  std::vector<Oid> all() const;
  /// After the one before it, if there is one. A ledger that does not end with that is of no use any more.
  void add(const Oid& snapshot, const std::optional<Oid>& before) const;
  void write(const std::vector<Oid>& newest_first) const;

 private:
  int own_folder_;
};

}  // namespace okcvm::snapshots
