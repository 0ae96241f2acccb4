// Noting what changes, before it changes.

#include <dirent.h>
#include <fcntl.h>

#include "fusefs/operations.h"

namespace okcvm::fusefs {

Result<std::string> Operations::name_of(const Node& node, const Directory& directory) {
  if (!node.name.empty()) return node.name;
  // The table keeps short names only. A long one is most likely in the backing file system's memory,
  if (const auto file = open_inode(node, O_PATH | O_NOFOLLOW)) {
    auto name = workspace_.name_of(file->get());
    struct stat status {};
    if (name && ::fstatat(directory.file.get(), name->c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
        status.st_ino == node.key.inode)
      return name;
  }
  // or it is looked for among all names of the directory.
  std::string name;
  auto listed = list(node.parent, 0, [&](const ListedName& row) {
    if (row.inode != node.key.inode) return true;
    name = row.name;
    return false;
  });
  if (!listed) return fail(listed.error());
  if (name.empty()) return fail_errno(ENOENT);
  return name;
}

/// A file that a restore moved may be in a directory that the kernel never heard of.
Result<RelPath> Operations::path_by_inode(const Node& node) {
  const auto file = open_inode(node, O_PATH | O_NOFOLLOW);
  if (!file) return fail(file.error());
  auto path = workspace_.path_of(file->get());
  if (!path) return path;
  const auto directory = workspace_.open_directory(path->parent());
  if (!directory) return fail(directory.error());
  struct stat status {};
  if (::fstatat(directory->get(), std::string(path->leaf()).c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0)
    return fail_errno(errno);
  if (status.st_ino != node.key.inode) return fail_errno(ENOENT);
  return path;
}

Result<RelPath> Operations::path_of(const Node& node) {
  if (is_fixed(node.id)) return RelPath::parse(node.name);
  if (node.is_directory()) {
    auto directory = directories_.open(node.id);
    if (!directory) return fail(directory.error());
    return directories_.path_of(**directory);
  }
  auto directory = directories_.open(node.parent);
  if (!directory) return path_by_inode(node);
  auto path = directories_.path_of(**directory);
  if (!path) return path;
  // Of several names the one that was known may be gone, and a look-up that came late may have noted a former
  // one.
  const auto text = name_of(node, **directory);
  struct stat status {};
  if (!text || ::fstatat((*directory)->file.get(), text->c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 ||
      status.st_ino != node.key.inode)
    return path_by_inode(node);
  auto name = Name::parse(*text);
  if (!name) return fail(name.error());
  return *path / *name;
}

bool Operations::records(const Directory& directory) const {
  return changes_.enabled() && rule_of(directory.zone).snapshotted;
}

std::optional<RelPath> Operations::path_to_record(const Node& node) {
  auto path = node.dead ? path_by_inode(node) : path_of(node);
  if (path) return std::move(*path);
  const auto status = status_of(node);
  const bool is_nameless = status ? status->st_nlink == 0 : status.error().errno_value == ESTALE;
  if (!is_nameless) changes_.lose_track("a changed file could not be named");
  return std::nullopt;
}

void Operations::record(const Node& known, ChangeKind kind) {
  if (!changes_.enabled() || !rule_of(known.zone).snapshotted) return;
  // A file without a name. A directory or link may be there still, though with another node by now.
  if (known.dead && S_ISREG(known.type)) return;
  const auto epoch = changes_.epoch();
  // Covered is the directory that a file is known in; it may have names elsewhere, or no longer one there.
  if (nodes_.is_recorded(known.id, epoch) || (known.is_directory() && nodes_.is_covered(known.id, epoch)))
    return;
  const Gate::Pass pass(moves_);
  const auto node = nodes_.find(known.id);  // where it is by now
  if (!node || (node->dead && S_ISREG(node->type))) return;
  const auto path = path_to_record(*node);
  if (!path) return;
  changes_.record(kind, *path);
  if (kind == ChangeKind::kContent) nodes_.set_recorded(node->id, epoch);
}

void Operations::record_entry(const Directory& directory, const char* name, ChangeKind kind) {
  if (!records(directory) || nodes_.is_covered(directory.id, changes_.epoch())) return;
  const Gate::Pass pass(moves_);
  note_entry(directory, name, kind);
}

void Operations::note_entry(const Directory& directory, const char* name, ChangeKind kind) {
  if (nodes_.is_covered(directory.id, changes_.epoch())) return;
  note_covered_entry(directory, name, kind);
}

void Operations::note_covered_entry(const Directory& directory, const char* name, ChangeKind kind) {
  if (!records(directory)) return;
  auto path = directories_.path_of(directory);
  auto leaf = Name::parse(name);
  if (path && leaf)
    changes_.record(kind, *path / *leaf);
  else
    changes_.lose_track("a changed folder could not be named");
}

void Operations::note_move(const Directory& from, const char* name, const Directory& to,
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

void Operations::record_rename(const Directory& from, const char* name, const Directory& to,
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
    nodes_.set_coverage(*source_id, epoch, NodeTable::Coverage::kWhole);
  else if (!may_be_elsewhere)
    nodes_.set_recorded(*source_id, epoch);
}

/// Who replays has followed it all the same, and notes what changes next under these names where it is not.
void Operations::record_refused_rename(const Directory& from, const char* name, const Directory& to,
                                       const char* new_name) {
  note_covered_entry(from, name, ChangeKind::kTree);
  note_covered_entry(to, new_name, ChangeKind::kTree);
}

std::vector<RelPath> Operations::written_now() {
  std::vector<RelPath> paths;
  for (const NodeId id : nodes_.open_for_writing()) {
    auto node = nodes_.find(id);
    if (!node || node->dead || !rule_of(node->zone).snapshotted) continue;
    if (auto path = path_to_record(*node)) paths.push_back(std::move(*path));
  }
  return paths;
}

}  // namespace okcvm::fusefs
