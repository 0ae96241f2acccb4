// Changing names: create, link, remove.

#include <fcntl.h>
#include <linux/capability.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <limits>

#include "fusefs/caller_identity.h"
#include "fusefs/caller_rights.h"
#include "fusefs/operations.h"
#include "policy/fault.h"

namespace okcvm::fusefs {
namespace {

std::uint64_t inode_at(const Directory& directory, const char* name) {
  struct stat status {};
  return directory.look_at(name, status) == 0 ? status.st_ino : 0;
}

bool is_absent(const Error& error) {
  return error.errno_value == ENOENT || error.errno_value == ESTALE;
}

}  // namespace

Unexpected Operations::deny(std::string_view operation, NodeId parent, const char* name, int errno_value) {
  state_.count_denial();
  Error error = Error::plain(errno_value);
  if (errno_value == EPERM) error.code = Code::kPathTraversalBlocked;
  if (errno_value == EROFS)
    error.message = "this part of the session is read-only; write to outputs/ or temp/";
  if (config_.on_denial) {
    RelPath path = shown_path(parent);
    if (auto leaf = Name::parse(name)) path = path / *leaf;
    as_daemon([&] { config_.on_denial(operation, path, errno_value); });
  }
  return Unexpected(std::move(error));
}

/// Where a directory is, for people to read; the root where that is not known. What skills/ and workdir/ show
/// has no path in the workspace, but names.
RelPath Operations::shown_path(NodeId directory) {
  auto node = nodes_.find(directory);
  if (!node) return {};
  if (auto path = path_of(*node)) return *path;
  std::vector<Name> names;
  std::size_t size = 0;
  for (; node && !is_fixed(node->id); node = nodes_.find(node->parent)) {
    auto name = Name::parse(node->name);
    if (!name || (size += name->text().size() + 1) > PATH_MAX) return {};
    names.push_back(std::move(*name));
  }
  auto path = node ? path_of(*node) : Result<RelPath>(fail(node.error()));
  if (!path) return {};
  for (auto name = names.rbegin(); name != names.rend(); ++name) *path = *path / *name;
  return *path;
}

/// Everything that can be refused is refused before the folder is made: a refused write leaves nothing.
Result<Operations::Place> Operations::place_for_change(const Request& request, NodeId parent,
                                                       const char* name, std::string_view operation) {
  if (std::strlen(name) > NAME_MAX) return fail_errno(ENAMETOOLONG);
  auto node = nodes_.find(parent);
  if (!node) return fail(node.error());
  if (const int error = rule_of(node->zone).write_error) return deny(operation, parent, name, error);
  // What gets a name here is recorded with that.
  if (*name == '\0' && is_zone_directory(parent))
    if (auto made = make_zone(node->zone); !made) return fail(made.error());
  auto place = directories_.open_for_change(parent);
  if (place && !may_change_names_in(request, **place)) return fail_errno(EACCES);
  return place;
}

bool Operations::is_judged_again(const Request& request, Zone zone) {
  // Who asks by path was judged just now.
  return zone == Zone::kWorkdir && request.uid != 0 && request.unique != 0 && !request.may_have_run;
}

bool Operations::may_still(const Request& request, Zone zone, int file, mode_t wanted) {
  struct stat status {};
  return !is_judged_again(request, zone) ||
         (::fstat(file, &status) == 0 && may_access(request, status, wanted));
}

bool Operations::may_change_names_in(const Request& request, const Directory& directory) {
  return may_still(request, directory.zone, directory.file.get(), S_IWOTH | S_IXOTH);
}

Result<void> Operations::make_zone(Zone zone) {
  if (!workspace_.has_made(zone))
    if (const auto node = nodes_.find(node_of(zone))) recorder_.record(*node, ChangeKind::kAttributes);
  return workspace_.materialize(zone);
}

void Operations::attributes_changed(NodeId id) {
  if (nodes_.changed(id)) kernel_.attributes_now(id);
}

// -- Making

void Operations::before_making(const Request& request) {
  if (request.noted) return;
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME_COARSE, &now);  // as inodes get their times
  request.note(Fact::making_since(now));
}

/// A repeated request finds its own work done: that is success, not an error. What somebody else made is not
/// (the host can make files in a workdir at any time): it is another inode than what was noted, or, where the
/// daemon died before it could note that, another's or older.
bool Operations::was_made_before(const Request& request, const Directory& directory, const char* name) {
  const FileDescriptor held = request.noted ? directory.hold(name) : FileDescriptor();
  struct statx status {};
  if (!held || ::statx(held.get(), "", AT_EMPTY_PATH, STATX_INO | STATX_UID | STATX_BTIME, &status) != 0)
    return false;
  if (request.noted.is_made()) return request.noted == Fact::made(status.stx_ino);
  if (status.stx_uid != request.uid) return false;
  if (!(status.stx_mask & STATX_BTIME)) return true;
  return request.noted.began_by({status.stx_btime.tv_sec, status.stx_btime.tv_nsec});
}

/// Where the host can put something else at a name, nothing is removed that may be its own.
void Operations::take_back(const Directory& directory, const char* name, int flags) {
  if (!rule_of(directory.zone).changes_underneath) ::unlinkat(directory.file.get(), name, flags);
}

/// The kernel takes nothing of another type than what it asked for: the host was there in between, and the
/// kernel is to look again.
Result<Entry> Operations::expected(Result<Entry> entry, mode_t mode) {
  if (!entry || !((entry->attributes.st_mode ^ mode) & S_IFMT)) return entry;
  forget(entry->id, 1);
  return fail_errno(ESTALE);
}

Result<Entry> Operations::finish_new(const Request& request, const Directory& directory, const char* name,
                                     mode_t mode, int opened) {
  attributes_changed(directory.id);
  auto entry = expected(look_up_in(directory, name, opened), mode);
  if (!entry) {
    take_back(directory, name, S_ISDIR(mode) ? AT_REMOVEDIR : 0);
    return entry;
  }
  if (const auto node = nodes_.find(entry->id)) request.note(Fact::made(node->key.inode));
  recorder_.made(entry->id, mode);
  return entry;
}

Result<Entry> Operations::make_node(const Request& request, NodeId parent, const char* name, mode_t mode,
                                    dev_t device) {
  auto directory = nodes_.find(parent);
  if (!directory) return fail(directory.error());
  if ((S_ISCHR(mode) || S_ISBLK(mode)) && !rule_of(directory->zone).write_error)
    return deny("mknod", parent, name, EPERM);
  auto place = place_for_change(request, parent, name, "mknod");
  if (!place) return fail(place.error());
  recorder_.record_entry(**place, name);
  before_making(request);
  mode = judged_mode(request, **place, mode);
  const auto make = [&] { return ::mknodat((*place)->file.get(), name, mode, device); };
  if (with_faults("backing.mknod", [&] { return as_caller(request, make); }) != 0 &&
      !(errno == EEXIST && was_made_before(request, **place, name)))
    return fail_errno(errno);
  return finish_new(request, **place, name, mode);
}

Result<Entry> Operations::make_directory(const Request& request, NodeId parent, const char* name,
                                         mode_t mode) {
  auto place = place_for_change(request, parent, name, "mkdir");
  if (!place) return fail(place.error());
  recorder_.record_entry(**place, name, ChangeKind::kTree);
  before_making(request);
  const auto make = [&] { return ::mkdirat((*place)->file.get(), name, mode); };
  if (with_faults("backing.mkdir", [&] { return as_caller(request, make); }) != 0 &&
      !(errno == EEXIST && was_made_before(request, **place, name)))
    return fail_errno(errno);
  return finish_new(request, **place, name, mode | S_IFDIR);
}

Result<Entry> Operations::make_symlink(const Request& request, NodeId parent, const char* name,
                                       const char* text) {
  auto directory = nodes_.find(parent);
  if (!directory) return fail(directory.error());
  if (const int error = rule_of(directory->zone).write_error) return deny("symlink", parent, name, error);
  if (!link_allowed(text, nodes_.depth(parent))) return deny("symlink", parent, name, EPERM);
  auto place = place_for_change(request, parent, name, "symlink");
  if (!place) return fail(place.error());
  recorder_.record_entry(**place, name);
  before_making(request);
  const auto make = [&] { return ::symlinkat(text, (*place)->file.get(), name); };
  if (with_faults("backing.symlink", [&] { return as_caller(request, make); }) != 0 &&
      !(errno == EEXIST && was_made_before(request, **place, name)))
    return fail_errno(errno);
  return finish_new(request, **place, name, S_IFLNK | 0777);
}

Result<Entry> Operations::make_link(const Request& request, NodeId id, NodeId parent, const char* name) {
  auto node = nodes_.find(id);
  if (!node) return fail(node.error());
  auto directory = nodes_.find(parent);
  if (!directory) return fail(directory.error());
  if (const int error = link_error(node->zone, directory->zone)) return deny("link", parent, name, error);
  auto source = open_inode(*node, O_PATH | O_NOFOLLOW);
  if (!source) return fail(source.error());
  if (S_ISLNK(node->type)) {
    char text[4096];
    const ssize_t size = ::readlinkat(source->get(), "", text, sizeof text);
    if (size < 0) return fail_errno(errno);
    if (!link_allowed({text, static_cast<std::size_t>(size)}, std::nullopt))
      return deny("link", parent, name, EPERM);
  }
  auto place = place_for_change(request, parent, name, "link");
  if (!place) return fail(place.error());
  // From now on it may be written under a name that is not watched.
  recorder_.record(*node, ChangeKind::kContent);
  recorder_.record_entry(**place, name);
  request.note(Fact::inode(node->key.inode));
  // Nobody finds a file that had no name by its new one before its node has that.
  std::optional<Gate::Closing> alone;
  if (node->dead) alone.emplace(recorder_.moves(node->zone));
  if (with_faults("backing.link", [&] {
        return ::linkat(source->get(), "", (*place)->file.get(), name, AT_EMPTY_PATH);
      }) != 0) {
    const bool is_made =
        errno == EEXIST && request.may_have_run && inode_at(**place, name) == node->key.inode;
    if (!is_made) return fail_errno(errno);
  }
  attributes_changed(parent);
  if (node->dead && S_ISREG(node->type)) name_is_given(*node, **place, name);
  alone.reset();
  return expected(look_up_in(**place, name), node->type);
}

void Operations::name_is_given(const Node& node, const Directory& directory, const char* name) {
  not_held(node.id);
  recorder_.made(node.id, node.type);
  nodes_.named(node.id, directory.id, directory.zone,
               name);  // last: until then it is done again after a death
}

// -- Removing

bool Operations::may_take_away(const Request& request, const Directory& directory,
                               const struct stat& status) const {
  if (!rule_of(directory.zone).changes_underneath || request.uid == status.st_uid) return true;
  struct stat parent {};
  if (::fstat(directory.file.get(), &parent) != 0) return false;
  return !(parent.st_mode & S_ISVTX) || request.uid == parent.st_uid ||
         is_capable_over(request, status, CAP_FOWNER);
}

bool Operations::is_sticky_to(const Request& request, const Directory& directory) {
  struct stat status {};
  return rule_of(directory.zone).changes_underneath && request.uid != 0 &&
         ::fstat(directory.file.get(), &status) == 0 && (status.st_mode & S_ISVTX) &&
         request.uid != status.st_uid;
}

bool Operations::may_be_carried_off(const Request& request, const Directory& from, const Directory& to,
                                    const struct stat& status) {
  return from.id == to.id || !S_ISDIR(status.st_mode) || !rule_of(from.zone).changes_underneath ||
         may_access(request, status, S_IWOTH);
}

void Operations::part_with_former(const Directory& directory, int file, const char* name,
                                  const struct stat& status) {
  if (!rule_of(directory.zone).changes_underneath) return;
  const auto id = nodes_.id_of({directory.volume, status.st_ino});
  const auto node = id ? nodes_.find(*id) : Result<Node>(fail_errno(ENOENT));
  const auto volume = workspace_.volume(directory.volume);
  if (!node || !volume) return;
  // The text of a link was judged where the node stands, and so were those in a directory.
  const auto is_judged = [&] {
    return node->is_directory() || (S_ISLNK(node->type) && !stays_in_anywhere(file, name, status));
  };
  const bool is_elsewhere = node->parent != directory.id && is_judged();
  if (!is_elsewhere && volume->leads_to(node->handle, file, name)) return;
  nodes_.part_with(*id);
  directories_.drop(*id);
  listings_.drop(*id);
}

void Operations::before_removal(const Directory& directory, const struct stat& status, int held) {
  if (!S_ISREG(status.st_mode) || status.st_nlink > 2) return;
  const auto id = nodes_.id_of({directory.volume, status.st_ino});
  if (!id || !is_last_name(id, status)) return;
  const OpenState state = nodes_.open_state(*id);
  if (state.opens && !state.backing_id) orphans_.keep(*id, directory.zone, held);
}

Unexpected Operations::refused_removal(const Directory& directory, const struct stat& status, int error) {
  const auto id = error == ENOENT ? std::nullopt : nodes_.id_of({directory.volume, status.st_ino});
  if (id) orphans_.drop(*id);  // else it would count among the links
  return fail_errno(error);
}

/// A dead daemon may have left a hidden name to a file that is not removed after all.
bool Operations::is_last_name(std::optional<NodeId> id, const struct stat& status) const {
  return S_ISDIR(status.st_mode) || status.st_nlink <= 1 ||
         (status.st_nlink == 2 && id && orphans_.keeps(*id));
}

/// A name stopped standing for an inode that had `status` before. Of several names, others may have gone at
/// the same time, and the host may have given it another: then what is left counts.
Operations::Nameless Operations::name_is_gone(const Directory& directory, const char* name,
                                              const struct stat& status, FileDescriptor held) {
  const InodeKey key{directory.volume, status.st_ino};
  const auto id = nodes_.id_of(key);
  struct stat now {};
  bool last = is_last_name(id, status);
  const bool may_differ = !last || (rule_of(directory.zone).changes_underneath && !S_ISDIR(status.st_mode));
  if (id && may_differ && ::fstat(held.get(), &now) == 0) {
    now.st_nlink += 1;  // the name that is gone
    last = is_last_name(id, now);
  }
  nodes_.unlinked(key, directory.id, name, last);
  if (!id || !last) return std::nullopt;
  directories_.drop(*id);
  listings_.drop(*id);
  if (!held) return id;
  nodes_.note_last_status(*id, status);
  removed_.hold(*id, std::move(held));
  constexpr std::uint32_t kOften = 1024;
  if (++removals_ % kOften == 0) forget_unknown();
  return id;
}

void Operations::forget_unknown() {
  if (config_.start != Start::kTakeOver) return;
  constexpr auto kAll = std::numeric_limits<std::uint64_t>::max();
  const auto ids = nodes_.nameless();
  if (ids.empty()) return;
  const auto comes_to_know = state_.handed_out();  // after `ids`: what is answered since then, it knows
  for (const NodeId id : ids)
    if (nodes_.open_state(id).opens == 0 && !comes_to_know.contains(id.value))
      kernel_.if_unknown(id, [this, id] { forget(id, kAll); });
}

void Operations::part_with_gone(const Node& node) {
  if (node.dead || is_fixed(node.id)) return;
  struct stat status {};
  if (const auto directory = directories_.open(node.parent); directory && !node.name.empty())
    if ((*directory)->look_at(node.name.c_str(), status) == 0 && status.st_ino == node.key.inode) return;
  const auto inode = workspace_.open(node, O_PATH | O_NOFOLLOW);
  const bool is_there = inode ? ::fstat(inode->get(), &status) != 0 || status.st_nlink > 0
                              : inode.error().errno_value != ESTALE;
  if (is_there) return;
  nodes_.part_with(node.id);
  kernel_.inode(node.id);  // it has no links any more
  if (const auto last = going_.status(node.id)) nodes_.note_last_status(node.id, *last);
}

void Operations::not_held(NodeId id) {
  orphans_.drop(id);
  removed_.let_go(id);
}

void Operations::make_room(NodeId id, VolumeId volume_id) {
  const auto volume = workspace_.volume(volume_id);
  if (!volume || !volume->is_nearly_full()) return;
  const auto node = nodes_.find(id);
  if (!node || node->is_directory() || nodes_.open_state(id).opens) return;
  backings_.drop_unused(id);
  not_held(id);
}

/// May come late: by then the kernel may have forgotten the inode, and its backing id went with it.
void Operations::let_go(Nameless inode) {
  if (inode) backings_.drop_unused(*inode);
}

void Operations::name_was_taken(const Directory& directory, const char* name, std::uint64_t but_inode) {
  nodes_.distrust_all();  // the inode's number may be another's by now
  const auto stale = nodes_.children(directory.id, [&](const Node& node) {
    return (node.name == name || node.name.empty()) && !node.dead && node.key.inode != but_inode;
  });
  for (const Node& node : stale) {
    struct stat status {};
    auto held = open_inode(node, O_PATH | O_NOFOLLOW);
    const bool is_known = held ? ::fstat(held->get(), &status) == 0 : is_absent(held.error());
    const nlink_t hidden = orphans_.keeps(node.id) ? 1 : 0;
    if (node.name.empty() && (!is_known || status.st_nlink > hidden)) continue;  // another one may be taken
    status.st_ino = node.key.inode;
    status.st_mode = node.type;
    status.st_nlink += 1;  // as it was before
    let_go(name_is_gone(directory, name, status, held ? std::move(*held) : FileDescriptor()));
  }
}

Result<Operations::Nameless> Operations::unlink(const Request& request, NodeId parent, const char* name) {
  return remove(request, parent, name, 0, "unlink");
}

Result<void> Operations::remove_directory(const Request& request, NodeId parent, const char* name) {
  auto removed = remove(request, parent, name, AT_REMOVEDIR, "rmdir");
  if (!removed) return fail(removed.error());
  return {};
}

Result<Operations::Nameless> Operations::remove(const Request& request, NodeId parent, const char* name,
                                                int flags, std::string_view operation) {
  auto place = place_for_change(request, parent, name, operation);
  if (!place) return fail(place.error());
  struct stat status {};
  // Keeps the inode behind the name that is about to go: descriptors that are open on it without our knowing
  // (O_PATH, directories) still work, and an open that has looked the name up already still finds it.
  FileDescriptor held = (*place)->hold(name);
  const int error = held && ::fstat(held.get(), &status) == 0 ? 0 : errno;
  // A repeated request finds its own work done; by now the host may have made something else at the name.
  if (request.noted && (error == ENOENT || (!error && Fact::inode(status.st_ino) != request.noted))) {
    name_was_taken(**place, name, status.st_ino);
    attributes_changed(parent);
    return std::nullopt;
  }
  if (error) return fail_errno(error);
  // It was under way when a restore took this name for another: the kernel would take what it found there
  // before for removed. ESTALE has it look again. Who asks by path has just looked.
  if (request.unique != 0 && going_.at_name(parent, name)) return fail_errno(ESTALE);
  part_with_former(**place, held.get(), "", status);
  if (!may_take_away(request, **place, status)) return fail_errno(ESTALE);
  request.note(Fact::inode(status.st_ino));
  recorder_.record_entry(**place, name);
  before_removal(**place, status, held.get());
  // The host may put another's there at any moment.
  const bool as_owners = request.uid == status.st_uid && is_sticky_to(request, **place);
  const auto unlink = [&] { return ::unlinkat((*place)->file.get(), name, flags); };
  if (with_faults("backing.unlink",
                  [&] { return as_owners ? as_caller_without_fowner(request, unlink) : unlink(); }) != 0)
    return refused_removal(**place, status, as_owners && errno == EPERM ? ESTALE : errno);
  attributes_changed(parent);
  const Nameless inode = name_is_gone(**place, name, status, std::move(held));
  if (inode) make_room(*inode, (*place)->volume);
  return inode;
}

}  // namespace okcvm::fusefs
