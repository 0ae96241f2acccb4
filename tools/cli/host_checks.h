#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace okcvm::cli {

enum class Level : std::uint8_t { kOk, kWarn, kFail };
std::string_view name_of(Level level);

/// One thing that was looked at, and what to do if it is not well.
struct Finding {
  Level level;
  std::string check;   // "device", a stable word for programs
  std::string text;    // what was found
  std::string remedy;  // empty where there is nothing to do
};

/// Where the daemon would keep things.
struct HostLayout {
  std::string state_dir;
  std::string mount_root;
  bool daemon_answers = false;
};

/// Looks at this host the way okcvmd will use it. Changes nothing, needs no daemon, and never waits for a
/// mount that hangs (not more than a second each).
std::vector<Finding> check_host(const HostLayout& layout);

/// Features of the kernel's FUSE, asked of the kernel itself: a file system is made, attached nowhere, its
/// first request (INIT) read, and everything dropped again. Needs root.
struct FuseFeatures {
  bool known = false;
  std::string problem;  // why not known
  std::uint32_t major = 0;
  std::uint32_t minor = 0;
  bool passthrough = false;
  bool resend = false;
};
FuseFeatures ask_kernel_for_fuse_features();

/// The parts of a `/proc/self/mountinfo` line that matter here.
struct MountLine {
  std::string mount_point;  // octal escapes resolved
  std::string type;         // "fuse.okcvm"
  std::uint32_t device_minor = 0;
};
std::vector<MountLine> parse_mountinfo(const std::string& text);

}  // namespace okcvm::cli
