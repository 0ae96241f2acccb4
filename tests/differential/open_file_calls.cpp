#include <dirent.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <vector>

#include "tests/differential/calls.h"
#include "tests/support/file_io.h"

namespace okcvm::differential {
namespace {

constexpr off_t kLargestRead = 1 << 20;

Outcome open_from(Side& side, int start, const Operation& operation) {
  ::umask(operation.umask);
  const int file = ::openat(start, operation.path.c_str(),
                            operation.flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, operation.mode);
  auto outcome = outcome_of(file);
  ::umask(022);
  if (file < 0) return outcome;
  side.unlock(operation.slot);
  side.slot(operation.slot) = FileDescriptor(file);
  outcome.result = 0;  // descriptor numbers differ
  return outcome;
}

Outcome open(Side& side, const Operation& operation) {
  return open_from(side, side.root(), operation);
}

Outcome open_at(Side& side, const Operation& operation) {
  return open_from(side, side.start(operation.slot2), operation);
}

Outcome close(Side& side, const Operation& operation) {
  side.unlock(operation.slot);
  const auto outcome = outcome_of(::close(side.slot(operation.slot).get()));
  side.slot(operation.slot).release();
  return outcome;
}

Outcome read(Side& side, const Operation& operation) {
  std::string bytes(static_cast<std::size_t>(std::clamp<off_t>(operation.length, 0, kLargestRead)), '\0');
  const int file = side.slot(operation.slot).get();
  auto outcome = outcome_of(operation.flags ? ::read(file, bytes.data(), bytes.size())
                                            : ::pread(file, bytes.data(), bytes.size(), operation.offset));
  if (outcome.result > 0) outcome.data = bytes.substr(0, static_cast<std::size_t>(outcome.result));
  return outcome;
}

Outcome write(Side& side, const Operation& operation) {
  const auto bytes = test::pattern(static_cast<std::size_t>(operation.length), operation.seed);
  const int file = side.slot(operation.slot).get();
  return outcome_of(operation.flags ? ::write(file, bytes.data(), bytes.size())
                                    : ::pwrite(file, bytes.data(), bytes.size(), operation.offset));
}

Outcome seek(Side& side, const Operation& operation) {
  struct stat found {};
  const int file = side.slot(operation.slot).get();
  if (::fstat(file, &found) != 0) return {-1, errno, {}};
  // Offsets in a directory are the file system's own business.
  if (S_ISDIR(found.st_mode)) return outcome_of(::lseek(file, 0, SEEK_SET));
  return outcome_of(::lseek(file, operation.offset, operation.flags));
}

Outcome resize(Side& side, const Operation& operation) {
  return outcome_of(::ftruncate(side.slot(operation.slot).get(), operation.length));
}

Outcome allocate(Side& side, const Operation& operation) {
  const int file = side.slot(operation.slot).get();
  struct stat found {};
  if (::fstat(file, &found) == 0) side.note_unsure_holes(found.st_ino);
  return outcome_of(::fallocate(file, operation.flags, operation.offset, operation.length));
}

Outcome sync(Side& side, const Operation& operation) {
  const int file = side.slot(operation.slot).get();
  return outcome_of(operation.flags ? ::fdatasync(file) : ::fsync(file));
}

Outcome status(Side& side, const Operation& operation) {
  struct stat found {};
  auto outcome = outcome_of(::fstat(side.slot(operation.slot).get(), &found));
  if (!outcome.error) outcome.data = describe_status(found);
  return outcome;
}

Outcome change_mode(Side& side, const Operation& operation) {
  return outcome_of(::fchmod(side.slot(operation.slot).get(), operation.mode));
}

Outcome change_owner(Side& side, const Operation& operation) {
  return outcome_of(::fchown(side.slot(operation.slot).get(), operation.uid, operation.gid));
}

Outcome change_times(Side& side, const Operation& operation) {
  return outcome_of(::futimens(side.slot(operation.slot).get(), operation.times.data()));
}

Outcome copy_range(Side& side, const Operation& operation) {
  loff_t from = operation.offset, to = operation.offset2;
  auto left = static_cast<std::size_t>(operation.length);
  Outcome outcome;
  do {  // a short count is allowed, so all of them are added up
    outcome = outcome_of(::copy_file_range(side.slot(operation.slot).get(), &from,
                                           side.slot(operation.slot2).get(), &to, left, 0));
    if (outcome.result > 0) left -= static_cast<std::size_t>(outcome.result);
  } while (outcome.result > 0 && left > 0);
  if (!outcome.error) outcome.result = operation.length - static_cast<long>(left);
  return outcome;
}

Outcome map_write(Side& side, const Operation& operation) {
  const int file = side.slot(operation.slot).get();
  const auto size = side.mappable(operation.slot);
  if (size == 0) return {};
  void* const memory =
      ::mmap(nullptr, static_cast<std::size_t>(size), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return {-1, errno, {}};
  const auto at = operation.offset % size;
  const auto bytes =
      test::pattern(static_cast<std::size_t>(std::min(operation.length, size - at)), operation.seed);
  std::memcpy(static_cast<char*>(memory) + at, bytes.data(), bytes.size());
  const auto outcome = outcome_of(::msync(memory, static_cast<std::size_t>(size), MS_SYNC));
  ::munmap(memory, static_cast<std::size_t>(size));
  return outcome;
}

Outcome map_read(Side& side, const Operation& operation) {
  const int file = side.slot(operation.slot).get();
  const auto size = side.mappable(operation.slot);
  if (size == 0) return {};
  void* const memory = ::mmap(nullptr, static_cast<std::size_t>(size), PROT_READ,
                              operation.flags ? MAP_SHARED : MAP_PRIVATE, file, 0);
  if (memory == MAP_FAILED) return {-1, errno, {}};
  Outcome outcome;
  outcome.data.assign(static_cast<const char*>(memory), static_cast<std::size_t>(size));
  ::munmap(memory, static_cast<std::size_t>(size));
  return outcome;
}

Outcome lock_whole(Side& side, const Operation& operation) {
  return outcome_of(::flock(side.slot(operation.slot).get(), operation.flags | LOCK_NB));
}

struct flock range_of(const Operation& operation) {
  struct flock range {};
  range.l_type = static_cast<short>(operation.flags);
  range.l_whence = SEEK_SET;
  range.l_start = operation.offset;
  range.l_len = operation.length;
  return range;
}

Outcome lock(Side& side, const Operation& operation) {
  auto range = range_of(operation);
  return outcome_of(::fcntl(side.slot(operation.slot).get(), F_OFD_SETLK, &range));
}

Outcome test_lock(Side& side, const Operation& operation) {
  auto range = range_of(operation);
  if (range.l_type == F_UNLCK) range.l_type = F_RDLCK;
  auto outcome = outcome_of(::fcntl(side.slot(operation.slot).get(), F_OFD_GETLK, &range));
  if (outcome.error) return outcome;
  outcome.data = "type=" + std::to_string(range.l_type);
  if (range.l_type != F_UNLCK)
    outcome.data += " start=" + std::to_string(range.l_start) + " length=" + std::to_string(range.l_len);
  return outcome;
}

Outcome list_open(Side& side, const Operation& operation) {
  const int directory = side.slot(operation.slot).get();
  if (::lseek(directory, 0, SEEK_SET) < 0) return {-1, errno, {}};
  std::map<std::string, int> names;
  std::vector<char> buffer(1 << 15);
  for (;;) {
    const auto got = ::getdents64(directory, buffer.data(), buffer.size());
    if (got < 0) return {-1, errno, {}};
    if (got == 0) break;
    for (ssize_t at = 0; at < got;) {
      dirent64 entry{};
      const char* record = buffer.data() + at;
      std::memcpy(&entry, record, offsetof(dirent64, d_name));
      names[record + offsetof(dirent64, d_name)] = entry.d_type;
      at += entry.d_reclen;
    }
  }
  Outcome outcome;
  for (const auto& [name, type] : names) outcome.data += name + ":" + std::to_string(type) + "/";
  return outcome;
}

}  // namespace

Call open_file_call(Kind kind) {
  switch (kind) {
    case Kind::kOpen:
      return open;
    case Kind::kOpenAt:
      return open_at;
    case Kind::kClose:
      return close;
    case Kind::kRead:
      return read;
    case Kind::kWrite:
      return write;
    case Kind::kSeek:
      return seek;
    case Kind::kFtruncate:
      return resize;
    case Kind::kFallocate:
      return allocate;
    case Kind::kFsync:
      return sync;
    case Kind::kFstat:
      return status;
    case Kind::kFchmod:
      return change_mode;
    case Kind::kFchown:
      return change_owner;
    case Kind::kFutimens:
      return change_times;
    case Kind::kCopyRange:
      return copy_range;
    case Kind::kMapWrite:
      return map_write;
    case Kind::kMapRead:
      return map_read;
    case Kind::kFlock:
      return lock_whole;
    case Kind::kLock:
      return lock;
    case Kind::kTestLock:
      return test_lock;
    case Kind::kListOpen:
      return list_open;
    default:
      return nullptr;
  }
}

}  // namespace okcvm::differential
