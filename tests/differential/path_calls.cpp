#include <dirent.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <set>

#include "tests/differential/calls.h"
#include "tests/support/file_io.h"

namespace okcvm::differential {
namespace {

/// For the calls that have no *at form: the path by way of the root's descriptor.
std::string by_descriptor(const Side& side, const std::string& path) {
  return "/proc/thread-self/fd/" + std::to_string(side.root()) + "/" + path;
}

Outcome truncate(Side& side, const Operation& operation) {
  return outcome_of(::truncate(by_descriptor(side, operation.path).c_str(), operation.length));
}

Outcome make_directory(Side& side, const Operation& operation) {
  ::umask(operation.umask);
  const auto outcome = outcome_of(::mkdirat(side.root(), operation.path.c_str(), operation.mode));
  ::umask(022);
  return outcome;
}

Outcome make_node(Side& side, const Operation& operation) {
  ::umask(operation.umask);
  const auto outcome = outcome_of(::mknodat(side.root(), operation.path.c_str(), operation.mode, 0));
  ::umask(022);
  return outcome;
}

Outcome unlink(Side& side, const Operation& operation) {
  return outcome_of(::unlinkat(side.root(), operation.path.c_str(), 0));
}

Outcome remove_directory(Side& side, const Operation& operation) {
  return outcome_of(::unlinkat(side.root(), operation.path.c_str(), AT_REMOVEDIR));
}

Outcome unlink_at(Side& side, const Operation& operation) {
  return outcome_of(::unlinkat(side.start(operation.slot2), operation.path.c_str(), operation.flags));
}

Outcome rename(Side& side, const Operation& operation) {
  return outcome_of(::renameat2(side.root(), operation.path.c_str(), side.root(), operation.path2.c_str(),
                                static_cast<unsigned int>(operation.flags)));
}

Outcome link(Side& side, const Operation& operation) {
  return outcome_of(
      ::linkat(side.root(), operation.path.c_str(), side.root(), operation.path2.c_str(), operation.flags));
}

Outcome link_open(Side& side, const Operation& operation) {
  const auto file = "/proc/thread-self/fd/" + std::to_string(side.slot(operation.slot).get());
  return outcome_of(::linkat(AT_FDCWD, file.c_str(), side.root(), operation.path.c_str(), AT_SYMLINK_FOLLOW));
}

Outcome symlink(Side& side, const Operation& operation) {
  return outcome_of(::symlinkat(operation.path2.c_str(), side.root(), operation.path.c_str()));
}

Outcome read_link(Side& side, const Operation& operation) {
  std::array<char, PATH_MAX> text;
  auto outcome = outcome_of(::readlinkat(side.root(), operation.path.c_str(), text.data(), text.size()));
  if (outcome.result > 0) outcome.data.assign(text.data(), static_cast<std::size_t>(outcome.result));
  return outcome;
}

Outcome status(Side& side, const Operation& operation) {
  struct stat found {};
  auto outcome = outcome_of(::fstatat(side.root(), operation.path.c_str(), &found, operation.flags));
  if (!outcome.error) outcome.data = describe_status(found);
  return outcome;
}

Outcome check_access(Side& side, const Operation& operation) {
  return outcome_of(
      ::faccessat(side.root(), operation.path.c_str(), static_cast<int>(operation.mode & 7), 0));
}

Outcome change_mode(Side& side, const Operation& operation) {
  return outcome_of(::fchmodat(side.root(), operation.path.c_str(), operation.mode, 0));
}

Outcome change_owner(Side& side, const Operation& operation) {
  return outcome_of(
      ::fchownat(side.root(), operation.path.c_str(), operation.uid, operation.gid, operation.flags));
}

Outcome change_times(Side& side, const Operation& operation) {
  return outcome_of(
      ::utimensat(side.root(), operation.path.c_str(), operation.times.data(), operation.flags));
}

Outcome list(Side& side, const Operation& operation) {
  FileDescriptor directory(
      ::openat(side.root(), operation.path.c_str(), O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC));
  if (!directory) return {-1, errno, {}};
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::fdopendir(directory.release()), ::closedir);
  std::map<std::string, int> names;
  bool inodes_agree = true;  // what readdir says and what stat says
  while (const dirent* entry = ::readdir(stream.get())) {
    const std::string name = entry->d_name;
    names[name] = entry->d_type;
    struct stat found {};
    if (name != ".." && ::fstatat(::dirfd(stream.get()), entry->d_name, &found, AT_SYMLINK_NOFOLLOW) == 0)
      inodes_agree = inodes_agree && found.st_ino == entry->d_ino;
  }
  Outcome outcome;
  for (const auto& [name, type] : names) outcome.data += name + ":" + std::to_string(type) + "/";
  if (!inodes_agree) outcome.data += " (inode numbers differ from stat)";
  return outcome;
}

Outcome set_xattr(Side& side, const Operation& operation) {
  const auto value = test::pattern(static_cast<std::size_t>(operation.length), operation.seed);
  return outcome_of(::lsetxattr(by_descriptor(side, operation.path).c_str(), operation.name.c_str(),
                                value.data(), value.size(), operation.flags));
}

Outcome get_xattr(Side& side, const Operation& operation) {
  std::string value(static_cast<std::size_t>(std::min<off_t>(operation.length, XATTR_SIZE_MAX)), '\0');
  auto outcome = outcome_of(::lgetxattr(by_descriptor(side, operation.path).c_str(), operation.name.c_str(),
                                        value.data(), value.size()));
  if (outcome.result > 0 && !value.empty())
    outcome.data = value.substr(0, static_cast<std::size_t>(outcome.result));
  return outcome;
}

Outcome list_xattrs(Side& side, const Operation& operation) {
  std::string names(XATTR_LIST_MAX, '\0');
  auto outcome =
      outcome_of(::llistxattr(by_descriptor(side, operation.path).c_str(), names.data(), names.size()));
  if (outcome.result < 0) return outcome;
  std::set<std::string> users;  // other namespaces belong to the host
  for (long at = 0; at < outcome.result; at += static_cast<long>(std::strlen(names.c_str() + at)) + 1)
    if (std::string_view(names.c_str() + at).starts_with("user.")) users.insert(names.c_str() + at);
  outcome.result = static_cast<long>(users.size());
  for (const auto& name : users) outcome.data += name + ";";
  return outcome;
}

Outcome remove_xattr(Side& side, const Operation& operation) {
  return outcome_of(::lremovexattr(by_descriptor(side, operation.path).c_str(), operation.name.c_str()));
}

}  // namespace

Call path_call(Kind kind) {
  switch (kind) {
    case Kind::kTruncate:
      return truncate;
    case Kind::kMkdir:
      return make_directory;
    case Kind::kMknod:
      return make_node;
    case Kind::kUnlink:
      return unlink;
    case Kind::kRmdir:
      return remove_directory;
    case Kind::kUnlinkAt:
      return unlink_at;
    case Kind::kRename:
      return rename;
    case Kind::kLink:
      return link;
    case Kind::kLinkOpen:
      return link_open;
    case Kind::kSymlink:
      return symlink;
    case Kind::kReadlink:
      return read_link;
    case Kind::kAccess:
      return check_access;
    case Kind::kChmod:
      return change_mode;
    case Kind::kChown:
      return change_owner;
    case Kind::kUtimens:
      return change_times;
    case Kind::kList:
      return list;
    case Kind::kSetXattr:
      return set_xattr;
    case Kind::kGetXattr:
      return get_xattr;
    case Kind::kListXattr:
      return list_xattrs;
    case Kind::kRemoveXattr:
      return remove_xattr;
    default:
      return status;
  }
}

}  // namespace okcvm::differential
