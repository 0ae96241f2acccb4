#include "tools/daemon/sessions/peer.h"

#include <grp.h>
#include <pwd.h>

#include <algorithm>
#include <array>

namespace okcvm::daemon {

bool Peer::is_in(gid_t group) const {
  return group == gid || std::find(groups.begin(), groups.end(), group) != groups.end();
}

std::optional<HostUser> host_user(uid_t uid) {
  std::array<char, 16384> space{};
  passwd entry{};
  passwd* found = nullptr;
  if (::getpwuid_r(uid, &entry, space.data(), space.size(), &found) != 0 || !found) return std::nullopt;
  HostUser user{entry.pw_name, entry.pw_dir, entry.pw_gid, std::vector<gid_t>(64)};
  int count = static_cast<int>(user.groups.size());
  if (::getgrouplist(entry.pw_name, entry.pw_gid, user.groups.data(), &count) < 0) {
    user.groups.resize(static_cast<std::size_t>(count));
    ::getgrouplist(entry.pw_name, entry.pw_gid, user.groups.data(), &count);
  }
  user.groups.resize(static_cast<std::size_t>(std::max(count, 0)));
  return user;
}

Caller host_caller(uid_t uid, gid_t gid) {
  auto user = host_user(uid);
  return {uid, gid, user ? std::move(user->groups) : std::vector<gid_t>()};
}

std::optional<std::string> host_user_name(uid_t uid) {
  std::array<char, 16384> space{};
  passwd entry{};
  passwd* found = nullptr;
  if (::getpwuid_r(uid, &entry, space.data(), space.size(), &found) != 0 || !found) return std::nullopt;
  return entry.pw_name;
}

}  // namespace okcvm::daemon
