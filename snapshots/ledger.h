#pragma once

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

  bool is_there() const;
  /// Oldest first.
  std::vector<Oid> all() const;
  /// At the end of one that is there; `is_first`: begins it.
  void add(const Oid& snapshot, bool is_first) const;
  void write(const std::vector<Oid>& newest_first) const;

 private:
  int own_folder_;
};

}  // namespace okcvm::snapshots
