#include "fusefs/path_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <set>

#include "fusefs/caller_rights.h"
#include "fusefs/pending_parts.h"
#include "policy/symlink_rule.h"
#include "policy/trees.h"

namespace okcvm::fusefs {
namespace {

constexpr int kMaxLinks = 40;  // as the kernel, path_resolution(7)

Unexpected not_found(std::string path) {
  return fail(Code::kNotFound, "there is nothing at this path", std::move(path));
}

/// Of what the daemon needs: it says nothing of what is looked for.
bool is_shortage(const Error& error) {
  return error.errno_value == EMFILE || error.errno_value == ENFILE || error.errno_value == ENOMEM;
}

}  // namespace

FileInfo info_of_entry(const Entry& entry, std::string name) {
  const struct stat& status = entry.attributes;
  FileInfo info;
  info.name = std::move(name);
  info.type = S_ISREG(status.st_mode)   ? FileType::kFile
              : S_ISDIR(status.st_mode) ? FileType::kDirectory
              : S_ISLNK(status.st_mode) ? FileType::kSymlink
                                        : FileType::kOther;
  info.mode = status.st_mode;
  info.uid = status.st_uid;
  info.gid = status.st_gid;
  info.size = static_cast<std::uint64_t>(status.st_size);
  info.modified = status.st_mtim;
  info.changed = status.st_ctim;
  info.inode = status.st_ino;
  return info;
}

// -- Walking

Result<bool> PathFiles::take_mount_point(std::string_view& way, const std::string& asked) const {
  if (!way.starts_with('/')) return false;
  while (way.starts_with("//")) way.remove_prefix(1);
  const auto& spellings = operations_.mount_points();
  const auto mount_point = std::find_if(spellings.begin(), spellings.end(),
                                        [way](const auto& each) { return is_below(way, each); });
  if (mount_point == spellings.end())
    return fail(Code::kPathTraversalBlocked, "the path, or a symbolic link on it, leads to the host", asked);
  way.remove_prefix(mount_point->size());
  return true;
}

Result<void> PathFiles::follow_link(NodeId link, Walk& walk, PendingParts& pending,
                                    const std::string& asked) {
  const auto text = operations_.read_link(link);
  operations_.forget_own(link);
  if (!text)
    return fail(Code::kPathTraversalBlocked, "a symbolic link on the path leads out of the session", asked);
  std::string_view way = *text;
  const auto is_absolute = take_mount_point(way, asked);
  if (!is_absolute) return fail(is_absolute.error());
  if (*is_absolute) walk.rewind();
  pending.add(way);
  return {};
}

Result<Walk> PathFiles::walk(const Caller& caller, std::string_view path, Last last, const Making* making) {
  auto root = operations_.attributes(kRootNode);
  if (!root) return fail(root.error());
  Walk walk(operations_);
  walk.entries.push_back(*root);
  const std::string asked(path);
  if (auto taken = take_mount_point(path, asked); !taken) return fail(taken.error());
  PendingParts pending(path);
  int links = 0;
  while (!pending.empty()) {
    const auto [part, is_asked_for] = pending.next();
    const Entry& directory = walk.last();
    const bool is_missing = directory.id.value == 0;
    if (is_missing && last != Last::kFollowByName) return not_found(asked);
    if (!is_missing && !S_ISDIR(directory.attributes.st_mode))
      return fail(Error{Code::kInvalidRequest, ENOTDIR, "a part of the path is not a directory", asked});
    if (!is_missing && !may(caller, directory.attributes, X_OK))
      return fail(Code::kForbidden, "a directory on the way may not be searched by this user", asked);
    if (part == "..") {
      if (walk.names.empty())
        return fail(Code::kPathTraversalBlocked, "the path leads out of the session", asked);
      walk.pop();
      continue;
    }
    auto name = Name::parse(part);
    if (!name) return fail(name.error());
    if (is_missing) {
      walk.push(Entry(), std::move(*name));
      continue;
    }
    auto entry = look_up(directory.id, name->c_str());
    if (!entry) return explained(entry.error(), asked);
    if (making && entry->id.value == 0) {
      auto made = is_asked_for ? make_on_way(caller, walk, *name, *making) : fail_errno(EEXIST);
      if (!made) return explained(made.error(), asked);
      entry = std::move(made);
    }
    const bool is_link = entry->id.value && S_ISLNK(entry->attributes.st_mode);
    if (!is_link || (pending.empty() && last == Last::kKeep)) {
      walk.push(*entry, std::move(*name));
      continue;
    }
    if (auto followed = follow_link(entry->id, walk, pending, asked); !followed)
      return fail(followed.error());
    if (++links > kMaxLinks)
      return fail(Error{Code::kInvalidRequest, ELOOP, "too many symbolic links", asked});
  }
  return walk;
}

Result<Walk> PathFiles::walk_existing(const Caller& caller, std::string_view path, Last last) {
  auto found = walk(caller, path, last);
  if (found && found->last().id.value == 0) return not_found(std::string(path));
  return found;
}

Result<Walk> PathFiles::walk_making(const Caller& caller, const RelPath& path, const Making& making) {
  return walk(caller, path.text(), Last::kFollow, &making);
}

/// Links on the way are honoured, but nothing is made where one leads.
Result<Entry> PathFiles::make_on_way(const Caller& caller, const Walk& walk, const Name& name,
                                     const Making& making) {
  const Entry& directory = walk.last();
  if (auto fit = check_gates(walk, making.closed); !fit) return fail(fit.error());
  if (!may(caller, directory.attributes, W_OK | X_OK))
    return fail(Code::kForbidden, "this user may not write to the directory", walk.path().text());
  auto entry = own(operations_.make_directory(request_of(caller), directory.id, name.c_str(), making.mode));
  if (entry) making.made.push_back({directory.id, name});
  // Somebody else was faster.
  if (!entry && entry.error().errno_value == EEXIST) return look_up(directory.id, name.c_str());
  return entry;
}

Result<Entry> PathFiles::own(Result<Entry> entry) {
  if (entry && entry->id.value) operations_.make_own(entry->id);
  return entry;
}

Result<Entry> PathFiles::look_up(NodeId directory, const char* name) {
  return own(operations_.look_up(directory, name));
}

void PathFiles::wait_for_file_system(std::string_view path) const {
  if (!path.starts_with(rule_of(Zone::kWorkdir).name)) return;
  struct statvfs answer {};
  if (const auto workdir = workspace_.volume(kWorkdirVolume)) ::fstatvfs(workdir->root(), &answer);
}

Result<void> PathFiles::check_gates(const Walk& walk, Zone closed) const {
  const NodeId last = walk.last().id;
  if (closed == Zone::kWorkdir || operations_.zone_of(last) != Zone::kWorkdir) return {};
  return fail_errno(kLeadsToWorkdir);
}

// -- Looking

Result<FileInfo> PathFiles::stat(const Caller& caller, const RelPath& path, bool follow) {
  wait_for_file_system(path.text());
  Gate::Pass pass(gates_.managed);
  auto found = walk_existing(caller, path.text(), follow ? Last::kFollow : Last::kKeep);
  if (!found) return fail(found.error());
  return info_of_entry(found->last(), std::string(path.leaf()));
}

Result<std::vector<Name>> PathFiles::names_in(NodeId directory) {
  std::vector<Name> names;
  auto listed = operations_.list(directory, 0, [&](const ListedName& row) {
    if (auto name = Name::parse(row.name)) names.push_back(std::move(*name));  // not "." and ".."
    return true;
  });
  if (!listed) return fail(listed.error());
  return names;
}

bool PathFiles::is_no_child(const Error& error) {
  return error.errno_value == ENOENT || error.errno_value == ESTALE || error.errno_value == EXDEV;
}

Result<Listing> PathFiles::list(const Caller& caller, const RelPath& path, std::string_view after,
                                std::size_t limit) {
  wait_for_file_system(path.text());
  Gate::Pass pass(gates_.managed);
  auto found = walk_existing(caller, path.text(), Last::kFollow);
  if (!found) return fail(found.error());
  const Entry& directory = found->last();
  if (!S_ISDIR(directory.attributes.st_mode))
    return fail(Error{Code::kInvalidRequest, ENOTDIR, "this is not a directory", path.text()});
  if (!may(caller, directory.attributes, R_OK | X_OK))  // attributes are told, too
    return fail(Code::kForbidden, "this user may not list the directory", path.text());
  Listing listing;
  std::vector<std::string> names;  // the first ones and one more, as a heap: there may be millions
  auto listed = operations_.list(directory.id, 0, [&](const ListedName& row) {
    if (row.name <= after || !Name::parse(row.name)) return true;  // nor "." and ".."
    if (names.size() > limit) {
      listing.truncated = true;
      if (row.name >= names.front()) return true;
      std::pop_heap(names.begin(), names.end());
      names.pop_back();
    }
    names.emplace_back(row.name);
    std::push_heap(names.begin(), names.end());
    return true;
  });
  if (!listed) return explained(listed.error(), path.text());
  std::sort_heap(names.begin(), names.end());
  for (auto& name : names) {
    if (listing.entries.size() == limit) {
      listing.truncated = true;
      break;
    }
    auto entry = look_up(directory.id, name.c_str());
    if (!entry && is_shortage(entry.error())) return explained(entry.error(), path.text());
    if (!entry || entry->id.value == 0) continue;  // removed meanwhile, or nothing that can be shown
    operations_.forget_own(entry->id);
    listing.entries.push_back(info_of_entry(*entry, std::move(name)));
  }
  return listing;
}

Result<OpenedFile> PathFiles::open(const Caller& caller, const RelPath& path) {
  wait_for_file_system(path.text());
  constexpr int kMostTries = 100;
  NodeId opened;
  auto file = open_once(caller, path, opened);
  // Between the look at the name and the opening another file took its place.
  for (int tries = 1; !file && file.error().errno_value == ESTALE && tries < kMostTries; ++tries)
    file = open_once(caller, path, opened);
  if (file && operations_.may_hide_stores(opened)) {
    kernel_.inode(opened);
    kernel_.drain();
  }
  return file;
}

Result<OpenedFile> PathFiles::open_once(const Caller& caller, const RelPath& path, NodeId& opened) {
  Gate::Pass pass(gates_.managed);
  auto found = walk_existing(caller, path.text(), Last::kFollow);
  if (!found) return fail(found.error());
  const Entry& entry = found->last();
  if (S_ISDIR(entry.attributes.st_mode))
    return fail(Error{Code::kInvalidRequest, EISDIR, "this is a directory", path.text()});
  if (!S_ISREG(entry.attributes.st_mode))
    return fail(
        Code::kInvalidRequest,
        "this is a FIFO, a socket or a device: only regular files can be read, and directories listed",
        path.text());
  if (!may(caller, entry.attributes, R_OK))
    return fail(Code::kForbidden, "this user may not read the file", path.text());
  opened = entry.id;
  auto file = operations_.open_for_reading(entry.id);
  if (!file && file.error().errno_value == EWOULDBLOCK)
    return fail(Error{Code::kBusy, EWOULDBLOCK,
                      "somebody on the host holds a lease on the file and was told to give it up: try again",
                      path.text()});
  if (!file) return explained(file.error(), path.text());
  OpenedFile result{std::move(*file), info_of_entry(entry, std::string(path.leaf()))};
  struct stat status {};
  if (::fstat(result.file.get(), &status) != 0) return explained(Error::plain(errno), path.text());
  result.info.size = static_cast<std::uint64_t>(status.st_size);
  if (entry.id != kMetadataNode) result.info.modified = status.st_mtim;
  return result;
}

Result<std::string> PathFiles::read_link(const Caller& caller, const RelPath& path) {
  wait_for_file_system(path.text());
  Gate::Pass pass(gates_.managed);
  auto found = walk_existing(caller, path.text(), Last::kKeep);
  if (!found) return fail(found.error());
  if (!S_ISLNK(found->last().attributes.st_mode))
    return fail(Code::kInvalidRequest, "this is not a symbolic link", path.text());
  auto text = operations_.read_link(found->last().id);
  if (!text)
    return fail(Code::kPathTraversalBlocked, "the symbolic link leads out of the session", path.text());
  return text;
}

Result<RelPath> PathFiles::resolve(const Caller& caller, std::string_view path, bool must_exist) {
  wait_for_file_system(path);
  Gate::Pass pass(gates_.managed);
  auto found =
      must_exist ? walk_existing(caller, path, Last::kFollow) : walk(caller, path, Last::kFollowByName);
  if (!found) return fail(found.error());
  const Entry& last = found->last();
  if ((path.ends_with('/') || path.ends_with("/.")) && last.id.value && !S_ISDIR(last.attributes.st_mode))
    return fail(Error{Code::kInvalidRequest, ENOTDIR, "this is not a directory", std::string(path)});
  if (!found->has_path())
    return fail(Error{Code::kInvalidRequest, ENAMETOOLONG, "where the path leads has too long a path",
                      std::string(path)});
  return found->path();
}

Result<void> WorkspaceInfo::count_zone(Zone zone, Result<FileDescriptor> directory, const GoesOn& goes_on) {
  const std::string name(rule_of(zone).name);
  if (!directory) {
    const int error = directory.error().errno_value;
    if (error == ENOENT) return {};
    if (error != ENOTDIR && error != ELOOP) return explained(directory.error(), name);
    return fail(Code::kCorrupt,
                "on the host, what holds this part of the session is not a directory any more: move what "
                "stands in its place away, then `okcvm unmount` and `okcvm load` the session",
                name);
  }
  struct stat status {};
  if (::fstat(directory->get(), &status) != 0) return explained(Error::plain(errno), name);
  note_change(status);  // a removal changes nothing else
  auto visited = visit_tree(std::move(*directory), [&](const struct stat& entry) {
    count(entry);
    return !goes_on || goes_on();
  });
  if (!visited && visited.error().code != Code::kBusy) return explained(visited.error(), name);
  return visited;
}

void WorkspaceInfo::count(const struct stat& status) {
  ++(S_ISDIR(status.st_mode) ? directories : files);
  if (S_ISREG(status.st_mode)) bytes += static_cast<std::uint64_t>(status.st_size);
  note_change(status);
}

void WorkspaceInfo::note_change(const struct stat& status) {
  if (std::pair(status.st_mtim.tv_sec, status.st_mtim.tv_nsec) >
      std::pair(last_modified.tv_sec, last_modified.tv_nsec))
    last_modified = status.st_mtim;
}

Result<WorkspaceInfo> PathFiles::info(const GoesOn& goes_on) {
  WorkspaceInfo info;
  auto folder = workspace_.open_folder();
  if (!folder && folder.error().errno_value == ENOENT) return info;
  if (!folder) return explained(folder.error(), {});
  info.materialized = true;
  for (const auto& rule : kZoneRules)
    if (rule.snapshotted)
      if (auto counted = info.count_zone(rule.zone, workspace_.open_zone(rule.zone), goes_on); !counted)
        return fail(counted.error());
  return info;
}

// -- Changing

Result<bool> PathFiles::make_directories(const Caller& caller, const RelPath& path, mode_t mode,
                                         const EntryCheck& check) {
  wait_for_file_system(path.text());
  const SessionState::Untold untold(state_);
  std::vector<Placed> made;
  auto result = with_gates(
      path, [&](Zone closed) { return make_directories_alone(caller, path, mode, check, closed, made); });
  for (const auto& placed : made) {
    tell_kernel(placed);  // a node that went the kernel does not know
    kernel_.inode(placed.directory);
  }
  kernel_.drain();
  return result;
}

Result<bool> PathFiles::make_directories_alone(const Caller& caller, const RelPath& path, mode_t mode,
                                               const EntryCheck& check, Zone closed,
                                               std::vector<Placed>& made) {
  const ClosedFor alone(closed, gates_);
  const auto there = walk_existing(caller, path.text(), Last::kFollow);
  if (check) {
    const auto info =
        there ? std::optional(info_of_entry(there->last(), std::string(path.leaf()))) : std::nullopt;
    if (auto met = check(info ? &*info : nullptr, nullptr); !met) return fail(met.error());
  }
  auto found = walk_making(caller, path, {mode, made, closed});
  if (!found) return fail(found.error());
  if (!S_ISDIR(found->last().attributes.st_mode))
    return fail(Code::kAlreadyExists, "a file stands at this path", path.text());
  return !there;
}

Result<void> PathFiles::judge(const EntryCheck& check, const Caller& caller, const RelPath& path,
                              const Entry* there) {
  if (!there) return check(nullptr, nullptr);
  const FileInfo info = info_of_entry(*there, std::string(path.leaf()));
  if (info.type != FileType::kSymlink) return check(&info, nullptr);
  const auto found = walk_existing(caller, path.text(), Last::kFollow);
  if (!found) return check(&info, nullptr);
  const FileInfo target = info_of_entry(found->last(), info.name);
  return check(&info, &target);
}

void PathFiles::tell_kernel(const std::vector<RelPath>& changed) {
  auto root = operations_.attributes(kRootNode);
  if (!root) return;
  Walk walk(operations_);  // to where the last one was found
  walk.entries.push_back(*root);
  std::optional<Placed> missing;
  std::vector<NodeId> moved;  // directories that the kernel knows by another name
  std::set<NodeId> outdated;  // that list what changed
  for (const RelPath& path : changed) {
    if (path.is_root()) continue;
    if (path.depth() == 1) {
      kernel_.inode(node_of(zone_named(path.top())));
      continue;
    }
    const auto parts = path.components();
    std::size_t shared = 0;
    while (shared < walk.names.size() && shared + 1 < parts.size() &&
           walk.names[shared].text() == parts[shared])
      ++shared;
    while (walk.names.size() > shared) walk.pop();
    while (walk.names.size() + 1 < parts.size()) {
      Name name = *Name::parse(parts[walk.names.size()]);
      if (const auto id = operations_.take_in(walk.last().id, name.c_str())) moved.push_back(*id);
      if (!step_down(walk, std::move(name))) break;
    }
    Placed placed{walk.last().id, *Name::parse(parts[walk.names.size()])};
    const bool is_there = walk.names.size() + 1 == parts.size();
    // What is below a name that is no directory any more is covered by that name's own notice.
    if (!is_there && missing == placed) continue;
    if (const auto id = tell_kernel(placed)) moved.push_back(*id);
    outdated.insert(placed.directory);
    if (!is_there) missing = std::move(placed);
  }
  for (const NodeId id : outdated) kernel_.inode(id);
  for (const NodeId id : moved) operations_.have_found(id);
}

bool PathFiles::step_down(Walk& walk, Name name) {
  auto entry = look_up(walk.last().id, name.c_str());
  if (!entry || entry->id.value == 0) return false;
  const bool is_directory = S_ISDIR(entry->attributes.st_mode);
  if (is_directory)
    walk.push(*entry, std::move(name));
  else
    operations_.forget_own(entry->id);
  return is_directory;
}

std::optional<NodeId> PathFiles::tell_kernel(const Placed& placed) {
  const NodeId directory = placed.directory;
  const std::string& name = placed.name.text();
  const auto known = operations_.known_in(directory, name.c_str());
  const bool has_name = known && (known->name.empty() || known->name == name);
  const auto moved =
      known && known->name == name ? std::nullopt : operations_.take_in(directory, name.c_str());
  auto entry = look_up(directory, name.c_str());
  // What is still the same inode keeps its name: a process may have it as its working directory. If it is
  // only ourselves who know it, the kernel may take the name for free.
  if (has_name && entry && entry->id == known->id)
    kernel_.expire(directory, name);
  else if (operations_.has_another_name(directory, name))
    kernel_.renamed(directory, name);
  else
    kernel_.entry(directory, name);
  if (entry && entry->id.value) {
    kernel_.inode(entry->id);  // it may be known by another of its names
    operations_.forget_own(entry->id);
  }
  return moved;
}

}  // namespace okcvm::fusefs
