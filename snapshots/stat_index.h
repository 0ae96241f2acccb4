#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "policy/error.h"
#include "snapshots/disk.h"
#include "snapshots/oid.h"

namespace okcvm::snapshots {

/// How a file looked when it was read.
struct FileStamp {
  /// For `changed_ns`: it was changed so shortly before that a later change need not show in its times.
  static constexpr std::int64_t kUntold = std::numeric_limits<std::int64_t>::min();

  std::uint64_t inode = 0;
  std::uint64_t size = 0;
  std::int64_t modified_ns = 0;
  std::int64_t changed_ns = 0;
  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};
FileStamp stamp_of(const struct stat& status);

/// Which inodes the entries of the last snapshot were: what makes a renamed folder recognisable and a full
/// comparison cheap. A local log in the repository folder that each snapshot appends to; nothing but time is
/// lost with it, and whatever in it is doubtful counts as absent. Folders and files have a log each, as
/// folders are few and asked for often. Not thread-safe.
class StatIndex final {
 public:
  /// `folder` is borrowed.
  explicit StatIndex(int folder) : folder_(folder) {}

  /// The snapshot (or restored state) that the answers below must be about; others answer nothing.
  void set_base(const Oid& base) { base_ = base; }
  /// Paths are those of that snapshot.
  std::optional<Identity> folder(std::string_view path);
  std::optional<FileStamp> file(std::string_view path);
  /// The length of the longest path of a folder at or below this one.
  std::size_t longest_folder_below(const std::string& path);
  /// Whether that was noted since the host started. Where a host stopped without warning, a file's times can
  /// be on the disk and its bytes not: a stamp from before says nothing of them then.
  bool is_of_this_boot();

  /// What the next snapshot found, in order, but that all moves go before. Kept when that is `commit`ted,
  /// else to be dropped.
  void saw_folder(std::string_view path, const Identity& identity);
  /// `known_at_ns`: a time since the epoch at which what is known of its bytes was true.
  void saw_file(std::string_view path, FileStamp stamp, std::int64_t known_at_ns);
  void moved(std::string_view from, std::string_view to);
  void removed(std::string_view path);
  /// Of a snapshot: what changed, or everything.
  enum class Seen : std::uint8_t { kChanges, kAll };
  /// Appends what was seen, which is about this base from then on. Older logs are replaced when all of it
  /// was, or most of them is out of date.
  void commit(const Oid& snapshot, Seen seen);
  void drop();
  /// What was read of the logs; it is read again when it is next needed.
  void forget_rows();

 private:
  template <typename Row>
  struct Log {
    const char* file_name;
    std::string moves;    // from what the base has to what the snapshot has
    std::string pending;  // paths of the snapshot
    std::map<std::string, Row, std::less<>> rows;
    Oid loaded_for;
    std::string boot = {};  // in which the newest of the rows were noted
  };
  template <typename Row>
  void load(Log<Row>& log);
  template <typename Row>
  void append(Log<Row>& log, Seen seen);
  template <typename Row>
  void write_anew(Log<Row>& log, std::string text);
  template <typename Row>
  void compact(Log<Row>& log);

  int folder_;
  Oid base_;
  Log<Identity> folders_{"folders.index", {}, {}, {}, {}};
  Log<FileStamp> files_{"files.index", {}, {}, {}, {}};
};

}  // namespace okcvm::snapshots
