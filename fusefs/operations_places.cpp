// Directories that a restore put elsewhere, behind the kernel's back. Until the kernel has looked for such a
// directory where it is now, it has it where it was, below whatever that has become meanwhile: whoever
// renames what it was in takes it along. How deep links in it are for the kernel is not known until then, so
// their texts are judged as at the least deep place that there is, those that the kernel has already among
// them.

#include <sys/stat.h>

#include <algorithm>

#include "fusefs/operations.h"

namespace okcvm::fusefs {

bool Operations::may_go_on(NodeId directory) {
  nodes_.set_misplaced(directory);  // first: from here on, what links in it may say depends on that
  const auto links = nodes_.bound_links_from(directory);
  const bool stay_in = std::all_of(links.begin(), links.end(), [this](NodeId id) {
    const auto link = nodes_.find(id);
    if (!link || link->dead) return true;  // nothing leads to it
    struct stat status {};
    const auto text = link_text(*link, status);
    // One that a restore has just removed cannot be read, but the kernel may still follow it.
    return text ? stays_in(*link, *text, status) : going_.is_harmless(id);
  });
  if (stay_in) return true;
  // All of it: what stayed the same below would be in two places, as deep as in the one and as linked as in
  // the other.
  for (const NodeId id : nodes_.part_with_all(directory)) {
    directories_.drop(id);
    listings_.drop(id);
  }
  return false;
}

std::optional<NodeId> Operations::take_in(NodeId parent, const char* name) {
  const auto place = directories_.open(parent);
  struct stat status {};
  if (!place || !rule_of((*place)->zone).snapshotted || (*place)->look_at(name, status) != 0 ||
      !S_ISDIR(status.st_mode))
    return std::nullopt;
  const InodeKey key{(*place)->volume, status.st_ino};
  const auto id = nodes_.id_of(key);
  const auto node = id ? nodes_.find(*id) : Result<Node>(fail_errno(ENOENT));
  const auto volume = workspace_.volume(key.volume);
  if (!node || !volume || !volume->leads_to(node->handle, (*place)->file.get(), name)) return std::nullopt;
  if (node->parent == parent) return node->name == name ? std::nullopt : id;
  if (!may_go_on(*id)) return std::nullopt;
  nodes_.moved(key, parent, (*place)->zone, name);
  return id;
}

void Operations::take_in_all() {
  for (const Node& node : nodes_.directories()) {
    if (is_fixed(node.id) || node.dead || !rule_of(node.zone).snapshotted) continue;
    const auto path = path_of(node);
    const auto parent = nodes_.find(node.parent);
    const auto place = parent ? path_of(*parent) : fail(parent.error());
    if (!path || !place || path->parent() != *place) may_go_on(node.id);
  }
}

bool Operations::have_found(NodeId directory) {
  const auto asked = nodes_.misplacements();  // first: what is misplaced from here on is asked for anew
  const auto node = nodes_.find(directory);
  const auto path = node ? path_of(*node) : fail(node.error());
  if (!path) return false;
  std::function<void(bool)> then;
  if (nodes_.is_misplaced(directory)) {
    if (!searches_.begin(directory, asked)) return true;
    then = [this, directory, asked](bool is_found) {
      if (is_found) nodes_.set_found(directory, asked);
      searches_.end(directory, asked);
    };
  }
  kernel_.look_up(*path, shown_inode(node->key.volume, node->key.inode), std::move(then));
  return true;
}

void Operations::have_misplaced_found() {
  for (const Node& node : nodes_.directories())
    if (nodes_.is_misplaced(node.id)) have_found(node.id);
}

void Operations::let_be_found(NodeId id) {
  std::vector<NodeId> asked;
  for (const NodeId directory : nodes_.misplaced_from(id))
    if (have_found(directory)) asked.push_back(directory);
  searches_.let_end(asked, [&] { return !is_misplaced(id); });
}

}  // namespace okcvm::fusefs
