#pragma once

// The one place that includes libfuse, and what the kernel's protocol (7.45) has beyond libfuse 3.14 and this
// system's linux/fuse.h. Sources: include/uapi/linux/fuse.h of Linux 6.18.

#ifndef FUSE_USE_VERSION
#define FUSE_USE_VERSION 314
#endif
#include <fuse3/fuse_lowlevel.h>
#include <linux/fuse.h>
#include <sys/ioctl.h>

#include <cstdint>

namespace okcvm::fusefs::protocol {

// INIT flags; those above bit 31 travel in flags2.
inline constexpr std::uint64_t kPassthrough = std::uint64_t{1} << 37;
inline constexpr std::uint64_t kHasResend = std::uint64_t{1} << 39;
inline constexpr std::uint64_t kNoOpendirSupport = std::uint64_t{1} << 24;

// fuse_init_out ends in: flags2, max_stack_depth, ...
inline constexpr std::size_t kMaxStackDepthOffset = offsetof(fuse_init_out, flags2) + sizeof(std::uint32_t);

// fuse_open_out.open_flags; the backing id is its last word.
inline constexpr std::uint32_t kOpenPassthrough = 1u << 7;

// A request like CREATE, for a file without a name (O_TMPFILE); the name in it means nothing.
inline constexpr std::uint32_t kTmpfile = 51;
// A request like GETATTR, by statx(2) for more than stat(2) tells.
inline constexpr std::uint32_t kStatx = 52;

inline constexpr std::uint32_t kSetattrKillSuidgid = 1u << 11;  // FATTR_KILL_SUIDGID
inline constexpr std::uint32_t kWriteKillSuidgid = 1u << 2;     // FUSE_WRITE_KILL_SUIDGID
inline constexpr std::uint32_t kOpenKillSuidgid = 1u << 0;      // FUSE_OPEN_KILL_SUIDGID

// A request that was sent before, to a daemon that did not answer it.
inline constexpr std::uint64_t kUniqueResend = std::uint64_t{1} << 63;
inline constexpr std::int32_t kNotifyResend = 7;

struct StatxTime {
  std::int64_t seconds;
  std::uint32_t nanoseconds;
  std::int32_t reserved;
};
struct Statx {
  std::uint32_t mask;  // statx(2)'s
  std::uint32_t block_size;
  std::uint64_t attributes;
  std::uint32_t links;
  std::uint32_t uid;
  std::uint32_t gid;
  std::uint16_t mode;
  std::uint16_t spare;
  std::uint64_t inode;
  std::uint64_t size;
  std::uint64_t blocks;
  std::uint64_t attributes_mask;
  StatxTime accessed;
  StatxTime born;
  StatxTime changed;
  StatxTime modified;
  std::uint32_t device_major, device_minor;  // of a device node
  std::uint32_t on_major, on_minor;
  std::uint64_t spares[14];
};
struct StatxOut {
  std::uint64_t valid_seconds;
  std::uint32_t valid_nanoseconds;
  std::uint32_t flags;
  std::uint64_t spares[2];
  Statx status;
};
static_assert(sizeof(StatxOut) == 288);

struct BackingMap {
  std::int32_t fd;
  std::uint32_t flags;
  std::uint64_t padding;
};
inline constexpr unsigned long kBackingOpen = _IOW(229, 1, BackingMap);
inline constexpr unsigned long kBackingClose = _IOW(229, 2, std::uint32_t);

}  // namespace okcvm::fusefs::protocol
