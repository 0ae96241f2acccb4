#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "policy/caller.h"

namespace okcvm::daemon {

/// The process at the other end of a control connection, as the kernel names it (SO_PEERCRED, SO_PEERGROUPS).
struct Peer {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;

  /// Who may use what this user owns, and nothing more.
  static Peer of_user(uid_t user) { return {0, user, 0, {}}; }

  bool is_root() const { return uid == 0; }
  bool may_use(uid_t owner) const { return is_root() || uid == owner; }
  bool is_in(gid_t group) const;
  Caller caller() const { return Caller{uid, gid, groups}; }
};

/// A user of the host, from the user database.
struct HostUser {
  std::string name;
  std::string home;
  gid_t gid = 0;
  std::vector<gid_t> groups;  // with gid
};
std::optional<HostUser> host_user(uid_t uid);
/// Such a user and his groups, as the kernel tells callers apart.
Caller host_caller(uid_t uid, gid_t gid);
/// A user's name alone, which costs far less.
std::optional<std::string> host_user_name(uid_t uid);

}  // namespace okcvm::daemon
