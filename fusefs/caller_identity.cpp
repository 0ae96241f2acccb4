#include "fusefs/caller_identity.h"

#include <linux/capability.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>

namespace okcvm::fusefs {
namespace {

struct Identity {
  uid_t uid;
  gid_t gid;
  bool stays = false;
};

const Identity& daemon_identity() {
  static const Identity identity{::geteuid(), ::getegid()};
  return identity;
}

using CapabilityWords = std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3>;

const CapabilityWords& own_capabilities() {
  static const CapabilityWords words = [] {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    CapabilityWords found{};
    ::syscall(SYS_capget, &header, found.data());
    return found;
  }();
  return words;
}

void set_capabilities(const CapabilityWords& words) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  ::syscall(SYS_capset, &header, words.data());
}

Identity& current() {
  // A thread starts as the one that made it. Numbers that are none change nothing and tell what was.
  thread_local Identity identity{static_cast<uid_t>(::setfsuid(static_cast<uid_t>(-1))),
                                 static_cast<gid_t>(::setfsgid(static_cast<gid_t>(-1)))};
  return identity;
}

void become(uid_t uid, gid_t gid) {
  Identity& now = current();
  if (now.gid != gid) ::setfsgid(gid);
  if (now.uid != uid) {
    const auto& capabilities = own_capabilities();
    ::setfsuid(uid);  // takes the rights over files away with root's number
    if (now.uid == 0) set_capabilities(capabilities);
  }
  now.uid = uid;
  now.gid = gid;
}

}  // namespace

CallerIdentity::CallerIdentity(const Request& caller) {
  become(caller.uid, caller.gid);
}

CallerIdentity::~CallerIdentity() {
  if (!current().stays) drop();
}

void CallerIdentity::keep_in_this_thread() {
  drop();
  current().stays = true;
}

WithoutFowner::WithoutFowner() {
  auto words = own_capabilities();
  words[CAP_TO_INDEX(CAP_FOWNER)].effective &= ~CAP_TO_MASK(CAP_FOWNER);
  set_capabilities(words);
}

WithoutFowner::~WithoutFowner() {
  set_capabilities(own_capabilities());
}

void CallerIdentity::drop() {
  become(daemon_identity().uid, daemon_identity().gid);
}

}  // namespace okcvm::fusefs
