#include "policy/trees.h"

#include <dirent.h>
#include <fcntl.h>

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "policy/fault.h"

namespace okcvm {
namespace {

constexpr std::size_t kHeldLevels = 32;
constexpr int kDirectory = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
constexpr std::string_view kCannotRemove = "a directory tree cannot be removed";

using Identity = std::pair<dev_t, ino_t>;

Identity identity_of(int file) {
  struct stat status {};
  return ::fstat(file, &status) == 0 ? Identity(status.st_dev, status.st_ino) : Identity();
}

Result<std::vector<std::string>> names_in(int directory) {
  FileDescriptor file(::openat(directory, ".", kDirectory));
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(file ? ::fdopendir(file.get()) : nullptr, ::closedir);
  if (!listing) return fail_errno(errno, "a directory cannot be listed");
  file.release();
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* row = ::readdir(listing.get()))
    if (std::string_view name(row->d_name); name != "." && name != "..") names.emplace_back(name);
  if (errno != 0) return fail_errno(errno, "a directory cannot be listed");
  return names;
}

/// A directory on the way down to where a walk is.
struct Level {
  FileDescriptor directory;  // of the uppermost levels and of the last one
  Identity identity;
  std::vector<std::string> unvisited;  // directories
};

/// A directory that is being emptied.
struct Emptying {
  std::string name;
  FileDescriptor directory;
  std::vector<std::string> left;
};

Result<Emptying> emptying(int parent, std::string name) {
  FileDescriptor directory(::openat(parent, name.c_str(), kDirectory));
  if (!directory) return fail_errno(errno, kCannotRemove);
  auto names = names_in(directory.get());
  if (!names) return fail(names.error());
  return Emptying{std::move(name), std::move(directory), std::move(*names)};
}

/// Moves a directory under a name that is free there: a number from `next` on.
Result<std::string> move_to(int to, int from, const std::string& name, std::uint64_t& next) {
  for (;;) {
    auto free = std::to_string(next++);
    if (::renameat2(from, name.c_str(), to, free.c_str(), RENAME_NOREPLACE) == 0) return free;
    if (errno != EEXIST) return fail_errno(errno, kCannotRemove);
  }
}

}  // namespace

Result<void> visit_tree(FileDescriptor top, const std::function<bool(const struct stat&)>& visit) {
  std::vector<Level> levels;
  std::set<Identity> entered;
  const auto enter = [&](FileDescriptor directory) -> Result<void> {
    Level level{std::move(directory), {}, {}};
    level.identity = identity_of(level.directory.get());
    if (!entered.insert(level.identity).second) return {};  // moved meanwhile
    auto names = names_in(level.directory.get());
    if (!names) return fail(names.error());
    for (auto& name : *names) {
      struct stat status {};
      if (::fstatat(level.directory.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
      if (!visit(status)) return fail(Code::kBusy, "the walk through a directory tree was given up");
      if (S_ISDIR(status.st_mode)) level.unvisited.push_back(std::move(name));
    }
    if (levels.size() > kHeldLevels) levels.back().directory.reset();
    levels.push_back(std::move(level));
    return {};
  };
  if (auto done = enter(std::move(top)); !done) return done;
  while (!levels.empty()) {
    Level& level = levels.back();
    if (!level.unvisited.empty()) {
      FileDescriptor child(::openat(level.directory.get(), level.unvisited.back().c_str(), kDirectory));
      const bool went =
          errno == ENOENT || errno == ENOTDIR || errno == ELOOP;  // removed or replaced meanwhile
      if (!child && !went) return fail_errno(errno, "a directory cannot be looked into");
      level.unvisited.pop_back();
      if (!child) continue;
      if (auto done = enter(std::move(child)); !done) return done;
      continue;
    }
    const FileDescriptor left = std::move(level.directory);
    levels.pop_back();
    if (levels.empty() || levels.back().directory) continue;
    if (FileDescriptor parent(::openat(left.get(), "..", kDirectory));
        parent && identity_of(parent.get()) == levels.back().identity)
      levels.back().directory = std::move(parent);
    while (!levels.back().directory) levels.pop_back();  // it is not below them any more
  }
  return {};
}

Result<void> remove_tree(int directory, const char* name) {
  if (::unlinkat(directory, name, 0) == 0 || errno == ENOENT) return {};
  if (errno != EISDIR) return fail_errno(errno, kCannotRemove);
  std::vector<Emptying> levels;
  std::uint64_t next = 0;
  auto top = emptying(directory, name);
  if (!top) return fail(top.error());
  levels.push_back(std::move(*top));
  for (;;) {
    fault_point("tree.remove");
    const int at = levels.back().directory.get();
    if (levels.back().left.empty()) {
      const std::string emptied = std::move(levels.back().name);
      levels.pop_back();
      const int parent = levels.empty() ? directory : levels.back().directory.get();
      if (::unlinkat(parent, emptied.c_str(), AT_REMOVEDIR) != 0) return fail_errno(errno, kCannotRemove);
      if (levels.empty()) return {};
      continue;
    }
    std::string entry = std::move(levels.back().left.back());
    levels.back().left.pop_back();
    if (::unlinkat(at, entry.c_str(), 0) == 0) continue;
    if (errno != EISDIR) return fail_errno(errno, kCannotRemove);
    if (levels.size() < kHeldLevels) {
      auto inner = emptying(at, std::move(entry));
      if (!inner) return fail(inner.error());
      levels.push_back(std::move(*inner));
    } else {  // its turn comes once less is held
      auto moved = move_to(levels.front().directory.get(), at, entry, next);
      if (!moved) return fail(moved.error());
      levels.front().left.push_back(std::move(*moved));
    }
  }
}

}  // namespace okcvm
