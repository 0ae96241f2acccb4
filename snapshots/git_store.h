#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "policy/thread_annotations.h"
#include "snapshots/capture.h"
#include "snapshots/commit.h"
#include "snapshots/disk.h"
#include "snapshots/journal.h"
#include "snapshots/plan.h"
#include "snapshots/repository.h"
#include "snapshots/rounds.h"
#include "snapshots/stat_index.h"
#include "snapshots/store.h"
#include "snapshots/swap.h"
#include "snapshots/tree.h"

namespace okcvm::snapshots {

/// The store on a git repository. One call at a time (mutex_), also between processes (a lock file that the
/// kernel drops with its holder), but for those that only look at what snapshots hold.
class GitStore final : public Store {
 public:
  explicit GitStore(StoreConfig config) : config_(std::move(config)) {}

  /// Called once, before anything else.
  Result<void> recover() EXCLUDES(mutex_);

  std::vector<RelPath> recovered() const override { return recovered_; }
  void release_memory() override EXCLUDES(mutex_);
  Result<Snapshot> take(const std::string& label, const ChangeSource& changes,
                        const Progress& progress) override;
  Result<std::vector<Snapshot>> list(std::size_t limit, const std::string& after) override;
  Result<Snapshot> find(const std::string& snapshot) override;
  Result<std::vector<Difference>> show(const std::string& snapshot, const std::optional<Caller>& reader,
                                       const Progress& progress) override;
  Result<std::vector<Difference>> diff(const std::string& from, const std::optional<std::string>& to,
                                       const ChangeSource& changes, const std::optional<Caller>& reader,
                                       const Progress& progress) override;
  Result<RestoreResult> restore(const std::string& snapshot, const std::vector<RelPath>& paths, bool dry_run,
                                const RestoreHooks& hooks, const Progress& progress) override;
  Result<RestoreResult> undo(const RestoreHooks& hooks, const Progress& progress) override;
  Result<Snapshot> fork(const std::string& snapshot, const StoreConfig& target,
                        const Progress& progress) override;
  Result<VerifyReport> verify(const std::string& snapshot, const ChangeSource& changes,
                              const Progress& progress) override;

 private:
  /// A snapshot just taken, with its tree still in memory.
  struct Taken {
    Snapshot snapshot;
    Commit commit;
    std::unique_ptr<Tree> tree;
    std::vector<RelPath> open;  // as the driver counts: some may be closed, of which the kernel tells late
  };
  /// What a snapshot is of which nothing differs from the newest: that one, or another one.
  enum class WhereSame : std::uint8_t { kIsTheNewest, kIsAnotherOne };
  /// Whether what the base says of all that did not change is believed.
  enum class Look : std::uint8_t { kAtChanges, kAtEverything };
  enum class AfterIs : std::uint8_t { kStored, kLive };
  /// The state that the change record counts from.
  struct Base {
    std::optional<Commit> commit;     // nothing: no snapshot yet, or what it stands on cannot be read
    std::optional<Oid> newest;        // where the main ref stands
    std::optional<Oid> parent;        // of the next one: the newest that can be read
    std::optional<Oid> damaged_base;  // the base ref, if it may be that which cannot be read
  };

  // git_store.cpp
  template <typename Answer, typename... Parameters, typename... Arguments>
  Result<Answer> locked(Result<Answer> (GitStore::*work)(Parameters...), Arguments&&... arguments)
      EXCLUDES(mutex_);
  template <typename Answer, typename... Parameters, typename... Arguments>
  Result<Answer> run(Result<Answer> (GitStore::*work)(Parameters...), Arguments&&... arguments)
      REQUIRES(mutex_);
  template <typename Answer, typename... Parameters, typename... Arguments>
  Result<Answer> beside(Result<Answer> (GitStore::*work)(Parameters...), const Arguments&... arguments) const;
  template <typename Answer, typename... Parameters, typename... Arguments>
  Result<Answer> looked(Result<Answer> (GitStore::*work)(Parameters...), const Arguments&... arguments)
      EXCLUDES(mutex_);
  Result<FileDescriptor> lock_repository() REQUIRES(mutex_);
  Result<void> notice_others() REQUIRES(mutex_);
  Result<Commit> last_commit(const Oid& oid) REQUIRES(mutex_);
  Result<void> find_repository() REQUIRES(mutex_);
  void forget_repository() REQUIRES(mutex_);
  Result<std::vector<Snapshot>> list_locked(std::size_t limit, const std::string& after) REQUIRES(mutex_);
  Result<Snapshot> row_of(const Oid& oid) REQUIRES(mutex_);
  Result<Snapshot> find_locked(const std::string& snapshot) REQUIRES(mutex_);
  Result<const std::vector<Oid>*> history() REQUIRES(mutex_);
  Result<Oid> resolve(const std::string& snapshot) REQUIRES(mutex_);
  Result<Commit> commit_of(const std::string& snapshot) REQUIRES(mutex_);
  Result<std::unique_ptr<Tree>> open_tree(const Commit& commit) REQUIRES(mutex_);

  // store_take.cpp
  Result<Snapshot> take_locked(const std::string& label, const ChangeSource& changes,
                               const Progress& progress) REQUIRES(mutex_);
  Result<Base> base() REQUIRES(mutex_);
  Result<Commit> base_commit(std::optional<Oid> restored) REQUIRES(mutex_);
  Result<void> count_from_nothing(Base& base) REQUIRES(mutex_);
  void tidy_up(const Progress& progress) REQUIRES(mutex_);
  Result<Taken> take_from(const Base& from, const std::string& label, WhereSame where_same,
                          const ChangeSource& changes, const Progress& progress) REQUIRES(mutex_);
  ChangeSet cut(const ChangeSource& changes, const Base& from) REQUIRES(mutex_);
  std::string name_for_record(const Oid& state) const;
  Result<Taken> take_now(const std::string& label, WhereSame where_same, const ChangeSource& changes,
                         const Progress& progress) REQUIRES(mutex_);
  Result<Reading> read_workspace(const Base& from, Look look, ChangeSet set, const ChangeSource& changes,
                                 Batch& batch, const Progress& progress) REQUIRES(mutex_);
  Result<Oid> keep(Batch& batch, const Commit& commit, const Base& base, StatIndex::Seen seen)
      REQUIRES(mutex_);
  Result<std::unique_ptr<Tree>> look_at_workspace(const ChangeSource& changes, Look look,
                                                  const Progress& progress) REQUIRES(mutex_);

  // store_diff.cpp
  Result<std::vector<Difference>> show_locked(const std::string& snapshot,
                                              const std::optional<Caller>& reader, const Progress& progress)
      REQUIRES(mutex_);
  Result<std::vector<Difference>> diff_locked(const std::string& from, const std::optional<std::string>& to,
                                              const ChangeSource& changes,
                                              const std::optional<Caller>& reader, const Progress& progress)
      REQUIRES(mutex_);
  Result<std::vector<Difference>> differences(Tree& before, Tree& after, AfterIs after_is,
                                              const std::optional<Caller>& reader, const Progress& progress)
      REQUIRES(mutex_);

  // store_restore.cpp
  Result<RestoreResult> restore_locked(const std::string& snapshot, const std::vector<RelPath>& paths,
                                       bool dry_run, const RestoreHooks& hooks, const Progress& progress)
      REQUIRES(mutex_);
  Result<RestoreResult> undo_locked(const RestoreHooks& hooks, const Progress& progress) REQUIRES(mutex_);
  Result<RestoreResult> plan_only(const Commit& target, const std::vector<RelPath>& paths,
                                  const Caller& caller, const ChangeSource& changes, const Progress& progress)
      REQUIRES(mutex_);
  Result<RestoreResult> restore_now(const Commit& target, const std::vector<RelPath>& paths,
                                    const RestoreHooks& hooks, const Progress& progress) REQUIRES(mutex_);
  Result<RestoreResult> restore_held(const Commit& target, const std::vector<RelPath>& paths,
                                     const RestoreHooks& hooks, const Progress& progress) REQUIRES(mutex_);
  Result<Snapshot> undo_after_nothing(const Taken& taken) REQUIRES(mutex_);
  struct Site;
  Result<std::unique_ptr<Site>> open_site(const Progress& progress) REQUIRES(mutex_);
  Result<std::unique_ptr<Site>> write_ahead(const Commit& target, const std::vector<RelPath>& paths,
                                            const std::string& label, const RestoreHooks& hooks,
                                            const Progress& progress) REQUIRES(mutex_);
  Result<void> carry_out(Site& site, const Plan& plan, const Taken& taken, const Commit& target, Tree& wanted,
                         const RestoreHooks& hooks) REQUIRES(mutex_);
  Result<Disk> reach_workspace() REQUIRES(mutex_);
  Result<Oid> keep_base(const Commit& before, const Commit& target, Tree& wanted, const Plan& plan)
      REQUIRES(mutex_);
  Result<void> name_restored(const Journal& journal, const Disk& disk) REQUIRES(mutex_);

  // store_recover.cpp
  Result<void> give_up_restore() REQUIRES(mutex_);
  Result<void> recover_restore(const Journal& journal) REQUIRES(mutex_);
  Result<void> converge(const Commit& before, const Commit& after, const Commit& wanted) REQUIRES(mutex_);

  // store_fork.cpp
  Result<Snapshot> fork_locked(const std::string& snapshot, const StoreConfig& target,
                               const Progress& progress) REQUIRES(mutex_);
  Result<void> share_objects(const Repository& target) REQUIRES(mutex_);
  Result<void> write_out(const Commit& commit, const StoreConfig& target, const Progress& progress)
      REQUIRES(mutex_);

  // store_verify.cpp
  /// Whether a blob is only there, or can be read.
  enum class Blobs : std::uint8_t { kAreThere, kCanBeRead };
  class Inspector;
  /// Everything that the snapshots of one repository hold; nothing, if any of it is not well.
  struct Intact {
    std::unordered_set<Oid, OidHash> objects;
    Repository::Place place;
  };
  /// `busy` if asked to stop.
  Result<Intact> intact_objects(const Progress& progress) REQUIRES(mutex_);
  Result<void> inspect_all(Inspector& inspector, VerifyReport& report) REQUIRES(mutex_);
  /// `busy` if asked to stop.
  Result<bool> is_whole(const Commit& commit, Blobs blobs, const Progress& progress) REQUIRES(mutex_);
  Result<void> tell_of_unrecorded(const Result<std::unique_ptr<Tree>>& everything,
                                  const ChangeSource& changes, const Progress& progress) REQUIRES(mutex_);
  Result<VerifyReport> verify_locked(const std::string& snapshot, Intact intact, const ChangeSource& changes,
                                     const Progress& progress) REQUIRES(mutex_);

  UnwrittenZone unwritten_zone() const { return {config_.owner_uid, config_.owner_gid, config_.created_at}; }

  const StoreConfig config_;
  std::vector<RelPath> recovered_;  // set by recover(), constant afterwards
  bool only_looks_ = false;  // beside another store that is at work: without the lock file, writes nothing

  Mutex mutex_;
  std::unique_ptr<Repository> repository_ GUARDED_BY(mutex_);  // null until the first snapshot
  std::unique_ptr<StatIndex> index_ GUARDED_BY(mutex_);
  std::optional<Oid> newest_ GUARDED_BY(mutex_);      // where the main ref stands, as of notice_others()
  std::optional<Oid> stale_base_ GUARDED_BY(mutex_);  // a base ref whose parent is no longer the newest
  std::optional<Commit> last_ GUARDED_BY(mutex_);     // the commit that was last counted from
  std::unique_ptr<Tree> warm_ GUARDED_BY(mutex_);     // of `warm_for_`, as far as it was looked into
  Oid warm_for_ GUARDED_BY(mutex_);
  std::optional<std::vector<Oid>> history_ GUARDED_BY(mutex_);  // newest first; read when first asked for
  bool may_lack_objects_ GUARDED_BY(mutex_) = false;            // packs went since it was looked at
  bool is_damaged_ GUARDED_BY(mutex_) = false;                  // something was found that cannot be read
  bool untold_ GUARDED_BY(mutex_) = false;    // the change source may not know of the last snapshot
  bool gives_up_ GUARDED_BY(mutex_) = false;  // the journal of a restore is still to be put aside
};

}  // namespace okcvm::snapshots
