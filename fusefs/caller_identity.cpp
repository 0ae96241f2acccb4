#include "fusefs/caller_identity.h"

#include <linux/capability.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>

namespace okcvm::fusefs {
namespace {

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

}  // namespace

CallerIdentity::CallerIdentity(const Request& caller) {
  const auto& capabilities = own_capabilities();
  ::setfsgid(caller.gid);
  ::setfsuid(caller.uid);  // takes the rights over files away with root's number
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  ::syscall(SYS_capset, &header, capabilities.data());
}

CallerIdentity::~CallerIdentity() {
  ::setfsuid(::geteuid());
  ::setfsgid(::getegid());
}

}  // namespace okcvm::fusefs
