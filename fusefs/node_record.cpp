#include "fusefs/node_record.h"

#include <cstddef>
#include <cstring>

namespace okcvm::fusefs {
namespace {

struct LastStatus {
  std::int64_t size;
  std::int64_t accessed, modified, changed;  // in seconds
  std::uint32_t accessed_ns, modified_ns, changed_ns;
  std::uint32_t mode, uid, gid;
  std::array<char, 3> mark;
};
constexpr std::size_t kSize = offsetof(LastStatus, mark) + sizeof(LastStatus::mark);
static_assert(kSize == sizeof(NodeRecord::name));
// What no name leaves behind at this place, for want of a NUL byte in it.
constexpr std::array<char, 3> kMark{'\xff', '\0', '\xff'};

std::uint32_t nanoseconds(const timespec& time) {
  return static_cast<std::uint32_t>(time.tv_nsec);
}

}  // namespace

bool is_sound(const NodeRecord& record, std::uint32_t slot) {
  return NodeId{record.id.load()}.slot() == slot &&
         static_cast<std::size_t>(record.zone) < kZoneRules.size() &&
         record.handle_size <= record.handle.size() && record.name_size <= record.name.size();
}

void clear_name(NodeRecord& record) {
  record.name_size = 0;
  record.name.fill('\0');
}

void note_last_status(NodeRecord& record, const struct stat& status) {
  if (!record.dead) return;
  const LastStatus last{status.st_size,
                        status.st_atim.tv_sec,
                        status.st_mtim.tv_sec,
                        status.st_ctim.tv_sec,
                        nanoseconds(status.st_atim),
                        nanoseconds(status.st_mtim),
                        nanoseconds(status.st_ctim),
                        status.st_mode,
                        status.st_uid,
                        status.st_gid,
                        kMark};
  std::memcpy(record.name.data(), &last, kSize);
}

std::optional<struct stat> last_status(const NodeRecord& record) {
  LastStatus last{};
  std::memcpy(&last, record.name.data(), kSize);
  if (!record.dead || last.mark != kMark) return std::nullopt;
  struct stat status {};
  status.st_ino = record.inode;
  status.st_mode = last.mode;
  status.st_uid = last.uid;
  status.st_gid = last.gid;
  status.st_size = last.size;
  status.st_blksize = 4096;
  status.st_blocks = (last.size + 511) / 512;
  status.st_atim = {last.accessed, last.accessed_ns};
  status.st_mtim = {last.modified, last.modified_ns};
  status.st_ctim = {last.changed, last.changed_ns};
  return status;
}

}  // namespace okcvm::fusefs
