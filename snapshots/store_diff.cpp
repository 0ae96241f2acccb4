// Comparing snapshots with each other and with the workspace.

#include <fcntl.h>

#include "snapshots/difference.h"
#include "snapshots/git_store.h"
#include "snapshots/io.h"

namespace okcvm::snapshots {
namespace {

/// A folder has to be searched on the way to a text, a file read; a link's text is anybody's.
bool lets(const Caller& reader, const struct stat& status) {
  return may(reader, status, S_ISDIR(status.st_mode) ? X_OK : S_ISLNK(status.st_mode) ? 0 : R_OK);
}

/// Judged by what the snapshot says of the file and of the folders that it lies in.
bool may_read(const Caller& reader, const Node& node) {
  for (const Node* entry = &node; entry->parent; entry = entry->parent) {
    if (!lets(reader, status_of(*entry))) return false;
  }
  return true;
}

/// An entry that the reader's rights let him open; no descriptor if they do not, or it is gone.
FileDescriptor open_for(const Caller& reader, int folder, const std::string& name, int flags) {
  FileDescriptor entry(::openat(folder, name.c_str(), flags | O_NOFOLLOW | O_CLOEXEC));
  struct stat status {};
  if (!entry || ::fstat(entry.get(), &status) != 0 || !lets(reader, status)) return FileDescriptor();
  return entry;
}

/// Of a live file; nothing if it is gone, has grown, or may not be read. Judged by what is opened, folder by
/// folder: programs can put something else in its place meanwhile.
std::optional<std::string> read_live(const Caller& reader, const Disk& disk, const RelPath& path,
                                     const Node& node) {
  FileDescriptor held;
  int folder = disk.root();
  const RelPath parent = path.parent();
  for (const auto part : parent.components()) {
    held = open_for(reader, folder, std::string(part), O_PATH | O_DIRECTORY);
    if (!held) return std::nullopt;
    folder = held.get();
  }
  const std::string name(path.leaf());
  if (node.type == NodeType::kLink) {
    auto text = link_text(folder, name.c_str());
    return text ? std::optional(std::move(*text)) : std::nullopt;
  }
  const auto file = open_for(reader, folder, name, O_RDONLY | O_NONBLOCK | O_NOATIME | O_NOCTTY);
  if (!file) return std::nullopt;
  std::string bytes(kMaxText, '\0');
  auto got = read_at(file.get(), bytes.data(), bytes.size(), 0);
  if (!got) return std::nullopt;
  bytes.resize(*got);
  return bytes;
}

}  // namespace

Result<std::vector<Difference>> GitStore::differences(Tree& before, Tree& after, AfterIs after_is,
                                                      const std::optional<Caller>& reader,
                                                      const Progress& progress) {
  auto deltas = compare(before, after, {RelPath()});
  if (!deltas) return fail(deltas.error());
  if (!reader) return to_differences(*deltas);
  const Repository& repository = *repository_;
  const ReadText stored = [&](const RelPath&, const Node& node) -> Result<std::optional<std::string>> {
    if (!may_read(*reader, node)) return std::optional<std::string>();
    auto bytes = repository.read(node.content, ObjectKind::kBlob);
    if (!bytes) return fail(bytes.error());
    return std::optional(std::move(*bytes));
  };
  auto disk = Disk::open(config_.workspace);
  if (!disk) return fail(disk.error());
  const ReadText live = [&](const RelPath& path, const Node& node) -> Result<std::optional<std::string>> {
    return *disk ? read_live(*reader, **disk, path, node) : std::nullopt;
  };
  const Texts texts{stored, after_is == AfterIs::kLive ? live : stored, progress};
  return to_differences(*deltas, &texts);
}

Result<std::vector<Difference>> GitStore::show_locked(const std::string& snapshot,
                                                      const std::optional<Caller>& reader,
                                                      const Progress& progress) {
  auto commit = commit_of(snapshot);
  if (!commit) return fail(commit.error());
  auto after = open_tree(*commit);
  if (!after) return fail(after.error());
  auto before = std::make_unique<Tree>(nullptr);
  if (commit->parent) {
    auto parent = read_commit(*repository_, *commit->parent);
    if (!parent) return fail(parent.error());
    auto opened = open_tree(*parent);
    if (!opened) return fail(opened.error());
    before = std::move(*opened);
  }
  return differences(*before, **after, AfterIs::kStored, reader, progress);
}

Result<std::vector<Difference>> GitStore::diff_locked(const std::string& from,
                                                      const std::optional<std::string>& to,
                                                      const ChangeSource& changes,
                                                      const std::optional<Caller>& reader,
                                                      const Progress& progress) {
  auto commit = commit_of(from);
  if (!commit) return fail(commit.error());
  auto before = open_tree(*commit);
  if (!before) return fail(before.error());
  if (!to) {
    auto live = look_at_workspace(changes, Look::kAtChanges, progress);
    if (!live) return fail(live.error());
    return differences(**before, **live, AfterIs::kLive, reader, progress);
  }
  auto other = commit_of(*to);
  if (!other) return fail(other.error());
  auto after = open_tree(*other);
  if (!after) return fail(after.error());
  return differences(**before, **after, AfterIs::kStored, reader, progress);
}

}  // namespace okcvm::snapshots
