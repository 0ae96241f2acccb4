// Comparing snapshots with each other and with the workspace.

#include <fcntl.h>

#include "snapshots/difference.h"
#include "snapshots/git_store.h"
#include "snapshots/io.h"

namespace okcvm::snapshots {
namespace {

/// Of a live file; nothing if it is gone or has grown.
Result<std::optional<std::string>> read_live(const Disk& disk, const std::string& path, const Node& node) {
  if (node.type == NodeType::kLink) {
    auto parent = disk.open_directory(path.substr(0, path.rfind('/')));
    auto text = parent ? link_text(parent->get(), path.substr(path.rfind('/') + 1).c_str())
                       : Result<std::string>(fail(parent.error()));
    return text ? std::optional(std::move(*text)) : std::nullopt;
  }
  auto fd = disk.open(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_NOATIME | O_NOCTTY);
  if (!fd) return std::optional<std::string>();
  std::string bytes(kMaxText, '\0');
  auto got = read_at(fd->get(), bytes.data(), bytes.size(), 0);
  if (!got) return std::optional<std::string>();
  bytes.resize(*got);
  return std::optional(std::move(bytes));
}

}  // namespace

Result<std::vector<Difference>> GitStore::differences(Tree& before, Tree& after, bool after_is_live,
                                                      bool with_text) {
  auto deltas = compare(before, after, {RelPath()});
  if (!deltas) return fail(deltas.error());
  if (!with_text) return to_differences(*deltas, nullptr, nullptr);
  Repository& repository = *repository_;
  const ReadText stored = [&repository](const std::string&,
                                        const Node& node) -> Result<std::optional<std::string>> {
    auto bytes = repository.read(node.content, ObjectKind::kBlob);
    if (!bytes) return fail(bytes.error());
    return std::optional(std::move(*bytes));
  };
  auto disk = Disk::open(config_.workspace);
  if (!disk) return fail(disk.error());
  const ReadText live = [&disk](const std::string& path,
                                const Node& node) -> Result<std::optional<std::string>> {
    return *disk ? read_live(**disk, path, node) : std::optional<std::string>();
  };
  return to_differences(*deltas, stored, after_is_live ? live : stored);
}

Result<std::vector<Difference>> GitStore::show_locked(const std::string& snapshot, bool with_text) {
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
  return differences(*before, **after, false, with_text);
}

Result<std::vector<Difference>> GitStore::diff_locked(const std::string& from,
                                                      const std::optional<std::string>& to,
                                                      const ChangeSource& changes, bool with_text) {
  auto commit = commit_of(from);
  if (!commit) return fail(commit.error());
  auto before = open_tree(*commit);
  if (!before) return fail(before.error());
  if (!to) {
    auto live = look_at_workspace(changes, false, nullptr);
    if (!live) return fail(live.error());
    return differences(**before, **live, true, with_text);
  }
  auto other = commit_of(*to);
  if (!other) return fail(other.error());
  auto after = open_tree(*other);
  if (!after) return fail(after.error());
  return differences(**before, **after, false, with_text);
}

}  // namespace okcvm::snapshots
