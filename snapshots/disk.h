#pragma once

#include <dirent.h>
#include <sys/stat.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "policy/error.h"
#include "policy/file_descriptor.h"
#include "snapshots/node.h"

namespace okcvm::snapshots {

/// A directory's inode: the same pair is the same directory, whatever it is called. From statx(2).
struct Identity {
  std::uint64_t inode = 0;
  std::int64_t born_ns = 0;  // 0 where the file system does not tell
  friend bool operator==(const Identity&, const Identity&) = default;
};

/// The backing folder of a session, reached from one held descriptor. Nothing here follows a link, leaves the
/// folder or resolves a path of several components other than with RESOLVE_BENEATH. Thread-safe.
class Disk final {
 public:
  /// Nothing if the folder does not exist (laziness).
  static Result<std::optional<Disk>> open(const std::filesystem::path& workspace);

  /// An open directory as the place to start from.
  explicit Disk(FileDescriptor root) : root_(std::move(root)) {}

  int root() const { return root_.get(); }
  /// openat2(2) of a path from the session root, empty for itself; flags as of open(2).
  Result<FileDescriptor> open(const std::string& path, int flags) const;
  Result<FileDescriptor> open_directory(const std::string& path) const;
  /// Of the entry itself, never of what a link names. Nothing if it is absent.
  Result<std::optional<struct stat>> stat(const std::string& path) const;

 private:
  FileDescriptor root_;
};

/// Whether an errno says that the entry is not there any more, or is of another type by now.
bool is_gone(int errno_value);

Result<Identity> identity_of(int directory);
/// One row of a listing.
struct DiskRow {
  std::string name;
  std::uint64_t inode;
  unsigned char type;  // DT_*; DT_UNKNOWN where the file system does not tell
};
/// What a directory holds, unsorted, without "." and "..".
Result<std::vector<DiskRow>> rows_in(int directory);
/// The names of an open file's extended attributes, each ended by a zero; none where the file system keeps
/// none.
Result<std::string> xattr_names(int fd);
/// Mode, owner, time and xattrs of an open file or directory.
Result<Attributes> attributes_of(int fd, const struct stat& status);
/// Mode, owner and time alone: of a link.
Attributes attributes_of(const struct stat& status);
/// A link's text. `directory` is borrowed.
Result<std::string> link_text(int directory, const char* name);

}  // namespace okcvm::snapshots
