#pragma once

#include <sys/stat.h>

#include <functional>
#include <optional>
#include <vector>

#include "fusefs/change_log.h"
#include "fusefs/directories.h"
#include "fusefs/gate.h"
#include "fusefs/node_table.h"
#include "fusefs/types.h"
#include "policy/error.h"
#include "policy/rel_path.h"

namespace okcvm::fusefs {

/// Notes in a session's change log what changes in its snapshotted zones, to be called before it changes.
/// Left out are a file's changes once it counts as changed, and entries of a directory that the next snapshot
/// reads whole (NodeTable::Coverage). What cannot be named makes a gap in the log. Thread-safe.
class ChangeRecorder final {
 public:
  /// Where a node is now; nothing once it has no name any more.
  using Locate = std::function<Result<std::optional<RelPath>>(const Node&)>;
  ChangeRecorder(ChangeLog& changes, NodeTable& nodes, Directories& directories, Locate locate);

  /// Passed while a change is noted under its path, or an inode where it was found; closed while names move:
  /// what is noted after a rename was noted must be named as it is after that.
  Gate& moves(Zone zone) { return moves_.to(zone); }

  /// A file's bytes or attributes.
  void record(const Node& node, ChangeKind kind);
  void record_entry(const Directory& directory, const char* name, ChangeKind kind = ChangeKind::kEntry);
  /// While moves() is closed. `source`: the inode that is moved; renameat2(2)'s flags.
  void record_rename(const Directory& from, const char* name, const Directory& to, const char* new_name,
                     const struct stat& source, unsigned flags);
  /// It was recorded, but came to nothing.
  void record_refused_rename(const Directory& from, const char* name, const Directory& to,
                             const char* new_name);
  /// What has just got its first name counts as changed: no more is noted of it, nor of what is in it.
  void made(NodeId id, mode_t mode);
  /// No more is noted of what is in it, for all of it is recorded.
  void read_whole(NodeId directory);

  /// The files open for writing, by path.
  std::vector<RelPath> written_now();

 private:
  bool records(const Directory& directory) const;
  /// Makes a gap if the node has a name that cannot be told.
  std::optional<RelPath> path_to_record(const Node& node);
  /// As record_entry, for a caller that keeps names from moving.
  void note_entry(const Directory& directory, const char* name, ChangeKind kind);
  /// The same, even in a directory that will be read whole.
  void note_covered_entry(const Directory& directory, const char* name, ChangeKind kind);
  void note_move(const Directory& from, const char* name, const Directory& to, const char* new_name);

  ChangeLog& changes_;
  NodeTable& nodes_;
  Directories& directories_;
  const Locate locate_;
  Gates moves_;
};

}  // namespace okcvm::fusefs
