// Names that go by another way than these operations: a restore takes them, or the control socket.

#include <fcntl.h>

#include "fusefs/operations.h"

namespace okcvm::fusefs {

void Operations::names_will_go(const std::vector<RelPath>& paths) {
  // Somebody may stand in each, have it open, or bound elsewhere, which we cannot tell.
  constexpr int kMostHeld = 2048;  // of directories, and of others
  int directories_held = 0, others_held = 0;
  GoingNames::Statuses last;
  RelPath open_on;
  Result<FileDescriptor> directory = fail_errno(ENOENT);
  std::optional<NodeId> place;
  for (const RelPath& path : paths) {
    if (path.depth() < 2) continue;  // zones stay
    if (auto parent = path.parent(); parent != open_on) {
      directory = workspace_.open_directory(parent);
      place = directory ? node_of_directory(parent, directory->get()) : std::nullopt;
      open_on = std::move(parent);
    }
    const std::string name(path.leaf());
    struct stat status {};
    if (!directory || ::fstatat(directory->get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
    const auto id = nodes_.id_of({kWorkspaceVolume, status.st_ino});
    if (!id) continue;
    const OpenState state = nodes_.open_state(*id);
    const bool is_served = S_ISREG(status.st_mode) && state.opens && !state.backing_id;
    int& so_many_held = S_ISDIR(status.st_mode) ? directories_held : others_held;
    FileDescriptor held;
    if (is_served || so_many_held++ < kMostHeld) {
      held = FileDescriptor(::openat(directory->get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
      last.emplace_back(*id, status);
    }
    if (held && !is_served && !may_be_held(held)) held.reset();
    if (held && is_served) orphans_.keep(*id, zone_named(path.top()), held.get());
    if (place) going_.add_name(*place, name, *id);
    going_.add(*id, {status, std::move(held), stays_in_anywhere(directory->get(), name.c_str(), status)});
  }
  state_.note_going(last);
}

void Operations::recall_going() {
  for (const auto& [id, status] : state_.going_statuses()) going_.add(id, {status, {}});
}

std::optional<NodeId> Operations::node_of_directory(const RelPath& path, int directory) const {
  if (path.depth() == 1) return node_of(zone_named(path.top()));
  struct stat status {};
  if (::fstat(directory, &status) != 0) return std::nullopt;
  return nodes_.id_of({kWorkspaceVolume, status.st_ino});
}

void Operations::names_went() {
  std::vector<Node> directories;  // that are gone
  for (auto& [id, going] : going_.take())
    if (auto gone = may_have_lost_names(id, std::move(going)); gone && gone->is_directory())
      directories.push_back(std::move(*gone));
  // The kernel was told of the topmost names. Who stands below them is to hear (getcwd) that his went, too.
  for (const Node& directory : directories)
    if (const auto parent = nodes_.find(directory.parent); parent && parent->dead)
      kernel_.entry(directory.parent, directory.name);
  going_.clear();
}

void Operations::forget_when_told(NodeId parent, const std::string& name) {
  kernel_.after_changes_in(parent, [this, parent, name] { is_looked_up(parent, name.c_str()); });
}

bool Operations::has_another_name(NodeId parent, const std::string& name) {
  const auto id = going_.at_name(parent, name.c_str());
  const auto node = id ? nodes_.find(*id) : fail_errno(ENOENT);
  if (!node || !node->is_directory()) return false;
  const auto inode = open_inode(*node, O_PATH | O_NOFOLLOW);
  struct stat status {};
  return inode && ::fstat(inode->get(), &status) == 0 && status.st_nlink > 0;
}

std::optional<Node> Operations::may_have_lost_names(NodeId id, GoingInodes::Going going) {
  auto node = nodes_.find(id);
  if (!node || node->dead) return std::nullopt;
  kernel_.inode(id);
  if (!going.inode)
    if (auto found = open_inode(*node, O_PATH | O_NOFOLLOW)) going.inode = std::move(*found);
  struct stat now {};
  if (going.inode && ::fstat(going.inode.get(), &now) == 0 && now.st_nlink > (orphans_.keeps(id) ? 1 : 0)) {
    orphans_.drop(id);
    return std::nullopt;
  }
  nodes_.unlinked(node->key, node->parent, node->name, true);
  nodes_.note_last_status(id, going.status);
  directories_.drop(id);
  if (going.inode) removed_.hold(id, std::move(going.inode));
  make_room(id, node->key.volume);
  return std::move(*node);
}

}  // namespace okcvm::fusefs
