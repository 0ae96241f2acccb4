// Taking snapshots.

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

#include "snapshots/capture.h"
#include "snapshots/git_store.h"
#include "snapshots/ledger.h"
#include "snapshots/pack_merge.h"
#include "snapshots/replay.h"

namespace okcvm::snapshots {
namespace {

ChangeSet cut_from(const Store::ChangeSource& changes) {
  if (changes.cut) return timed_cut(changes);
  ChangeSet unknown;
  unknown.rescan = true;
  unknown.rescan_reason = "nobody recorded changes";
  return unknown;
}

/// Of the tree of the last snapshot, kept for the next one: about a megabyte.
constexpr std::size_t kWarmNodes = 4096;

/// Those that are in the snapshot.
Result<std::vector<RelPath>> files_in(Tree& tree, std::vector<RelPath> paths) {
  std::vector<RelPath> files;
  for (auto& path : paths) {
    if (!is_snapshotted(path)) continue;
    auto node = tree.find(path);
    if (!node) return fail(node.error());
    if (*node && (*node)->type == NodeType::kFile) files.push_back(std::move(path));
  }
  return files;
}

timespec now() {
  timespec time{};
  ::clock_gettime(CLOCK_REALTIME, &time);
  return time;
}

}  // namespace

Result<Snapshot> GitStore::take_locked(const std::string& label, const ChangeSource& changes,
                                       const Progress& progress) {
  auto taken =
      take_now(label, label.empty() ? WhereSame::kIsTheNewest : WhereSame::kIsAnotherOne, changes, progress);
  if (!taken) return fail(taken.error());
  const bool is_kept = warm_ && warm_for_ == taken->commit.oid;
  if (!is_kept && taken->tree->settle(kWarmNodes)) {
    warm_ = std::move(taken->tree);
    warm_for_ = taken->commit.oid;
  }
  tidy_up(progress);
  return std::move(taken->snapshot);
}

/// What was asked for is done, whatever becomes of this.
void GitStore::tidy_up(const Progress& progress) {
  try {
    merge_packs(*repository_, progress);
  } catch (const std::bad_alloc&) {
    clean_up_merge(*repository_);
  }
}

/// After a restore the workspace is not what the newest snapshot holds but what the base ref names, a commit
/// on top of it that is not itself a snapshot. Once a newer one is taken, that commit's parent is no longer
/// the newest.
Result<GitStore::Base> GitStore::base() {
  Base found;
  found.newest = found.parent = newest_;
  if (!found.newest) return found;
  auto restored = repository_->ref(kBaseRef);
  if (!restored && restored.error().code == Code::kCorrupt) {
    if (auto removed = repository_->spare_ref(kBaseRef); !removed) return fail(removed.error());
    if (auto known = count_from_nothing(found); !known) return fail(known.error());
    return found;
  }
  if (!restored) return fail(restored.error());
  auto commit = base_commit(*restored);
  if (commit) {
    found.commit = std::move(*commit);
    return found;
  }
  if (commit.error().code != Code::kCorrupt) return fail(commit.error());
  if (*restored != stale_base_) found.damaged_base = *restored;
  if (auto known = count_from_nothing(found); !known) return fail(known.error());
  return found;
}

Result<Commit> GitStore::base_commit(std::optional<Oid> restored) {
  if (restored && restored != stale_base_) {
    auto parent = last_ && last_->oid == *restored ? last_->parent : read_parent(*repository_, *restored);
    if (!parent) return fail(parent.error());
    if (*parent != newest_) stale_base_ = restored;
  }
  if (restored == stale_base_) restored.reset();
  return last_commit(restored.value_or(*newest_));
}

/// What was counted from so far cannot be read. Everything is in the workspace still.
Result<void> GitStore::count_from_nothing(Base& base) {
  warm_.reset();
  last_.reset();
  base.commit.reset();
  base.parent.reset();
  const auto all = history();
  if (!all) return fail(all.error());
  for (const Oid& oid : **all)
    if (read_commit(*repository_, oid)) {
      base.parent = oid;
      break;
    }
  return {};
}

/// After a restore that was broken off half way, what it did is in no record.
ChangeSet GitStore::cut(const ChangeSource& changes, const Base& from) {
  ChangeSet set = cut_from(changes);
  if (set.rescan || !repository_) return set;
  if (Journal::was_given_up(*repository_))
    set.rescan_reason = "a restore was broken off";
  else if (changes.counts_from && from.commit && set.counts_from != from.commit->oid.hex() &&
           set.counts_from != name_for_record(from.commit->oid))
    set.rescan_reason = "changes were recorded from another state on";
  set.rescan = !set.rescan_reason.empty();
  return set;
}

/// What the record of changes is told that it counts from: this state, in this workspace. One that somebody
/// puts in its place is another; where there is none yet, the state alone.
std::string GitStore::name_for_record(const Oid& state) const {
  struct statx status {};
  if (::statx(AT_FDCWD, config_.workspace.c_str(), AT_SYMLINK_NOFOLLOW, STATX_INO | STATX_BTIME, &status) !=
      0)
    return state.hex();
  const auto& born = status.stx_btime;
  return hash_object(ObjectKind::kBlob, state.hex() + " " + std::to_string(status.stx_ino) + " " +
                                            std::to_string(born.tv_sec) + "." + std::to_string(born.tv_nsec))
      .hex();
}

/// A commit that is mostly the one that was asked for before.
Result<Commit> GitStore::last_commit(const Oid& oid) {
  if (last_ && last_->oid == oid) return *last_;
  auto commit = read_commit(*repository_, oid);
  if (commit) last_ = *commit;
  return commit;
}

Result<GitStore::Taken> GitStore::take_now(const std::string& label, WhereSame where_same,
                                           const ChangeSource& changes, const Progress& progress) {
  if (!repository_) {
    auto created = Repository::create(config_.repository);
    if (!created) return fail(created.error());
    repository_ = std::move(*created);
    index_ = std::make_unique<StatIndex>(repository_->own_folder());
    history_.reset();
  }
  auto from = base();
  if (!from) return fail(from.error());
  Result<bool> is_sound = true;
  if ((may_lack_objects_ || is_damaged_) && from->commit)
    is_sound = is_whole(*from->commit, is_damaged_ ? Blobs::kCanBeRead : Blobs::kAreThere, progress);
  if (!is_sound) return fail(is_sound.error());
  may_lack_objects_ = is_damaged_ = false;
  if (*is_sound && (from->commit || !from->newest)) {
    auto taken = take_from(*from, label, where_same, changes, progress);
    if (taken || !from->commit || taken.error().code != Code::kCorrupt) return taken;
  }
  set_damaged_packs_aside(*repository_);
  if (auto opened = repository_->open_anew(); !opened) return fail(opened.error());
  if (auto known = count_from_nothing(*from); !known) return fail(known.error());
  return take_from(*from, label, where_same, changes, progress);
}

Result<GitStore::Taken> GitStore::take_from(const Base& from, const std::string& label, WhereSame where_same,
                                            const ChangeSource& changes, const Progress& progress) {
  ChangeSet first = cut(changes, from);
  const bool is_newest = from.commit && from.commit->oid == *from.newest;
  if (first.empty() && is_newest && where_same == WhereSame::kIsTheNewest) {
    auto tree = open_tree(*from.commit);
    if (!tree) return fail(tree.error());
    auto same = to_snapshot(*repository_, *from.commit);
    if (!same) return fail(same.error());
    same->unchanged = true;
    same->stats.rescanned = false;  // these are told of the call
    same->in_flight.clear();
    return Taken{std::move(*same), *from.commit, std::move(*tree), {}};
  }
  if (from.newest && !from.commit) {
    first.rescan = true;
    first.rescan_reason = "the newest snapshot is damaged";
  }

  const auto trust = !from.newest   ? Batch::Trust::kHoldsNothing
                     : !from.commit ? Batch::Trust::kIsDamaged
                                    : Batch::Trust::kHoldsWhatItSays;
  Batch batch(*repository_, trust);
  auto reading = read_workspace(from, Look::kAtChanges, std::move(first), changes, batch, progress);
  if (!reading) return fail(reading.error());
  auto& [tree, found, set] = *reading;
  const auto seen = !from.commit || set.rescan ? StatIndex::Seen::kAll : StatIndex::Seen::kChanges;
  auto names = tree->write(batch);
  if (!names) return fail(names.error());
  auto in_flight = files_in(*tree, std::move(found.in_flight));
  if (!in_flight) return fail(in_flight.error());

  // After a restore the same as the newest is new all the same: what is retired is counted from the restore.
  Commit commit;
  const bool unchanged = where_same == WhereSame::kIsTheNewest && is_newest && from.commit->names == *names;
  if (unchanged) {
    commit = *from.commit;
    if (set.rescan)
      index_->commit(commit.oid, StatIndex::Seen::kAll);
    else
      index_->drop();
  } else {
    const Totals& totals = tree->totals();
    commit.parent = from.parent;
    commit.label = label;
    commit.created_at = now();
    commit.stats = {totals.files, totals.directories, totals.bytes, found.entries, found.bytes, set.rescan};
    commit.in_flight = *in_flight;
    commit.names = *names;
    auto oid = keep(batch, commit, from, seen);
    if (!oid) return fail(oid.error());
    commit.oid = *oid;
  }
  if (changes.retire) changes.retire(set);
  if (changes.counts_from) changes.counts_from(name_for_record(commit.oid));
  untold_ = false;
  Batch::drop_intent(*repository_);
  Journal::forget_given_up(*repository_);
  auto snapshot = to_snapshot(*repository_, commit);
  if (!snapshot) return fail(snapshot.error());
  snapshot->unchanged = unchanged;
  snapshot->stats.rescanned = set.rescan;
  snapshot->in_flight = std::move(*in_flight);
  return Taken{std::move(*snapshot), std::move(commit), std::move(tree), std::move(set.in_flight)};
}

Result<Reading> GitStore::read_workspace(const Base& from, Look look, ChangeSet set,
                                         const ChangeSource& changes, Batch& batch,
                                         const Progress& progress) {
  index_->set_base(from.commit ? from.commit->oid : Oid{});
  const auto open = [&]() REQUIRES(mutex_) -> Result<std::unique_ptr<Tree>> {
    if (warm_ && from.commit && warm_for_ == from.commit->oid && batch.stores()) return std::move(warm_);
    return from.commit ? open_tree(*from.commit) : std::make_unique<Tree>(repository_.get());
  };
  const bool has_base = from.commit && look == Look::kAtChanges;
  const Moves moves = look == Look::kAtChanges && !untold_ ? Moves::kAreNew : Moves::kMayBeKnown;
  Rounds rounds({open, has_base, moves, index_.get()}, changes, config_.workspace, batch, progress);
  return rounds.read(std::move(set));
}

/// Objects first, then the ref: from then on the snapshot is there.
Result<Oid> GitStore::keep(Batch& batch, const Commit& commit, const Base& from, StatIndex::Seen seen) {
  auto oid = write_commit(batch, commit);
  if (!oid) return oid;
  if (auto published = batch.publish(*oid); !published) return fail(published.error());
  if (auto moved = repository_->move_ref(kMainRef, from.newest, *oid); !moved) {
    const Error failed = moved.error();
    if (auto undone = Batch::recover(*repository_); !undone) return fail(undone.error());
    return fail(failed);
  }
  Ledger(repository_->own_folder()).add(*oid, from.newest);
  // What was restored last cannot be counted from any more. A ref that is no state on top of the newest is
  // none.
  if (from.damaged_base)
    if (auto moved = repository_->move_ref(kBaseRef, from.damaged_base, *oid); moved) stale_base_ = *oid;
  newest_ = *oid;
  last_ = commit;
  last_->oid = *oid;
  index_->commit(*oid, seen);
  if (from.parent != from.newest)
    history_.reset();
  else if (history_)
    history_->insert(history_->begin(), *oid);
  return oid;
}

/// Names everything and stores nothing. To look at everything is to trust no record.
Result<std::unique_ptr<Tree>> GitStore::look_at_workspace(const ChangeSource& changes, Look look,
                                                          const Progress& progress) {
  auto from = base();
  if (!from) return fail(from.error());
  Batch names_only;
  auto reading = read_workspace(*from, look, cut(changes, *from), changes, names_only, progress);
  index_->drop();
  if (!reading) return fail(reading.error());
  // Subtrees are compared by name: those that were looked at get theirs.
  if (auto named = reading->tree->write(names_only); !named) return fail(named.error());
  return std::move(reading->tree);
}

}  // namespace okcvm::snapshots
