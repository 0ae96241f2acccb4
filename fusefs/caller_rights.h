#pragma once

#include <sys/stat.h>

#include "fusefs/files.h"
#include "fusefs/types.h"

namespace okcvm::fusefs {

/// The sticky bit lets only the owners remove or replace in a directory (unlink(2)).
bool may_remove(const Caller& caller, const struct stat& directory, const struct stat& entry);

Request request_of(const Caller& caller);

/// Whether a process is in a group, as its supplementary groups go.
bool is_in_group(const Request& request, gid_t gid);
/// Whether the caller has a capability (capabilities(7)) that is not only one of a user namespace (capable()
/// in kernel/capability.c).
bool is_capable(const Request& request, int capability);

/// Whether the caller may leave an inode, of its group, the set-group-ID bit (in_group_or_capable() in
/// fs/inode.c).
bool may_set_group_id(const Request& request, const struct stat& inode);

/// Whether the caller has a capability over an inode: root's, or in a container that of its root
/// over what belongs to users and groups of the container (user_namespaces(7); capable_wrt_inode_uidgid() in
/// kernel/capability.c).
bool is_capable_over(const Request& request, const struct stat& inode, int capability);

/// Whether the caller may change an inode's mode or times: CAP_FOWNER over it asks for its user alone
/// (inode_owner_or_capable() in fs/inode.c).
bool may_change_mode(const Request& request, const struct stat& inode);

/// Whether the caller has all rights `wanted` (of S_IRWXO) to an inode, by its mode or with CAP_DAC_OVERRIDE
/// or, to read it only, CAP_DAC_READ_SEARCH over it (generic_permission() in fs/namei.c).
bool may_access(const Request& request, const struct stat& inode, mode_t wanted);

/// An error of the driver with words for a person: what to do, at the path that was asked for.
Unexpected explained(const Error& error, std::string_view path);

}  // namespace okcvm::fusefs
