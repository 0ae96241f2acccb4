// Attributes of nodes: stat, chmod and its kin, extended attributes, statfs.

#include <endian.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <linux/xattr.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cstring>

#include "fusefs/caller_rights.h"
#include "fusefs/operations.h"
#include "policy/fault.h"
#include "policy/proc_path.h"

namespace okcvm::fusefs {
namespace {

/// Makes a call on an inode: `direct` by a descriptor of it, `by_path` where that is O_PATH and the call does
/// not take such. Both answer a negative number with errno set on failure.
template <typename Direct, typename ByPath>
auto on_inode(int file, const Direct& direct, const ByPath& by_path) {
  const auto result = direct(file);
  return result < 0 && errno == EBADF ? by_path(ProcPath(file).c_str()) : result;
}

/// Whether all names of an inode's attributes still fit into one list (xattr(7)) with this one: of an inode
/// with more nobody could tell any more which it has.
bool can_be_listed_with(int file, const char* name) {
  const auto size = on_inode(
      file, [](int fd) { return ::flistxattr(fd, nullptr, 0); },
      [](const char* path) { return ::listxattr(path, nullptr, 0); });
  if (size < 0 || static_cast<std::size_t>(size) + std::strlen(name) < XATTR_LIST_MAX) return true;
  return on_inode(
             file, [&](int fd) { return ::fgetxattr(fd, name, nullptr, 0); },
             [&](const char* path) { return ::getxattr(path, name, nullptr, 0); }) >= 0;
}

/// Extended attributes that a session may use. Capabilities, ACLs and labels are the host's business.
bool is_allowed_attribute(std::string_view name) {
  return name.starts_with("user.");
}

bool is_acl(std::string_view name) {
  return name == XATTR_NAME_POSIX_ACL_ACCESS || name == XATTR_NAME_POSIX_ACL_DEFAULT;
}

/// The permission bits that an ACL stands for, if it says no more than a mode can (acl(5), "CORRESPONDENCE
/// BETWEEN ACL ENTRIES AND FILE PERMISSION BITS"); `value` as in linux/posix_acl_xattr.h.
std::optional<mode_t> mode_of_acl(std::span<const char> value) {
  posix_acl_xattr_header header;
  std::array<posix_acl_xattr_entry, 3> entries;  // owner, group, others
  if (value.size() != sizeof header + sizeof entries) return std::nullopt;
  std::memcpy(&header, value.data(), sizeof header);
  std::memcpy(entries.data(), value.data() + sizeof header, sizeof entries);
  constexpr std::array<std::uint16_t, 3> kTags{ACL_USER_OBJ, ACL_GROUP_OBJ, ACL_OTHER};
  mode_t mode = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (le16toh(entries[i].e_tag) != kTags[i]) return std::nullopt;
    mode = mode << 3 | (le16toh(entries[i].e_perm) & 07u);
  }
  return le32toh(header.a_version) == POSIX_ACL_XATTR_VERSION ? std::optional(mode) : std::nullopt;
}

/// What a write by this caller leaves of the mode (setattr_should_drop_suidgid, linux/fs/attr.c).
mode_t without_privileges(const struct stat& inode, const Request& request) {
  const mode_t mode = inode.st_mode;
  const bool drops_group = (mode & S_ISGID) && ((mode & S_IXGRP) || !may_set_group_id(request, inode));
  return mode & ~(S_ISUID | (drops_group ? S_ISGID : 0u));
}

}  // namespace

Operations::Operations(Config config, Workspace& workspace, NodeTable& nodes, ChangeLog& changes,
                       SessionState& state, Backings& backings, Invalidator& kernel)
    : config_(std::move(config)),
      workspace_(workspace),
      nodes_(nodes),
      state_(state),
      backings_(backings),
      kernel_(kernel),
      directories_(workspace, nodes),
      recorder_(changes, nodes, directories_, [this](const Node& node) { return locate(node); }),
      orphans_(workspace),
      metadata_(std::make_shared<const std::string>()) {}

void Operations::set_metadata(std::string metadata) {
  auto replacement = std::make_shared<const std::string>(std::move(metadata));
  MutexLock lock(metadata_mutex_);
  metadata_ = std::move(replacement);
}

Result<FileDescriptor> Operations::open_inode(const Node& node, int flags) {
  if (!node.dead) return workspace_.open(node, flags);
  FileDescriptor held = removed_.again(node.id);
  if (!held) return workspace_.open(node, flags);  // removed before this daemon took over
  if (flags & O_PATH) return held;
  FileDescriptor file(::open(ProcPath(held.get()).c_str(), (flags & ~O_NOFOLLOW) | O_CLOEXEC));
  if (!file) return fail_errno(errno);
  return file;
}

Result<std::shared_ptr<FileDescriptor>> Operations::attribute_file(const Node& node) {
  if (auto held = backings_.attribute_file(node.id)) return held;
  // To open it does no harm where only the driver opens files, and spares the calls a path through /proc.
  const bool is_ours = !rule_of(node.zone).changes_underneath && (S_ISREG(node.type) || S_ISDIR(node.type));
  auto file = is_fixed(node.id) ? workspace_.open_zone(node.zone)
              : is_ours         ? open_inode(node, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY)
                                : Result<FileDescriptor>(fail_errno(EBADF));
  if (!file && !is_fixed(node.id)) file = open_inode(node, O_PATH | O_NOFOLLOW);
  if (!file) return fail(file.error());
  auto shared = std::make_shared<FileDescriptor>(std::move(*file));
  if (is_ours && S_ISREG(node.type)) backings_.remember_attribute_file(node.id, shared);
  return shared;
}

Result<struct stat> Operations::status_of(const Node& node) {
  struct stat status {};
  if (S_ISREG(node.type))
    if (const auto held = backings_.attribute_file(node.id))
      return ::fstat(held->get(), &status) == 0 ? Result<struct stat>(status) : fail_errno(errno);
  if (!node.name.empty() && !node.dead && !rule_of(node.zone).changes_underneath) {
    // By name in a directory that is probably open: half the calls of the way over the handle. What stands
    // there must be the same inode; if it is not, the name was just moved.
    auto directory = directories_.open(node.parent);
    if (directory &&
        ::fstatat((*directory)->file.get(), node.name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
        status.st_ino == node.key.inode)
      return status;
  }
  auto file = open_inode(node, O_PATH | O_NOFOLLOW);
  if (!file && file.error().errno_value == ESTALE)
    for (const auto& last : {nodes_.last_status(node.id), going_.status(node.id)})
      if (last) return *last;
  if (!file) return fail(file.error());
  if (::fstat(file->get(), &status) != 0) return fail_errno(errno);
  return status;
}

Result<Entry> Operations::attributes(NodeId id) {
  if (id == kMetadataNode) return metadata_entry();
  auto node = nodes_.find(id);
  if (!node) return fail(node.error());
  auto entry = is_fixed(id) ? zone_entry(node->zone) : current_entry(*node);
  if (entry && rule_of(node->zone).changes_underneath) drop_outdated_listing(*node, entry->attributes);
  return entry;
}

void Operations::drop_outdated_listing(const Node& node, const struct stat& status) {
  if (!node.is_directory() || !listings_.is_outdated(node.id, status.st_ctim)) return;
  kernel_.inode_now(node.id);
  // A part of it may be on its way still, and be kept when it arrives.
  kernel_.after_changes_in(node.id, [this, id = node.id] { kernel_.inode(id); });
}

Result<Entry> Operations::current_entry(const Node& node) {
  auto status = status_of(node);
  if (!status) return fail(status.error());
  return entry_of(node, *status);
}

std::optional<timespec> Operations::birth_time(NodeId id) {
  if (id == kMetadataNode) return config_.created_at;
  const auto node = nodes_.find(id);
  if (!node) return std::nullopt;
  const auto file = attribute_file(*node);
  if (!file && is_fixed(id)) return config_.created_at;
  struct statx status {};
  if (!file || ::statx((*file)->get(), "", AT_EMPTY_PATH, STATX_BTIME, &status) != 0 ||
      !(status.stx_mask & STATX_BTIME))
    return std::nullopt;
  return timespec{status.stx_btime.tv_sec, status.stx_btime.tv_nsec};
}

Result<Node> Operations::changeable(NodeId id, std::string_view operation) {
  auto node = nodes_.find(id);
  if (!node) return node;
  if (const int error = rule_of(node->zone).write_error)
    return deny(operation, node->parent, node->name.c_str(), error);
  return node;
}

Result<void> Operations::make_if_zone(const Node& node) {
  return is_zone_directory(node.id) ? workspace_.materialize(node.zone) : Result<void>();
}

Result<Entry> Operations::set_attributes(const Request& request, NodeId id, const SetAttributes& wanted) {
  auto node = changeable(id, "setattr");
  if (!node) return fail(node.error());
  if (auto made = make_if_zone(*node); !made) return fail(made.error());
  recorder_.record(*node, wanted.size ? ChangeKind::kContent : ChangeKind::kAttributes);

  auto file = attribute_file(*node);
  if (!file) return fail(file.error());
  if (wanted.accessed) access_order_.before_setting(id, request.unique);
  const auto allowed = judged(request, *node, (*file)->get(), wanted);
  if (!allowed) return fail(allowed.error());
  auto applied = apply(request, *node, (*file)->get(), *allowed);
  struct stat status {};
  if (applied && ::fstat((*file)->get(), &status) != 0) applied = fail_errno(errno);
  if (applied) return entry_of(*node, status);
  kernel_.attributes_now(id);  // some of it may have been done
  return fail(applied.error());
}

/// As setattr_prepare() does (fs/attr.c).
Result<SetAttributes> Operations::judged(const Request& request, const Node& node, int file,
                                         SetAttributes wanted) const {
  const auto is_now = [](const auto& time) { return time && time->tv_nsec == UTIME_NOW; };
  // A size comes with a time.
  const bool has_times = (wanted.accessed || wanted.modified) && !wanted.size;
  const bool touches = has_times && is_now(wanted.accessed) && is_now(wanted.modified);
  const bool sets_times = has_times && !touches;
  const bool gives_away = wanted.uid || wanted.gid;
  if (!rule_of(node.zone).changes_underneath) return wanted;
  struct stat inode {};
  if (::fstat(file, &inode) != 0) return fail_errno(errno);
  // As touch(1) does, may who can write to it, too.
  const bool writes = (wanted.size && wanted.size_by_path) || (touches && !may_change_mode(request, inode));
  if (writes && !may_still(request, node.zone, file, S_IWOTH)) return fail_errno(EACCES);
  if ((wanted.mode || sets_times) && !may_change_mode(request, inode)) return fail_errno(EPERM);
  const bool keeps_owner = !wanted.uid || *wanted.uid == inode.st_uid;
  const bool is_own_group = !wanted.gid || *wanted.gid == inode.st_gid || is_in_group(request, *wanted.gid);
  const bool gives_own = request.uid == inode.st_uid && keeps_owner && is_own_group;
  if (gives_away && !gives_own && !is_capable_over(request, inode, CAP_CHOWN)) return fail_errno(EPERM);
  if (wanted.mode && (*wanted.mode & S_ISGID) && !may_set_group_id(request, inode))
    *wanted.mode &= ~static_cast<mode_t>(S_ISGID);
  return wanted;
}

/// As mode_strip_sgid() does (fs/inode.c).
mode_t Operations::judged_mode(const Request& request, const Directory& directory, mode_t mode) const {
  constexpr mode_t kRunsAsGroup = S_ISGID | S_IXGRP;
  struct stat parent {};
  if (!rule_of(directory.zone).changes_underneath || (mode & kRunsAsGroup) != kRunsAsGroup) return mode;
  const bool is_judged = ::fstat(directory.file.get(), &parent) == 0 &&
                         (!(parent.st_mode & S_ISGID) || may_set_group_id(request, parent));
  return is_judged ? mode : mode & ~static_cast<mode_t>(S_ISGID);
}

Result<void> Operations::resize(const Node& node, int file, const SetAttributes& wanted) {
  // truncate(2) to the same size leaves the times alone, ftruncate(2) does not. It would wait for a lease of
  // the host's, which nobody gets while the file is open for writing.
  const bool needs_open = !wanted.size_by_path || rule_of(node.zone).changes_underneath;
  auto opened = needs_open && wanted.writable < 0 ? open_backing(node, O_WRONLY) : Result<FileDescriptor>();
  if (!opened) return fail(opened.error());
  const int writable = wanted.writable < 0 ? opened->get() : wanted.writable;
  if (with_faults("backing.truncate", [&] {
        return wanted.size_by_path ? ::truncate(ProcPath(file).c_str(), *wanted.size)
                                   : ::ftruncate(writable, *wanted.size);
      }) != 0)
    return fail_errno(errno);
  return {};
}

/// The mode that was asked for, or the one that is left where privileges go; none if it stays.
/// Judged by the group that the file has before it is given away (chown_common, linux/fs/open.c).
Result<std::optional<mode_t>> Operations::mode_to_set(const Request& request, const Node& node, int file,
                                                      const SetAttributes& wanted) {
  if (wanted.mode || !request.kill_privileges) return wanted.mode;
  struct stat status {};
  if (::fstat(file, &status) != 0) return fail_errno(errno);
  if (S_ISDIR(status.st_mode) || !(status.st_mode & (S_ISUID | S_ISGID))) return std::nullopt;
  if (request.unless_capable && is_capable(request, CAP_FSETID)) return std::nullopt;
  const mode_t kept = without_privileges(status, request);
  if (kept == status.st_mode) return std::nullopt;
  // To clear them is to change the mode, for which the right to chown(2) is not enough. The kernel asks for
  // the same when a write clears them, and for a chown(2) to nobody else.
  const bool is_chown =
      wanted.uid || wanted.gid || (wanted.owner_touched && nodes_.open_state(node.id).writers == 0);
  if (is_chown && !may_change_mode(request, status)) return fail_errno(EPERM);
  return kept;
}

Result<void> Operations::apply(const Request& request, const Node& node, int file,
                               const SetAttributes& wanted) {
  if (wanted.size)
    if (auto resized = resize(node, file, wanted); !resized) return resized;
  const auto mode = mode_to_set(request, node, file, wanted);
  if (!mode) return fail(mode.error());
  if (wanted.uid || wanted.gid || wanted.owner_touched) {
    const uid_t uid = wanted.uid.value_or(static_cast<uid_t>(-1));
    const gid_t gid = wanted.gid.value_or(static_cast<gid_t>(-1));
    if (with_faults("backing.chown",
                    [&] { return ::fchownat(file, "", uid, gid, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW); }) != 0)
      return fail_errno(errno);
  }
  if (*mode) {
    const mode_t bits = **mode & 07777;
    if (with_faults("backing.chmod", [&] {
          return on_inode(
              file, [=](int fd) { return ::fchmod(fd, bits); },
              [=](const char* path) { return ::chmod(path, bits); });
        }) != 0)
      return fail_errno(errno);
    if (!wanted.mode)
      kernel_.attributes_now(node.id);  // of an open that empties a file it expects no other mode
    // Bits that a write must clear: the next open must see to that itself, not through the kernel's own path.
    if (**mode & (S_ISUID | S_ISGID)) backings_.drop_unused(node.id);
  }
  if (wanted.accessed || wanted.modified) {
    const timespec omit{0, UTIME_OMIT};
    const timespec times[2] = {wanted.accessed.value_or(omit), wanted.modified.value_or(omit)};
    if (with_faults("backing.utimens",
                    [&] { return ::utimensat(file, "", times, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW); }) != 0)
      return fail_errno(errno);
  }
  return {};
}

// -- Extended attributes

Result<std::string> Operations::extended_attribute(NodeId id, const char* name) {
  if (!is_allowed_attribute(name)) return fail_errno(EOPNOTSUPP);
  auto node = nodes_.find(id);
  if (!node) return fail(node.error());
  auto file = attribute_file(*node);
  if (!file && is_fixed(id)) return fail_errno(ENODATA);
  if (!file) return fail(file.error());
  const auto get = [&](char* into, std::size_t room) {
    return on_inode((*file)->get(), [=](int fd) { return ::fgetxattr(fd, name, into, room); },
                    [=](const char* path) { return ::getxattr(path, name, into, room); });
  };
  std::array<char, 256> small;
  ssize_t size = get(small.data(), small.size());
  if (size >= 0) return std::string(small.data(), static_cast<std::size_t>(size));
  if (errno != ERANGE) return fail_errno(errno);
  std::string value(XATTR_SIZE_MAX, '\0');
  size = get(value.data(), value.size());
  if (size < 0) return fail_errno(errno);
  value.resize(static_cast<std::size_t>(size));
  return value;
}

Result<std::string> Operations::extended_attribute_names(NodeId id) {
  auto node = nodes_.find(id);
  if (!node) return fail(node.error());
  auto file = attribute_file(*node);
  if (!file && is_fixed(id)) return std::string();
  if (!file) return fail(file.error());
  std::string all(256, '\0');
  const auto list = [&] {
    return on_inode((*file)->get(), [&](int fd) { return ::flistxattr(fd, all.data(), all.size()); },
                    [&](const char* path) { return ::listxattr(path, all.data(), all.size()); });
  };
  ssize_t size = list();
  if (size < 0 && errno == ERANGE) {
    all.resize(XATTR_LIST_MAX);
    size = list();
  }
  if (size < 0 && errno == EOPNOTSUPP) return std::string();
  if (size < 0) return fail_errno(errno);
  std::string allowed;
  for (ssize_t at = 0; at < size;) {
    const std::string_view name(all.data() + at);
    at += static_cast<ssize_t>(name.size()) + 1;
    if (is_allowed_attribute(name)) allowed.append(name).push_back('\0');
  }
  return allowed;
}

/// A zone that was not written yet has none that could be replaced or removed.
Unexpected Operations::why_no_attributes(const Node& node, const Error& error) {
  return error.errno_value == ENOENT && is_zone_directory(node.id) ? fail_errno(ENODATA) : fail(error);
}

Result<void> Operations::set_extended_attribute(const Request& request, NodeId id, const char* name,
                                                std::span<const char> value, int flags) {
  auto node = changeable(id, "setxattr");
  if (!node) return fail(node.error());
  if (is_acl(name)) return set_acl(request, *node, name, value);
  if (!is_allowed_attribute(name)) return fail_errno(EOPNOTSUPP);
  if (!(flags & XATTR_REPLACE))
    if (auto made = make_if_zone(*node); !made) return made;
  auto file = attribute_file(*node);
  if (!file) return why_no_attributes(*node, file.error());
  if (!may_still(request, node->zone, (*file)->get(), S_IWOTH)) return fail_errno(EACCES);
  if (!can_be_listed_with((*file)->get(), name)) return fail_errno(ENOSPC);
  recorder_.record(*node, ChangeKind::kAttributes);
  if (request.may_have_run && request.noted == Fact::attribute(false)) flags &= ~XATTR_CREATE;
  if (with_faults("backing.setxattr", [&] {
        return on_inode(
            (*file)->get(), [&](int fd) { return ::fsetxattr(fd, name, value.data(), value.size(), flags); },
            [&](const char* path) { return ::setxattr(path, name, value.data(), value.size(), flags); });
      }) != 0)
    return fail_errno(errno);
  attributes_changed(id);
  return {};
}

Result<void> Operations::set_acl(const Request& request, const Node& node, std::string_view name,
                                 std::span<const char> value) {
  const auto permissions = name == XATTR_NAME_POSIX_ACL_ACCESS ? mode_of_acl(value) : std::nullopt;
  if (!permissions) return fail_errno(EOPNOTSUPP);
  if (auto made = make_if_zone(node); !made) return made;
  auto file = attribute_file(node);
  if (!file) return fail(file.error());
  struct stat status {};
  if (::fstat((*file)->get(), &status) != 0) return fail_errno(errno);
  if (!may_change_mode(request, status)) return fail_errno(EPERM);  // Linux before 6.2 does not ask that
  SetAttributes wanted;
  wanted.mode = (status.st_mode & 07000) | *permissions;
  if ((status.st_mode & S_ISGID) && !may_set_group_id(request, status))
    *wanted.mode &= ~static_cast<mode_t>(S_ISGID);
  const auto allowed = judged(request, node, (*file)->get(), wanted);
  if (!allowed) return fail(allowed.error());
  recorder_.record(node, ChangeKind::kAttributes);
  auto applied = apply(request, node, (*file)->get(), *allowed);
  if (applied) kernel_.attributes_now(node.id);  // it does not know that this changes the mode
  return applied;
}

Fact Operations::attribute_fact(NodeId id, const char* name) {
  const auto node = nodes_.find(id);
  const auto file = node && is_allowed_attribute(name) ? attribute_file(*node) : fail_errno(ENODATA);
  const bool is_there =
      file && on_inode((*file)->get(), [=](int fd) { return ::fgetxattr(fd, name, nullptr, 0); },
                       [=](const char* path) { return ::getxattr(path, name, nullptr, 0); }) >= 0;
  return Fact::attribute(is_there);
}

Result<void> Operations::remove_extended_attribute(const Request& request, NodeId id, const char* name) {
  auto node = changeable(id, "removexattr");
  if (!node) return fail(node.error());
  if (is_acl(name)) return {};  // there never is one
  if (!is_allowed_attribute(name)) return fail_errno(EOPNOTSUPP);
  auto file = attribute_file(*node);
  if (!file) return why_no_attributes(*node, file.error());
  if (!may_still(request, node->zone, (*file)->get(), S_IWOTH)) return fail_errno(EACCES);
  recorder_.record(*node, ChangeKind::kAttributes);
  const bool was_there = request.may_have_run && request.noted == Fact::attribute(true);
  if (with_faults("backing.removexattr",
                  [&] {
                    return on_inode((*file)->get(), [=](int fd) { return ::fremovexattr(fd, name); },
                                    [=](const char* path) { return ::removexattr(path, name); });
                  }) != 0 &&
      !(was_there && errno == ENODATA))
    return fail_errno(errno);
  attributes_changed(id);
  return {};
}

Result<struct statvfs> Operations::file_system_status(NodeId id) {
  auto node = nodes_.find(id);
  if (!node) return fail(node.error());
  const auto volume = workspace_.volume(node->key.volume);
  struct statvfs status {};
  if (!volume) return fail_errno(ESTALE);
  if (::fstatvfs(volume->root(), &status) != 0) return fail_errno(errno);
  return status;
}

}  // namespace okcvm::fusefs
