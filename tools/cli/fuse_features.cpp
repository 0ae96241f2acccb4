// Asks the kernel what its FUSE can do, by being a FUSE server for one message.

#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "policy/file_descriptor.h"
#include "tools/cli/host_checks.h"

namespace okcvm::cli {

namespace {

// linux/fuse.h of Debian 12 is older than these (DESIGN section 7): of fuse_init_in.flags, and of its flags2.
constexpr std::uint32_t kInitExt = 1U << 30;
constexpr std::uint32_t kPassthrough2 = 1U << 5;
constexpr std::uint32_t kHasResend2 = 1U << 7;
constexpr std::chrono::milliseconds kInitTimeout{2000};

struct InitMessage {
  fuse_in_header header;
  std::uint32_t major;
  std::uint32_t minor;
  std::uint32_t max_readahead;
  std::uint32_t flags;
  std::uint32_t flags2;
};

struct Reply {
  int error = 0;
  const char* step = "";
  InitMessage init{};
};

/// A FUSE super block, whose making sends the first request. It is mounted nowhere and goes with its
/// descriptor.
Reply be_a_server_for_one_message() {
  Reply reply;
  const auto fail = [&](const char* step) {
    reply.error = errno;
    reply.step = step;
    return reply;
  };
  const FileDescriptor file_system(::fsopen("fuse", FSOPEN_CLOEXEC));
  if (!file_system) return fail("fsopen");
  const FileDescriptor device(::open("/dev/fuse", O_RDWR | O_CLOEXEC));
  if (!device) return fail("open /dev/fuse");
  const std::string number = std::to_string(device.get());
  for (const auto& [key, value] :
       {std::pair{"fd", number.c_str()}, {"rootmode", "40000"}, {"user_id", "0"}, {"group_id", "0"}})
    if (::fsconfig(file_system.get(), FSCONFIG_SET_STRING, key, value, 0) != 0) return fail(key);
  if (::fsconfig(file_system.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0) return fail("fsconfig");
  const FileDescriptor mount(
      ::fsmount(file_system.get(), FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV));
  if (!mount) return fail("fsmount");
  pollfd ready{device.get(), POLLIN, 0};
  if (::poll(&ready, 1, static_cast<int>(kInitTimeout.count())) <= 0) {
    errno = ETIMEDOUT;
    return fail("wait for the first request");
  }
  std::array<char, std::size_t{128} << 10> buffer{};
  const ssize_t size = ::read(device.get(), buffer.data(), buffer.size());
  if (size < 0) return fail("read the first request");
  std::memcpy(&reply.init, buffer.data(),
              std::min<std::size_t>(static_cast<std::size_t>(size), sizeof reply.init));
  return reply;
}

}  // namespace

FuseFeatures ask_kernel_for_fuse_features() {
  FuseFeatures features;
  const Reply reply = be_a_server_for_one_message();
  if (reply.error != 0) {
    features.problem = std::string(reply.step) + ": " + std::strerror(reply.error);
    return features;
  }
  const bool extended = (reply.init.flags & kInitExt) != 0;
  features.known = true;
  features.major = reply.init.major;
  features.minor = reply.init.minor;
  features.passthrough = extended && (reply.init.flags2 & kPassthrough2) != 0;
  features.resend = extended && (reply.init.flags2 & kHasResend2) != 0;
  return features;
}

}  // namespace okcvm::cli
