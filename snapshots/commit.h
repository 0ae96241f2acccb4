#pragma once

#include <optional>
#include <string>

#include "policy/error.h"
#include "snapshots/batch.h"
#include "snapshots/repository.h"
#include "snapshots/store.h"
#include "snapshots/tree.h"

namespace okcvm::snapshots {

/// Makes ids from names that are known to be snapshots.
class StoreAccess {
 public:
  static SnapshotId id(const Oid& oid) { return SnapshotId(oid.hex()); }
};

/// A commit of ours, taken apart.
struct Commit {
  Oid oid;
  std::optional<Oid> parent;
  std::string label;
  timespec created_at{};
  SnapshotStats stats;
  std::vector<RelPath> in_flight;
  TreeNames names;
};

/// Totals as the summary of a commit has them.
Totals totals_of(const Commit& commit);

/// Writes the commit object and what it stands on:
///
///     workspace/…         what git can show: zones, folders, files, links
///     metadata/tree/…     per folder, what it cannot (snapshots/folder_record.h)
///     metadata/links      which names are one file; absent without hard links
///     metadata/left-out   sockets, FIFOs and devices; absent without
///     metadata/summary    counts, exact time, exact label
///
/// `commit.oid` is ignored. Answers it.
Result<Oid> write_commit(Batch& batch, const Commit& commit);

/// `corrupt` if it is not a commit of ours.
Result<Commit> read_commit(const Repository& repository, const Oid& oid);

/// The parent alone, for walking.
Result<std::optional<Oid>> read_parent(const Repository& repository, const Oid& oid);

/// Fills in everything but `unchanged`, which belongs to the moment.
Result<Snapshot> to_snapshot(const Repository& repository, const Commit& commit);

}  // namespace okcvm::snapshots
