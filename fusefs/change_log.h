#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "fusefs/shared_region.h"
#include "fusefs/types.h"
#include "policy/change_set.h"
#include "policy/thread_annotations.h"

namespace okcvm::fusefs {

/// The record of what changed since the last snapshot, kept where a crash of the daemon cannot lose it. A
/// record counts once the end of the log is moved past it, so a torn last one is never seen. Thread-safe.
///
/// Between mounts the log rests in a file of the state directory. That file is removed, durably, before the
/// first change of the next mount: a host that stops without warning leaves a workspace without a log, and
/// then the next cut asks for a full comparison.
class ChangeLog {
 public:
  struct Config {
    std::filesystem::path live;     // in the run directory
    std::filesystem::path resting;  // in the state directory
    bool enabled = true;
    Start start = Start::kAnew;     // of `live`
    bool workspace_exists = false;  // without any log, an existing workspace has unknown changes
  };
  static Result<std::unique_ptr<ChangeLog>> open(Config config);

  bool enabled() const { return config_.enabled; }
  /// Changes with every cut; never 0. A node that was recorded in this epoch need not be recorded again.
  std::uint32_t epoch() const;

  /// Must be called before the change is made: a crash between the two only costs a needless look.
  void record(ChangeKind kind, const RelPath& path, const RelPath& target = {}) EXCLUDES(mutex_);
  /// A change that cannot be named: the next cut asks for a full comparison.
  void lose_track(std::string_view reason) EXCLUDES(mutex_);

  /// Everything recorded and not retired; starts a new epoch. `in_flight` is left to the caller.
  ChangeSet cut() EXCLUDES(mutex_);
  /// Forgets everything up to `changes.end`, and the gap that `changes` told of. One that came later stays.
  void retire(const ChangeSet& changes) EXCLUDES(mutex_);
  /// What is recorded is counted from this state from now on: told with every cut. At most 40 characters.
  void counts_from(std::string_view state) EXCLUDES(mutex_);

  /// Puts the log to rest for the next mount, durably. Where that cannot be done (a full disk), and after
  /// losing track, there is no file then, and the next mount asks for the full comparison.
  /// `sync` brings what the record speaks of to the disk before; false: it could not.
  void rest(const std::function<bool()>& sync) EXCLUDES(mutex_);

 private:
  struct Header;
  ChangeLog(Config config, SharedRegion region) : config_(std::move(config)), region_(std::move(region)) {}
  Header& header() const;
  void append(ChangeKind kind, std::string_view path, std::string_view target) REQUIRES(mutex_);
  bool write_record(ChangeKind kind, std::string_view path, std::string_view target) REQUIRES(mutex_);
  template <typename Visit>
  void for_each_record(Visit visit) const REQUIRES(mutex_);
  std::set<std::string> contents_kept() const REQUIRES(mutex_);
  void set_reason(std::string_view reason) REQUIRES(mutex_);
  void drop_until(std::uint64_t position) REQUIRES(mutex_);
  void wake() REQUIRES(mutex_);
  /// What was found is read blindly later on, so it is looked at once; of damaged records none is kept.
  void drop_damaged() REQUIRES(mutex_);
  /// `corrupt` where the mapping is no log of this version.
  Result<void> find_records() REQUIRES(mutex_);
  std::set<std::string> contents_of_lost_mount() REQUIRES(mutex_);
  void distrust_unrecorded() REQUIRES(mutex_);
  bool load_resting() REQUIRES(mutex_);

  Config config_;
  mutable Mutex mutex_;
  SharedRegion region_;
  bool resting_exists_ GUARDED_BY(mutex_) = false;
  bool is_stale_ GUARDED_BY(mutex_) = false;  // that file: it could not be removed when it had to go
};

}  // namespace okcvm::fusefs
