// Changing names: rename, and what the control socket puts in place.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fusefs/caller_identity.h"
#include "fusefs/operations.h"
#include "policy/fault.h"

namespace okcvm::fusefs {
namespace {

/// Whether a name that could not be held stands for nothing that a rename would replace. What the host
/// mounted in a workdir (EXDEV) the kernel refuses to replace.
bool is_free_to_take(int errno_value) {
  return errno_value == ENOENT || errno_value == EXDEV;
}

}  // namespace

Result<struct stat> Operations::status_at(NodeId parent, const char* name) {
  auto directory = directories_.open(parent);
  if (!directory) return fail(directory.error());
  struct stat status {};
  if ((*directory)->look_at(name, status) != 0) return fail_errno(errno);
  return status;
}

Result<Operations::Renamed> Operations::rename(const Request& request, NodeId parent, const char* name,
                                               const Result<struct stat>& source, NodeId new_parent,
                                               const char* new_name, unsigned flags) {
  auto from_node = nodes_.find(parent);
  auto to_node = nodes_.find(new_parent);
  if (!from_node) return fail(from_node.error());
  if (!to_node) return fail(to_node.error());
  if (const int error = rename_error(from_node->zone, to_node->zone))
    return deny("rename", parent, name, error);
  // It was under way when a restore took these names for others: the kernel would go on with what it found at
  // them before. ESTALE has it look again.
  if (going_.at_name(parent, name) || going_.at_name(new_parent, new_name)) return fail_errno(ESTALE);
  if (flags & RENAME_WHITEOUT) return fail_errno(EINVAL);  // a whiteout is a device node
  auto from = directories_.open(parent);
  if (!from) return fail(from.error());
  if (!may_change_names_in(request, **from)) return fail_errno(EACCES);
  auto to = place_for_change(request, new_parent, new_name, "rename");
  if (!to) return fail(to.error());
  const Gate::Closing closing(recorder_.moves(from_node->zone));
  struct stat moved {};
  const auto is_noted = [&](const struct stat& status) {
    return Fact::inode(status.st_ino).inode_number() == request.noted.inode_number();
  };
  if (request.may_have_run && request.noted && (*to)->look_at(new_name, moved) == 0 && is_noted(moved) &&
      !(source && is_noted(*source))) {
    const bool exchanged = (flags & RENAME_EXCHANGE) && source;
    if (!(flags & RENAME_EXCHANGE)) name_was_taken(**to, new_name, moved.st_ino);
    return Renamed{{}, name_moved(**from, name, **to, new_name, moved, exchanged ? &*source : nullptr)};
  }
  if (!source) return fail(source.error());
  return move(request, **from, name, *source, **to, new_name, flags);
}

Result<void> Operations::put(int from_directory, const char* from_name, NodeId parent, const char* name,
                             unsigned flags) {
  auto place = place_for_change({}, parent, name, "write");
  if (!place) return fail(place.error());
  struct stat target {};
  const bool may_replace = !(flags & RENAME_NOREPLACE);
  FileDescriptor replaced = may_replace ? (*place)->hold(name) : FileDescriptor();
  if (may_replace && !replaced && !is_free_to_take(errno)) return fail_errno(errno);
  const bool replaces = replaced && ::fstat(replaced.get(), &target) == 0;
  if (replaces) part_with_former(**place, replaced.get(), "", target);
  recorder_.record_entry(**place, name);
  if (replaces) before_removal(**place, target, replaced.get());
  // A rename may be on its way with what the kernel has at this name, or with what it had before that went.
  const auto known = replaces ? nodes_.id_of({(*place)->volume, target.st_ino}) : std::nullopt;
  going_.add_name(parent, name, known.value_or(NodeId{}));
  if (with_faults("backing.put", [&] {
        return ::renameat2(from_directory, from_name, (*place)->file.get(), name, flags);
      }) != 0) {
    const int error = errno;
    is_looked_up(parent, name);
    return replaces ? refused_removal(**place, target, error) : fail_errno(error);
  }
  attributes_changed(parent);
  if (!replaces) return {};
  if (const auto id = nodes_.id_of({(*place)->volume, target.st_ino})) kernel_.inode(*id);
  let_go(name_is_gone(**place, name, target, std::move(replaced)));
  return {};
}

Result<Operations::Renamed> Operations::move(const Request& request, const Directory& from, const char* name,
                                             const struct stat& source, const Directory& to,
                                             const char* new_name, unsigned flags) {
  struct stat target {};
  FileDescriptor replaced = to.hold(new_name);
  if (!replaced && !is_free_to_take(errno)) return fail_errno(errno);
  const bool has_target = replaced && ::fstat(replaced.get(), &target) == 0;
  part_with_former(from, from.file.get(), name, source);
  if (has_target) part_with_former(to, replaced.get(), "", target);
  if (!may_take_away(request, from, source) || (has_target && !may_take_away(request, to, target)))
    return fail_errno(ESTALE);
  if (!may_be_carried_off(request, from, to, source) ||
      ((flags & RENAME_EXCHANGE) && has_target && !may_be_carried_off(request, to, from, target)))
    return fail_errno(ESTALE);
  const bool same_file = has_target && source.st_ino == target.st_ino && source.st_dev == target.st_dev;
  const bool replaces = has_target && !same_file && !(flags & (RENAME_EXCHANGE | RENAME_NOREPLACE));
  if (replaces) before_removal(to, target, replaced.get());
  if (!same_file) recorder_.record_rename(from, name, to, new_name, source, flags);
  const auto rename = [&] { return ::renameat2(from.file.get(), name, to.file.get(), new_name, flags); };
  // The host may put another's there at any moment.
  const bool from_sticky = is_sticky_to(request, from), to_sticky = has_target && is_sticky_to(request, to);
  const bool as_owners = (from_sticky || to_sticky) && (!from_sticky || request.uid == source.st_uid) &&
                         (!to_sticky || request.uid == target.st_uid);
  if (with_faults("backing.rename",
                  [&] { return as_owners ? as_caller_without_fowner(request, rename) : rename(); }) != 0) {
    const int error = as_owners && errno == EPERM ? ESTALE : errno;
    if (!same_file) recorder_.record_refused_rename(from, name, to, new_name);
    return replaces ? refused_removal(to, target, error) : fail_errno(error);
  }
  Renamed renamed;
  if (same_file) {  // two names of one file: rename(2) leaves both, which the kernel may not expect
    add_links_to_recheck(source, from, to, renamed.links);
    return renamed;
  }

  const bool exchange = flags & RENAME_EXCHANGE;
  if (replaces) renamed.replaced = name_is_gone(to, new_name, target, std::move(replaced));
  renamed.links = name_moved(from, name, to, new_name, source, exchange ? &target : nullptr);
  if (renamed.replaced) make_room(*renamed.replaced, to.volume);
  return renamed;
}

std::vector<NodeId> Operations::name_moved(const Directory& from, const char* name, const Directory& to,
                                           const char* new_name, const struct stat& source,
                                           const struct stat* exchanged) {
  std::vector<NodeId> links;
  const InodeKey source_key{from.volume, source.st_ino};
  const InodeKey target_key{to.volume, exchanged ? exchanged->st_ino : 0};
  note_deeper_move(source_key, source.st_mode, from, to);
  if (exchanged) note_deeper_move(target_key, exchanged->st_mode, to, from);
  nodes_.moved(source_key, to.id, to.zone, new_name);
  if (exchanged) nodes_.moved(target_key, from.id, from.zone, name);
  if (S_ISDIR(source.st_mode) || (exchanged && S_ISDIR(exchanged->st_mode))) {
    directories_.paths_changed();
    if (from.zone != to.zone) directories_.drop_all();
  }
  attributes_changed(from.id);
  if (to.id != from.id) attributes_changed(to.id);
  if (const auto id = nodes_.id_of(source_key)) moved_inode_changed(*id, source, from, to);
  add_links_to_recheck(source, from, to, links);
  if (exchanged) {
    for (const auto& key : {source_key, target_key})
      if (const auto id = nodes_.id_of(key)) recorder_.read_whole(*id);
    if (const auto id = nodes_.id_of(target_key)) moved_inode_changed(*id, *exchanged, from, to);
    add_links_to_recheck(*exchanged, to, from, links);
  }
  return links;
}

void Operations::moved_inode_changed(NodeId id, const struct stat& moved, const Directory& from,
                                     const Directory& to) {
  attributes_changed(id);
  // Its listing shows another parent.
  if (S_ISDIR(moved.st_mode) && from.id != to.id) kernel_.moving_directory_now(id);
}

}  // namespace okcvm::fusefs
