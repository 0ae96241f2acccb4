#include "tests/differential/observation.h"

#include <fcntl.h>

#include <cstdint>

namespace okcvm::differential {
namespace {

/// A change that comes this much later than the last one has another time, even by the coarsest clock in use
/// (a tick of 10 ms at CONFIG_HZ=100).
constexpr std::int64_t kDistinctNanoseconds = 20'000'000;

std::string parent_of(std::string path) {
  while (!path.empty() && path.back() == '/') path.pop_back();
  const auto slash = path.find_last_of('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

std::int64_t nanoseconds(const timespec& time) {
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

bool same(const timespec& left, const timespec& right) {
  return left.tv_sec == right.tv_sec && left.tv_nsec == right.tv_nsec;
}

std::string text_of(const timespec& time) {
  return std::to_string(time.tv_sec) + "." + std::to_string(time.tv_nsec);
}

void look(Observation& observation, int directory, std::string label, const std::string& path) {
  auto& object = observation.objects.emplace_back();
  object.label = std::move(label);
  object.exists = ::fstatat(directory, path.c_str(), &object.found, AT_SYMLINK_NOFOLLOW) == 0;
}

void look(Observation& observation, Side& side, std::string label, int slot) {
  auto& object = observation.objects.emplace_back();
  object.label = std::move(label);
  object.exists = side.slot(slot) && ::fstat(side.slot(slot).get(), &object.found) == 0;
}

/// Number of the first object that is the same inode.
std::size_t identity(const Observation& observation, std::size_t index) {
  for (std::size_t other = 0; other < index; ++other)
    if (observation.objects[other].exists &&
        observation.objects[other].found.st_ino == observation.objects[index].found.st_ino)
      return other;
  return index;
}

using Object = Observation::Object;

bool old_enough(const Object& before, const timespec& now) {
  return nanoseconds(now) - nanoseconds(before.found.st_ctim) > kDistinctNanoseconds;
}

/// Special files keep their times in the kernel's inode alone, whoever serves the file system.
bool times_matter(const Object& before, const Object& after) {
  return before.exists && after.exists && before.found.st_ino == after.found.st_ino &&
         (S_ISREG(after.found.st_mode) || S_ISDIR(after.found.st_mode) || S_ISLNK(after.found.st_mode));
}

std::string moved(const char* what, const Object& object, bool a, bool b) {
  return object.label + ": " + what + (a ? " changed" : " stayed") + " | " + (b ? "changed" : "stayed");
}

std::string compare_times(const Object& before_a, const Object& after_a, const timespec& at_a,
                          const Object& before_b, const Object& after_b, const timespec& at_b) {
  if (!times_matter(before_a, after_a) || !times_matter(before_b, after_b)) return {};
  if (!old_enough(before_a, at_a) || !old_enough(before_b, at_b)) return {};
  const bool mtime_a = !same(before_a.found.st_mtim, after_a.found.st_mtim);
  const bool mtime_b = !same(before_b.found.st_mtim, after_b.found.st_mtim);
  if (mtime_a != mtime_b) return moved("mtime", after_a, mtime_a, mtime_b);
  const bool ctime_a = !same(before_a.found.st_ctim, after_a.found.st_ctim);
  const bool ctime_b = !same(before_b.found.st_ctim, after_b.found.st_ctim);
  if (ctime_a != ctime_b) return moved("ctime", after_a, ctime_a, ctime_b);
  return {};
}

bool is_explicit(const timespec& time) {
  return time.tv_nsec != UTIME_NOW && time.tv_nsec != UTIME_OMIT;
}

/// Following a symbolic link moves its atime, and its path may lead over the link itself; the kernel leaves
/// that out for every FUSE file system.
std::string compare_set_times(const Operation& operation, const Object& a, const Object& b) {
  if (!a.exists || !b.exists) return {};
  const bool has_atime = !S_ISLNK(a.found.st_mode);
  if (has_atime && is_explicit(operation.times[0]) && !same(a.found.st_atim, b.found.st_atim))
    return a.label + ": atime " + text_of(a.found.st_atim) + " | " + text_of(b.found.st_atim);
  if (is_explicit(operation.times[1]) && !same(a.found.st_mtim, b.found.st_mtim))
    return a.label + ": mtime " + text_of(a.found.st_mtim) + " | " + text_of(b.found.st_mtim);
  return {};
}

/// A write through a mapping is stamped when it happens or when it is flushed; both are allowed (mmap(2)). A
/// truncate(2) to the same size that clears set-id bits changes the mode, with a new ctime or, on most file
/// systems, without; and tmpfs stamps one to the same size if the file has pages, which a hole gets when it
/// is read through a mapping of tmpfs itself. A session shows one page's blocks also of a file that is all
/// hole as long as stores through a mapping could be on their way to it.
bool stamps_are_defined(Kind kind, const Object& before_a, const Object& before_b, const Object& after_a) {
  constexpr blkcnt_t kBlocksOfPage = 8;
  const struct stat& before = before_a.found;
  if (kind == Kind::kTruncate)
    return before.st_mode == after_a.found.st_mode && before.st_blocks == before_b.found.st_blocks &&
           (before.st_size != after_a.found.st_size || before.st_blocks != kBlocksOfPage);
  return kind != Kind::kMapWrite;
}

}  // namespace

Observation observe(Side& side, const Operation& operation) {
  const auto& facts = facts_of(operation.kind);
  Observation observation;
  ::clock_gettime(CLOCK_REALTIME_COARSE, &observation.at);
  const int start = operation.kind == Kind::kOpenAt || operation.kind == Kind::kUnlinkAt
                        ? side.start(operation.slot2)
                        : side.root();
  if (facts.uses_path) {
    look(observation, start, "path", operation.path);
    look(observation, start, "parent", parent_of(operation.path));
  }
  if (facts.uses_path2) {
    look(observation, side.root(), "path2", operation.path2);
    look(observation, side.root(), "parent of path2", parent_of(operation.path2));
  }
  if (facts.uses_slot) look(observation, side, "slot", operation.slot);
  if (facts.uses_slot2) look(observation, side, "slot2", operation.slot2);
  return observation;
}

std::string compare_observations(const Operation& operation, bool succeeded, const Observation& before_a,
                                 const Observation& after_a, const Observation& before_b,
                                 const Observation& after_b) {
  for (std::size_t i = 0; i < after_a.objects.size(); ++i) {
    const auto& a = after_a.objects[i];
    const auto& b = after_b.objects[i];
    if (a.exists != b.exists) return a.label + (a.exists ? ": exists | missing" : ": missing | exists");
    if (!a.exists) continue;
    if (const auto left = describe_status(a.found), right = describe_status(b.found); left != right)
      return a.label + ": " + left + " | " + right;
    if (identity(after_a, i) != identity(after_b, i)) return a.label + ": is another inode on each side";
    if (!stamps_are_defined(operation.kind, before_a.objects[i], before_b.objects[i], a)) continue;
    if (auto difference =
            compare_times(before_a.objects[i], a, before_a.at, before_b.objects[i], b, before_b.at);
        !difference.empty())
      return difference;
  }
  const bool sets_times = operation.kind == Kind::kUtimens || operation.kind == Kind::kFutimens;
  const bool follows = operation.kind == Kind::kUtimens && !(operation.flags & AT_SYMLINK_NOFOLLOW);
  if (sets_times && succeeded && !(follows && S_ISLNK(after_a.objects[0].found.st_mode)))
    return compare_set_times(operation, after_a.objects[0], after_b.objects[0]);
  return {};
}

}  // namespace okcvm::differential
