#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "fusefs/fact.h"
#include "policy/zones.h"

namespace okcvm::fusefs {

/// The number by which the kernel knows an inode. Never reused within a mount, and the same to the daemon's
/// next incarnation: the slot of the node table in the low half, how often the slot was used before in the
/// high half.
struct NodeId {
  std::uint64_t value = 0;
  constexpr std::uint32_t slot() const { return static_cast<std::uint32_t>(value); }
  friend constexpr auto operator<=>(const NodeId&, const NodeId&) = default;  // NOLINT(modernize-use-nullptr)
};

inline constexpr NodeId kRootNode{1};      // FUSE_ROOT_ID, linux/fuse.h
inline constexpr NodeId kMetadataNode{2};  // .metadata.json
inline constexpr std::uint32_t kFirstZoneSlot = 8;
inline constexpr std::uint32_t kFirstFreeSlot = 16;

constexpr NodeId node_of(Zone zone) {
  return zone == Zone::kRoot ? kRootNode : NodeId{kFirstZoneSlot + static_cast<std::uint32_t>(zone)};
}
constexpr bool is_fixed(NodeId id) {
  return id.value < kFirstFreeSlot;
}
/// Whether the node is a zone's own directory.
constexpr bool is_zone_directory(NodeId id) {
  return id.value >= kFirstZoneSlot && id.value < kFirstFreeSlot;
}

/// A file system that holds nodes: the workspace, the bound workdir, or one skill.
using VolumeId = std::uint16_t;
inline constexpr VolumeId kWorkspaceVolume = 0;
inline constexpr VolumeId kWorkdirVolume = 1;
inline constexpr VolumeId kFirstSkillVolume = 2;
inline constexpr VolumeId kMaxSkillVolumes = 8190;  // all are told by 13 bits

/// The number that programs see: files of different file systems never look like links to one file.
constexpr std::uint64_t shown_inode(VolumeId volume, std::uint64_t inode) {
  constexpr int kVolumeShift = 50;
  return inode ^ (std::uint64_t{volume} << kVolumeShift);
}

/// A kernel file handle as name_to_handle_at(2) gives it; `size` 0 means none is known.
struct Handle {
  static constexpr std::size_t kMaxSize = 28;
  std::uint8_t type = 0;
  std::uint8_t size = 0;
  std::array<std::uint8_t, kMaxSize> bytes{};
  friend bool operator==(const Handle&, const Handle&) = default;
};

/// What identifies a backing inode while it exists.
struct InodeKey {
  VolumeId volume = 0;
  std::uint64_t inode = 0;
  friend bool operator==(const InodeKey&, const InodeKey&) = default;
};

/// How a mount begins: anew, or with what a dead daemon left of it.
enum class Start : std::uint8_t { kAnew, kTakeOver };

/// A copy of what the node table knows about one inode.
struct Node {
  NodeId id;
  NodeId parent;  // of the name by which it was last looked up
  InodeKey key;
  Zone zone = Zone::kRoot;
  mode_t type = 0;    // S_IFMT bits
  bool dead = false;  // its inode number stands for another node, or may: the last name is gone
  Handle handle;
  std::string name;                // last known; empty when unknown (too long for the table, or removed)
  bool stays_in_anywhere = false;  // as it is looked up: a link whose text may stand in any directory

  bool is_directory() const { return S_ISDIR(type); }
};

/// A file handle's number in the protocol; 0 is none.
struct FileId {
  std::uint64_t value = 0;
  friend constexpr auto operator<=>(const FileId&, const FileId&) = default;  // NOLINT(modernize-use-nullptr)
};

/// Who asks, and whether this request may have been carried out by a daemon that died before it answered.
struct Request {
  uid_t uid = 0;
  gid_t gid = 0;
  pid_t pid = 0;
  std::uint64_t unique = 0;  // the kernel's number of it, which grows; 0: not the kernel's
  bool may_have_run = false;
  Fact noted;  // then: the last one that daemon noted of it (SessionState::Change)
  bool kill_privileges =
      false;                    // the kernel asks to clear set-uid and set-gid bits (FUSE_HANDLE_KILLPRIV_V2)
  bool unless_capable = false;  // but only of who may not keep them (CAP_FSETID)
  Fact* fact = nullptr;

  /// Notes what the next daemon needs to know of this request, should this one die now.
  void note(Fact what) const {
    if (fact) std::atomic_ref(*fact).store(what, std::memory_order_release);
  }
};

}  // namespace okcvm::fusefs
