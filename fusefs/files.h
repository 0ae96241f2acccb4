#pragma once

#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "policy/caller.h"
#include "policy/error.h"
#include "policy/file_descriptor.h"
#include "policy/rel_path.h"
#include "policy/zones.h"

namespace okcvm::fusefs {

enum class FileType : std::uint8_t { kFile, kDirectory, kSymlink, kOther };

struct FileInfo {
  std::string name;  // last component, bytes
  FileType type = FileType::kOther;
  mode_t mode = 0;  // with the type bits
  uid_t uid = 0;
  gid_t gid = 0;
  std::uint64_t size = 0;
  timespec modified{}, changed{};
  std::uint64_t inode = 0;
};

/// Asked between the steps of long work; false: give it up. The call then answers `busy`.
using GoesOn = std::function<bool()>;

/// What `info` says of the writable zones [S3]. All zero while nothing was written.
struct WorkspaceInfo {
  std::uint64_t files = 0;
  std::uint64_t directories = 0;
  std::uint64_t bytes = 0;
  timespec last_modified{};
  bool materialized = false;  // the backing folder exists

  /// Adds a zone, given its directory or why that cannot be opened: ENOENT before the first write. `busy` if
  /// it is given up, `corrupt` if something else stands in the directory's place. Links are not followed.
  Result<void> count_zone(Zone zone, Result<FileDescriptor> directory, const GoesOn& goes_on);

 private:
  void count(const struct stat& status);
  void note_change(const struct stat& status);
};

/// A regular file, open for reading at its start, and what that file is.
struct OpenedFile {
  FileDescriptor file;
  FileInfo info;
};

/// A file that was put in place: where, and what it was when it came there.
struct PublishedFile {
  RelPath path;
  FileInfo info;
};

/// A file on its way in: written to a nameless or hidden file beside its place, then put there in one step.
/// Dropped without publish(), it leaves nothing behind. Not thread-safe.
class IncomingFile {
 public:
  virtual ~IncomingFile() = default;
  /// Where the bytes go (a blocking regular file opened for writing). Owned by this object.
  virtual int descriptor() const = 0;
  /// Puts the file in place, replacing what is there or, when it was opened as kUnique, under the first free
  /// name. The kernel's caches know it when this returns.
  virtual Result<PublishedFile> publish() = 0;
};

enum class IfExists : std::uint8_t {
  kReplace,
  kFail,    // already_exists
  kUnique,  // "report.pdf" becomes "report (1).pdf"
};

/// Judges what stands at a path before it is replaced or removed, and if that is a link, what it leads to;
/// null: there is none.
using EntryCheck = std::function<Result<void>(const FileInfo* there, const FileInfo* target)>;

/// A part of a directory.
struct Listing {
  std::vector<FileInfo> entries;
  bool truncated = false;  // there are more
};

/// The driver's operations by path instead of node, for requests that do not come through the kernel. Same
/// zone rules, same change record, same laziness; permissions as the kernel would check them. Symbolic links
/// are followed in parents and at the end (except where said) as long as they are contained, else
/// `path_traversal_blocked`. Kernel caches are invalidated where something changed. Thread-safe.
class Files {
 public:
  virtual ~Files() = default;

  /// Of the link itself when `follow` is false.
  virtual Result<FileInfo> stat(const Caller& caller, const RelPath& path, bool follow = true) = 0;
  /// Sorted by name: at most `limit` entries, those that come after the name `after`. What is not asked for
  /// is not looked at. An unwritten zone is empty, not an error.
  virtual Result<Listing> list(const Caller& caller, const RelPath& path, std::string_view after,
                               std::size_t limit) = 0;
  /// Never blocks on a FIFO.
  virtual Result<OpenedFile> open(const Caller& caller, const RelPath& path) = 0;
  virtual Result<std::string> read_link(const Caller& caller, const RelPath& path) = 0;
  /// Where a path leads as the kernel walks it [S2]: every link is followed, `..` is what lies above where
  /// that led, and an absolute path is one of the mount. With `must_exist` false, what is missing is where
  /// its name says.
  virtual Result<RelPath> resolve(const Caller& caller, std::string_view path, bool must_exist) = 0;

  /// Starts a file at `path`; missing parents are made (0755, the caller's) when it is published. Without a
  /// `mode` it gets the permissions of the regular file that it replaces, else 0644. It is the caller's, but
  /// what root replaces stays its owner's.
  /// `check` is called with the entry's FileInfo (or nullptr) under the same hold that publishes; an Error
  /// from it cancels (If-Match, for one).
  virtual Result<std::unique_ptr<IncomingFile>> create(const Caller& caller, const RelPath& path,
                                                       std::optional<mode_t> mode, IfExists if_exists,
                                                       EntryCheck check = nullptr) = 0;
  /// With all its parents. Answers whether it was not there; an Error from `check`, as above, cancels.
  virtual Result<bool> make_directories(const Caller& caller, const RelPath& path, mode_t mode,
                                        const EntryCheck& check = nullptr) = 0;
  /// A file or link, or an empty directory; with `recursive` a whole tree. Zone directories themselves stay.
  /// `check` is called with what stands there (a link is itself); an Error from it cancels. No file that
  /// create() started takes the place between that and the removal. What is put into a tree meanwhile goes
  /// with it, or keeps its directory (`already_exists`).
  virtual Result<void> remove(const Caller& caller, const RelPath& path, bool recursive,
                              const EntryCheck& check = nullptr, const GoesOn& goes_on = nullptr) = 0;
  /// Removes everything in a zone (reset). Files open in it stay usable by their descriptors.
  virtual Result<void> empty_zone(Zone zone, const GoesOn& goes_on = nullptr) = 0;

  virtual Result<WorkspaceInfo> info(const GoesOn& goes_on = nullptr) = 0;
};

}  // namespace okcvm::fusefs
