#pragma once

#include <fcntl.h>
#include <sys/types.h>
#include <time.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace okcvm::differential {

/// One kind a system call (or a short, fixed way of using one).
enum class Kind : std::uint8_t {
  kOpen,
  kOpenAt,
  kClose,
  kRead,
  kWrite,
  kSeek,
  kFtruncate,
  kFallocate,
  kFsync,
  kFstat,
  kFchmod,
  kFchown,
  kFutimens,
  kCopyRange,
  kMapWrite,
  kMapRead,
  kFlock,
  kLock,
  kTestLock,
  kListOpen,
  kMap,
  kMapStore,
  kMapLoad,
  kUnmap,
  kTruncate,
  kMkdir,
  kMknod,
  kUnlink,
  kRmdir,
  kUnlinkAt,
  kRename,
  kLink,
  kLinkOpen,
  kSymlink,
  kReadlink,
  kStat,
  kAccess,
  kChmod,
  kChown,
  kUtimens,
  kList,
  kSetXattr,
  kGetXattr,
  kListXattr,
  kRemoveXattr,
};
inline constexpr std::size_t kKinds = static_cast<std::size_t>(Kind::kRemoveXattr) + 1;

inline constexpr int kSlots = 12;    // open files at a time
inline constexpr int kMappings = 4;  // that outlive their calls
inline constexpr int kUsers = 3;     // root, and two ordinary users

/// All arguments of a call, chosen beforehand, so that a run can be replayed with any of its steps left out.
struct Operation {
  Kind kind = Kind::kStat;
  int who = 0;        // index of a user
  std::string path;   // relative to the directory under test
  std::string path2;  // of calls with two, and the text of a symbolic link
  std::string name;   // of an extended attribute
  int slot = 0;       // of calls on an open file
  int slot2 = 0;
  int mapping = 0;  // of calls on one that is kept
  int flags = 0;
  mode_t mode = 0;
  mode_t umask = 022;
  uid_t uid = 0;
  gid_t gid = 0;
  off_t offset = 0;
  off_t offset2 = 0;
  off_t length = 0;
  unsigned int seed = 0;  // of the bytes to be written
  std::array<timespec, 2> times{};
};

/// What a kind is called, how often it is chosen, and what it touches.
struct KindFacts {
  std::string_view name;
  int weight;
  bool uses_path;
  bool uses_path2;
  bool uses_slot;
  bool uses_slot2;
};
const KindFacts& facts_of(Kind kind);

/// A line for people, with the arguments that matter.
std::string describe(const Operation& operation);
/// A name or text with everything odd in it made visible, shortened.
std::string printable(std::string_view text);

}  // namespace okcvm::differential
