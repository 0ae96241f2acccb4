#pragma once

#include <sys/types.h>
#include <time.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "policy/caller.h"
#include "policy/change_set.h"
#include "policy/error.h"
#include "policy/file_descriptor.h"
#include "policy/rel_path.h"

namespace okcvm::snapshots {

/// A commit id: 40 lower-case hex digits, valid by construction.
class SnapshotId {
 public:
  static Result<SnapshotId> parse(std::string_view text);
  const std::string& text() const { return text_; }
  friend bool operator==(const SnapshotId&, const SnapshotId&) = default;

 private:
  explicit SnapshotId(std::string text) : text_(std::move(text)) {}
  friend class StoreAccess;
  std::string text_;
};

struct SnapshotStats {
  std::uint64_t files = 0;  // in the whole snapshot
  std::uint64_t directories = 0;
  std::uint64_t bytes = 0;
  std::uint64_t changed = 0;  // entries that were read for this one
  std::uint64_t bytes_read = 0;
  bool rescanned = false;  // the change record had a gap, everything was compared
};

struct Snapshot {
  SnapshotId id;
  std::string label;
  timespec created_at{};
  std::optional<SnapshotId> parent;
  SnapshotStats stats;
  std::vector<RelPath> in_flight;  // written to while it was read: captured as read once
  std::vector<RelPath> left_out;   // sockets, FIFOs and devices
  bool unchanged = false;          // answered by take(): the newest there was, and no new one
  bool damaged = false;            // nothing but its id can be read

  /// Bytes of its label and of the paths it names.
  std::size_t text_size() const {
    std::size_t size = label.size();
    for (const auto* paths : {&in_flight, &left_out})
      for (const auto& path : *paths) size += path.text().size();
    return size;
  }
};

enum class DifferenceKind : std::uint8_t { kAdded, kRemoved, kChanged, kMetadata, kRenamed };

/// One row of a diff or of a restore plan. For kMetadata only mode, owner, times, xattrs or
/// what a file is hard-linked to differ.
struct Difference {
  DifferenceKind kind;
  RelPath path;
  std::optional<RelPath> renamed_from;
  std::optional<std::uint64_t> old_size, new_size;
  std::optional<mode_t> old_mode, new_mode;
  std::string unified;  // of text, when asked for, readable by who asks, and not too large; else empty
  bool binary = false;
};

struct RestoreResult {
  SnapshotId target;                // what it went to
  std::vector<Difference> applied;  // from what was there to what is there now; with dry_run: what would be
  std::optional<Snapshot> before;   // what `undo` goes back to; absent with dry_run
};

struct VerifyReport {
  std::uint64_t objects = 0;
  std::vector<std::string> problems;         // empty: every object present and intact
  std::optional<SnapshotId> snapshot;        // that the workspace was compared with, if there is one
  std::vector<Difference> live_differences;  // of the workspace from it
};

/// Told now and then during long work (may be empty); `total` is 0 while unknown. Returning false asks to
/// stop (then `busy`).
using Progress = std::function<bool(std::string_view phase, std::uint64_t done, std::uint64_t total)>;

struct StoreConfig {
  std::filesystem::path repository;  // <state-dir>/snapshots/<id>.git; made on the first snapshot
  std::filesystem::path workspace;   // <state-dir>/workspaces/<id>; may not exist (laziness)
  uid_t owner_uid = 0;  // of zone directories that a restore has to make, or that were not written yet
  gid_t owner_gid = 0;
  timespec created_at{};  // when the latter look modified
  /// Bytes: where more than that comes in, a restore writes it before programs have to wait.
  std::uint64_t much = 1 << 20;
};

/// Where a workspace or repository is built before it gets its name; never the name of another session's.
inline std::filesystem::path draft_of(const std::filesystem::path& folder) {
  return folder.parent_path() / ("." + folder.filename().string() + ".new");
}

/// Whether a restore of a session was broken off and has not been settled yet, as when there is no room for
/// that: Store::open does it, and until it succeeds nothing of the session may be changed.
inline bool is_half_restored(const StoreConfig& config) {
  std::error_code unknown;
  return std::filesystem::exists(config.repository / "okcvm/journal", unknown) || unknown;
}

/// One session's snapshots. Knows nothing of FUSE: it reads and writes the backing folder, and is told what
/// changed. Calls for one store are serialised inside, but list(), find(), show(), and diff() between
/// snapshots do not wait for others, and none waits while verify() reads what is well; different stores are
/// independent. Thread-safe. Any `string` snapshot argument is a full id or a unique prefix of at least 4
/// digits; else `unknown_snapshot` (`ambiguous_prefix` if several match).
class Store {
 public:
  /// Does not create anything on disk. Finishes or rolls back what a crash interrupted: then `recovered()`
  /// says so. `corrupt` if a repository exists but cannot be opened; a restore that was interrupted is then
  /// given up, and what is there stays as it is.
  static Result<std::unique_ptr<Store>> open(const StoreConfig& config);
  virtual ~Store() = default;

  /// The paths that recovery changed in the workspace; empty when there was nothing to recover.
  virtual std::vector<RelPath> recovered() const = 0;

  /// Where a store learns what changed. `hold` may be empty.
  struct ChangeSource {
    /// Cuts the change set; the caller holds back writers for that moment only. Cumulative: a set begins with
    /// all that the one before it listed, unless that was retired.
    std::function<ChangeSet()> cut;
    /// The snapshot that contains this set is safe on disk.
    std::function<void(const ChangeSet&)> retire;
    /// Keeps the session's operations waiting while the answer lives; cut() works meanwhile.
    std::function<std::shared_ptr<void>()> hold = {};
    /// To these files someone can still write unseen: they are in every set from now on, whatever is retired.
    /// Called before the next cut, which tells whether these are still their names; by a restore also of
    /// files that it is about to rename, under their new names.
    std::function<void(const std::vector<RelPath>&)> still_mapped = {};
    /// From now on what is recorded is counted from this state: sets say so. Where they name another one than
    /// the store counts from (an operator put other snapshots, another workspace or another record in its
    /// place), everything is compared. The id of a snapshot names it in whatever workspace. Without this
    /// nobody looks.
    std::function<void(const std::string&)> counts_from = {};
  };

  /// Lets go of what is kept in memory so that the next call is fast, unless one is at work. Does not wait.
  virtual void release_memory() = 0;

  /// Takes a snapshot of the writable zones. Answers the newest existing one, unchanged, if nothing changed
  /// and `label` is empty. Durable when it returns (fsync). Its names are those of one moment: what is
  /// renamed while it is taken is in it under one name or the other. With a `hold` that is so however busy
  /// the session is; without one, unless names change from one cut to the next four times in a row.
  virtual Result<Snapshot> take(const std::string& label, const ChangeSource& changes,
                                const Progress& progress) = 0;

  /// Newest first; 0: all. Ends where the texts (Snapshot::text_size()) are kMostListed bytes or more.
  /// `after`: only those that are listed after this one.
  virtual Result<std::vector<Snapshot>> list(std::size_t limit, const std::string& after = {}) = 0;
  static constexpr std::size_t kMostListed = 1 << 20;
  virtual Result<Snapshot> find(const std::string& snapshot) = 0;
  /// What a snapshot changed against its parent. With a `reader`, with the text of files that he may read:
  /// the modes and owners that the files and the folders above them have on each side say so.
  virtual Result<std::vector<Difference>> show(const std::string& snapshot,
                                               const std::optional<Caller>& reader,
                                               const Progress& progress) = 0;
  /// From one snapshot to another, or to the live workspace when `to` is absent. `from` empty: the newest.
  /// Text as for show().
  virtual Result<std::vector<Difference>> diff(const std::string& from, const std::optional<std::string>& to,
                                               const ChangeSource& changes,
                                               const std::optional<Caller>& reader,
                                               const Progress& progress) = 0;

  /// What restore holds while it works, and for whom. The holder's object keeps requests waiting while it
  /// lives.
  struct RestoreHooks {
    std::function<std::shared_ptr<void>()> hold;                  // called once, before anything is touched
    ChangeSource changes;                                         // valid under the hold
    std::function<void(const std::vector<RelPath>&)> invalidate;  // after the last change, still held
    std::function<void(const std::vector<RelPath>&)> will_replace = {};  // before the first, of names that go
    Caller caller = {};  // who names the paths, for which he has to search the folders that they lie in
  };
  /// Puts `paths` (empty: everything) back as they were in `snapshot`. Journaled: after a crash, open()
  /// finishes or rolls back. A snapshot of what was there is taken first and recorded for undo.
  virtual Result<RestoreResult> restore(const std::string& snapshot, const std::vector<RelPath>& paths,
                                        bool dry_run, const RestoreHooks& hooks,
                                        const Progress& progress) = 0;
  /// Back to before the last restore (twice: forward again). `unknown_snapshot` if there was none.
  virtual Result<RestoreResult> undo(const RestoreHooks& hooks, const Progress& progress) = 0;

  /// Writes a snapshot (empty: newest) into `workspace`, which must not exist, and its history into
  /// `repository`.
  virtual Result<Snapshot> fork(const std::string& snapshot, const StoreConfig& target,
                                const Progress& progress) = 0;

  /// Checks every object, and the live workspace against `snapshot` (empty: newest).
  virtual Result<VerifyReport> verify(const std::string& snapshot, const ChangeSource& changes,
                                      const Progress& progress) = 0;
};

}  // namespace okcvm::snapshots
