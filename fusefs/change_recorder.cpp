#include "fusefs/change_recorder.h"

#include <fcntl.h>

namespace okcvm::fusefs {

ChangeRecorder::ChangeRecorder(ChangeLog& changes, NodeTable& nodes, Directories& directories, Locate locate)
    : changes_(changes), nodes_(nodes), directories_(directories), locate_(std::move(locate)) {}

bool ChangeRecorder::records(const Directory& directory) const {
  return changes_.enabled() && rule_of(directory.zone).snapshotted;
}

std::optional<RelPath> ChangeRecorder::path_to_record(const Node& node) {
  auto path = locate_(node);
  if (path) return std::move(*path);
  changes_.lose_track("a changed file could not be named");
  return std::nullopt;
}

void ChangeRecorder::record(const Node& known, ChangeKind kind) {
  if (!changes_.enabled() || !rule_of(known.zone).snapshotted) return;
  // A file without a name. A directory or link may be there still, though with another node by now.
  if (known.dead && S_ISREG(known.type)) return;
  const auto epoch = changes_.epoch();
  // Covered is the directory that a file is known in; it may have names elsewhere, or no longer one there.
  if (nodes_.is_recorded(known.id, epoch) || (known.is_directory() && nodes_.is_covered(known.id, epoch)))
    return;
  const Gate::Pass pass(moves_.managed);
  const auto node = nodes_.find(known.id);  // where it is by now
  if (!node || (node->dead && S_ISREG(node->type))) return;
  const auto path = path_to_record(*node);
  if (!path) return;
  changes_.record(kind, *path);
  if (kind == ChangeKind::kContent) nodes_.set_recorded(node->id, epoch);
}

void ChangeRecorder::record_entry(const Directory& directory, const char* name, ChangeKind kind) {
  if (!records(directory) || nodes_.is_covered(directory.id, changes_.epoch())) return;
  const Gate::Pass pass(moves_.managed);
  note_entry(directory, name, kind);
}

void ChangeRecorder::note_entry(const Directory& directory, const char* name, ChangeKind kind) {
  if (nodes_.is_covered(directory.id, changes_.epoch())) return;
  note_covered_entry(directory, name, kind);
}

void ChangeRecorder::note_covered_entry(const Directory& directory, const char* name, ChangeKind kind) {
  if (!records(directory)) return;
  auto path = directories_.path_of(directory);
  auto leaf = Name::parse(name);
  if (path && leaf)
    changes_.record(kind, *path / *leaf);
  else
    changes_.lose_track("a changed folder could not be named");
}

void ChangeRecorder::note_move(const Directory& from, const char* name, const Directory& to,
                               const char* new_name) {
  auto from_path = directories_.path_of(from);
  auto to_path = directories_.path_of(to);
  auto leaf = Name::parse(name);
  auto new_leaf = Name::parse(new_name);
  if (from_path && to_path && leaf && new_leaf)
    changes_.record(ChangeKind::kMoved, *from_path / *leaf, *to_path / *new_leaf);
  else
    changes_.lose_track("a renamed file could not be named");
}

void ChangeRecorder::record_rename(const Directory& from, const char* name, const Directory& to,
                                   const char* new_name, const struct stat& source, unsigned flags) {
  if (!records(from)) return;
  const auto epoch = changes_.epoch();
  const auto source_id = nodes_.id_of({from.volume, source.st_ino});
  // A file may be known by another of its names.
  const bool from_covered =
      nodes_.is_covered(source_id && S_ISDIR(source.st_mode) ? *source_id : from.id, epoch);
  const bool to_covered = nodes_.is_covered(to.id, epoch);
  // Of an inode with a name elsewhere that was snapshotted, what is done under this one is done there, too:
  // whoever replays must be able to follow it.
  const bool may_be_elsewhere = S_ISDIR(source.st_mode) || source.st_nlink > 1;
  if (flags & RENAME_EXCHANGE) {
    // Two files change places: rare enough to be read again, whichever of them was covered.
    note_covered_entry(from, name, ChangeKind::kTree);
    note_covered_entry(to, new_name, ChangeKind::kTree);
    return;
  }
  if (!from_covered || may_be_elsewhere) note_move(from, name, to, new_name);
  if (!from_covered) {
    if (to_covered && source_id) nodes_.set_coverage(*source_id, epoch, NodeTable::Coverage::kKnown);
    return;
  }
  if (to_covered) return;
  // It was never snapshotted under its former name: it is read where it comes to.
  note_entry(to, new_name, S_ISDIR(source.st_mode) ? ChangeKind::kTree : ChangeKind::kEntry);
  if (!source_id) return;
  if (S_ISDIR(source.st_mode))
    read_whole(*source_id);
  else if (!may_be_elsewhere)
    nodes_.set_recorded(*source_id, epoch);
}

/// Who replays has followed it all the same, and notes what changes next under these names where it is not.
void ChangeRecorder::record_refused_rename(const Directory& from, const char* name, const Directory& to,
                                           const char* new_name) {
  note_covered_entry(from, name, ChangeKind::kTree);
  note_covered_entry(to, new_name, ChangeKind::kTree);
}

void ChangeRecorder::made(NodeId id, mode_t mode) {
  if (S_ISDIR(mode))
    read_whole(id);
  else
    nodes_.set_recorded(id, changes_.epoch());
}

void ChangeRecorder::read_whole(NodeId directory) {
  nodes_.set_coverage(directory, changes_.epoch(), NodeTable::Coverage::kWhole);
}

std::vector<RelPath> ChangeRecorder::written_now() {
  std::vector<RelPath> paths;
  for (const NodeId id : nodes_.open_for_writing()) {
    auto node = nodes_.find(id);
    if (!node || node->dead || !rule_of(node->zone).snapshotted) continue;
    if (auto path = path_to_record(*node)) paths.push_back(std::move(*path));
  }
  return paths;
}

}  // namespace okcvm::fusefs
