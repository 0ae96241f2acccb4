// Where the backing inode of a node is.

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

Result<std::optional<RelPath>> Operations::locate(const Node& node) {
  auto path = node.dead ? path_by_inode(node) : path_of(node);
  if (path) return std::optional(std::move(*path));
  const auto status = status_of(node);
  const bool is_nameless = status ? status->st_nlink == 0 : status.error().errno_value == ESTALE;
  if (is_nameless) return std::optional<RelPath>();
  return fail(path.error());
}

}  // namespace okcvm::fusefs
