#include "fusefs/volume.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cstring>

#include "policy/proc_path.h"

namespace okcvm::fusefs {
namespace {

struct KernelHandle {
  file_handle head;
  unsigned char bytes[Handle::kMaxSize];
};
// What counts as little: a sixteenth, but of a large file system not more than this.
constexpr std::uint64_t kLittleShare = 16;
constexpr std::uint64_t kLittleRoom = 64 << 20;  // in bytes
constexpr std::uint64_t kFewInodes = 1024;
constexpr std::chrono::milliseconds kRoomKnownFor{1};
constexpr std::uint8_t kPinnedType = 0xff;  // FILEID_INVALID, linux/exportfs.h: no file system uses it

Result<Handle> kernel_handle(int directory, const char* name) {
  KernelHandle raw{};
  raw.head.handle_bytes = Handle::kMaxSize;
  int mount_id = 0;
  if (::name_to_handle_at(directory, name, &raw.head, &mount_id, *name ? 0 : AT_EMPTY_PATH) != 0)
    return fail_errno(errno);
  Handle handle;
  handle.type = static_cast<std::uint8_t>(raw.head.handle_type);
  handle.size = static_cast<std::uint8_t>(raw.head.handle_bytes);
  std::memcpy(handle.bytes.data(), raw.head.f_handle, handle.size);
  return handle;
}

Result<FileDescriptor> open_handle(int root, const Handle& handle, int flags) {
  KernelHandle raw{};
  raw.head.handle_type = handle.type;
  raw.head.handle_bytes = handle.size;
  std::memcpy(raw.head.f_handle, handle.bytes.data(), handle.size);
  const auto open = [&] { return FileDescriptor(::open_by_handle_at(root, &raw.head, flags | O_CLOEXEC)); };
  FileDescriptor file = open();
  if (!file && errno == ENOMEM) file = open();
  // ext4 says so of an inode whose number is being given to another one just then.
  if (!file) return fail_errno(errno == ENOMEM ? ESTALE : errno);
  return file;
}

/// Another descriptor of the same file, opened anew; negative with errno set on failure.
int reopen(int file, int flags) {
  return ::open(ProcPath(file).c_str(), (flags & ~O_NOFOLLOW) | O_CLOEXEC);
}

}  // namespace

Volume::Volume(FileDescriptor root, bool use_handles) : root_(std::move(root)) {
  struct stat status {};
  if (::fstat(root_.get(), &status) == 0) device_ = status.st_dev;
  struct statfs kind {};
  if (::fstatfs(root_.get(), &kind) == 0) is_in_memory_ = kind.f_type == TMPFS_MAGIC;
  copies_cleverly_ = !is_in_memory_ && kind.f_type != EXT4_SUPER_MAGIC;
  const auto handle = use_handles ? kernel_handle(root_.get(), "") : Result<Handle>(fail_errno(EOPNOTSUPP));
  uses_handles_ = handle && open_handle(root_.get(), *handle, O_PATH).has_value();
}

bool Volume::is_nearly_full() const {
  const auto now = std::chrono::steady_clock::now();
  if (now < room_known_until_.load(std::memory_order_relaxed))
    return nearly_full_.load(std::memory_order_relaxed);
  struct statfs status {};
  if (::fstatfs(root_.get(), &status) != 0) return false;
  const auto is_little = [](std::uint64_t left, std::uint64_t whole, std::uint64_t little) {
    return left < std::min(whole / kLittleShare, little);  // a whole of 0: there is no limit
  };
  const auto block = static_cast<std::uint64_t>(status.f_bsize);
  const bool nearly_full = is_little(status.f_bavail * block, status.f_blocks * block, kLittleRoom) ||
                           is_little(status.f_ffree, status.f_files, kFewInodes);
  nearly_full_.store(nearly_full, std::memory_order_relaxed);
  room_known_until_.store(now + kRoomKnownFor, std::memory_order_relaxed);
  return nearly_full;
}

Result<Handle> Volume::pin(int directory, const char* name, std::uint64_t inode) {
  if (uses_handles_) return kernel_handle(directory, name);

  // Held by O_PATH alone: a descriptor that can write would keep leases and executions away.
  FileDescriptor file(*name ? ::openat(directory, name, O_PATH | O_NOFOLLOW | O_CLOEXEC)
                            : reopen(directory, O_PATH));
  if (!file) return fail_errno(errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return fail_errno(errno);
  if (status.st_ino != inode) return fail_errno(ESTALE);  // another file took the name between two calls
  Handle handle;
  handle.type = kPinnedType;
  handle.size = sizeof inode;
  std::memcpy(handle.bytes.data(), &inode, sizeof inode);
  MutexLock lock(mutex_);
  if (!pinned_.contains(inode) && (pinned_.size() >= descriptors_for_one_session() || !may_be_held(file)))
    return fail_errno(ENFILE);
  Pinned& pinned = pinned_[inode];
  if (pinned.count++ == 0) pinned.file = std::move(file);
  return handle;
}

void Volume::unpin(std::uint64_t inode) {
  if (uses_handles_) return;
  MutexLock lock(mutex_);
  const auto found = pinned_.find(inode);
  if (found != pinned_.end() && --found->second.count == 0) pinned_.erase(found);
}

bool Volume::leads_to(const Handle& handle, int directory, const char* name) const {
  if (!uses_handles_) return true;  // the number is taken as long as the inode is pinned
  const auto now = kernel_handle(directory, name);
  return now && *now == handle;
}

Result<FileDescriptor> Volume::open(const Handle& handle, int flags) const {
  if (uses_handles_) return open_handle(root_.get(), handle, flags);

  std::uint64_t inode = 0;
  std::memcpy(&inode, handle.bytes.data(), sizeof inode);
  FileDescriptor copy;
  {
    MutexLock lock(mutex_);
    const auto found = pinned_.find(inode);
    if (found == pinned_.end()) return fail_errno(ESTALE);
    copy = FileDescriptor(::fcntl(found->second.file.get(), F_DUPFD_CLOEXEC, 0));
  }
  if (!copy) return fail_errno(errno);
  if (flags & O_PATH) return copy;
  FileDescriptor file(reopen(copy.get(), flags));
  if (!file) return fail_errno(errno);
  return file;
}

}  // namespace okcvm::fusefs
