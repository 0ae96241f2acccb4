// Which names of a snapshot are one file.

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <set>

#include "policy/zones.h"
#include "snapshots/capture.h"

namespace okcvm::snapshots {

/// Groups what was captured by inode, with those members of the former groups that are still the same file. A
/// change through one name is a change of all.
Result<void> Capture::join_links() {
  const auto former = linked_.empty() ? LinkGroups() : tree_.links().groups();
  for (const auto& path : alone_) tree_.links().remove(path);
  if (linked_.empty()) return {};
  std::set<std::uint32_t> groups;
  for (auto& [number, inode] : linked_) {
    inode.known.insert(inode.paths.begin(), inode.paths.end());
    for (const auto& path : inode.paths)
      if (const auto group = tree_.links().find(path)) groups.insert(*group);
  }
  for (const auto group : groups)
    for (const auto& member : former.at(group)) {
      auto status = disk_->stat(member);
      if (!status) return fail(status.error());
      const auto inode = *status ? linked_.find((*status)->st_ino) : linked_.end();
      if (inode != linked_.end()) inode->second.add(member);
    }
  const bool incomplete = std::any_of(linked_.begin(), linked_.end(), [](const auto& each) {
    return each.second.paths.size() < each.second.links;
  });
  if (incomplete)
    if (auto found = find_links(linked_); !found) return found;

  for (const auto& [number, inode] : linked_) leave_groups(inode, former);
  for (const auto& [number, inode] : linked_) {
    // A name moved, or came and will go, while it was looked for: what is recorded under it must be found.
    if (inode.paths.size() < inode.links)
      for (const auto& path : inode.paths) tree_.links().note_missing_others(path);
    if (inode.paths.size() < 2) continue;
    const auto group = tree_.links().unused_number();
    for (const auto& path : inode.paths) {
      if (auto followed = follow_model(path, inode.paths.front()); !followed) return followed;
      tree_.links().set(path, group);
    }
  }
  return {};
}

/// A name that was another file's counts as removed: what is recorded under it may be about that one.
void Capture::leave_groups(const LinkedInode& inode, const LinkGroups& former) {
  std::map<std::uint32_t, bool> is_whole;  // all of a former group is this file
  for (const auto& path : inode.paths) {
    const auto group = tree_.links().find(path);
    if (!group) continue;
    const auto [known, is_new] = is_whole.try_emplace(*group);
    if (is_new) {
      const auto& names = former.at(*group);
      known->second =
          std::all_of(names.begin(), names.end(), [&](const auto& name) { return inode.known.count(name); });
    }
    known->second ? tree_.links().take_out(path) : tree_.links().remove(path);
  }
}

/// The other names of a file may be anywhere in the zones.
Result<void> Capture::find_links(std::map<std::uint64_t, LinkedInode>& wanted) {
  for (const auto& rule : kZoneRules)
    if (rule.snapshotted)
      if (auto walked = walk_for_links(std::string(rule.name), wanted); !walked) return walked;
  return {};
}

Result<void> Capture::walk_for_links(const std::string& path, std::map<std::uint64_t, LinkedInode>& wanted) {
  auto fd = disk_->open_directory(path);
  if (!fd && is_gone(fd.error().errno_value)) return {};
  if (!fd) return fail(fd.error());
  auto rows = rows_in(fd->get());
  if (!rows && is_gone(rows.error().errno_value)) return {};
  if (!rows) return fail(rows.error());
  fd->reset();
  for (const auto& row : *rows) {
    const std::string child = path + '/' + row.name;
    if (row.type == DT_DIR || row.type == DT_UNKNOWN)
      if (auto walked = walk_for_links(child, wanted); !walked) return walked;
    if (row.type == DT_DIR) continue;
    const auto inode = wanted.find(row.inode);
    if (inode == wanted.end()) continue;
    inode->second.add(child);
  }
  return {};
}

/// `path` is the same file as `model`, which was just captured.
Result<void> Capture::follow_model(const std::string& path, const std::string& model) {
  if (path == model) return {};
  const auto parsed = RelPath::parse(path), parsed_model = RelPath::parse(model);
  if (!parsed || !parsed_model) return {};
  auto node = tree_.find(*parsed);
  auto source = tree_.find(*parsed_model);
  if (!node) return fail(node.error());
  if (!source) return fail(source.error());
  if (!*node || !*source || (*node)->is_directory()) return {};  // it came after the cut: the next one has it
  if (auto made = tree_.become(**node, (*source)->type); !made) return made;
  set_size(**node, (*source)->size);
  if ((*node)->content != (*source)->content || (*node)->sparse != (*source)->sparse) (*node)->touch();
  (*node)->content = (*source)->content;
  (*node)->sparse = (*source)->sparse;
  return set_attributes(**node, (*source)->attributes);
}

}  // namespace okcvm::snapshots
