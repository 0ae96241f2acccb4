// Going back.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <set>

#include "policy/fault.h"
#include "snapshots/arrivals.h"
#include "snapshots/difference.h"
#include "snapshots/git_store.h"
#include "snapshots/staging_folder.h"
#include "snapshots/swap.h"

namespace okcvm::snapshots {
namespace {

constexpr std::size_t kShortId = 8;
constexpr std::uint64_t kFile = 16 << 10;  // what a file costs by itself, in bytes that are read or written

/// The source of changes while programs go on.
Store::ChangeSource unheld(const Store::RestoreHooks& hooks) {
  Store::ChangeSource changes = hooks.changes;
  changes.hold = hooks.hold;
  return changes;
}

/// Whether there is so much to look at that most of it is to be stored before anyone has to wait. What is
/// open for writing is read once more then.
bool takes_long(const ChangeSet& changes, const std::filesystem::path& workspace) {
  constexpr std::uint64_t kMuch = 32 << 20;
  if (changes.rescan) return true;
  const auto disk = Disk::open(workspace);
  if (!disk || !*disk) return false;
  const std::set<RelPath> open(changes.in_flight.begin(), changes.in_flight.end());
  std::uint64_t bytes = 0;
  for (const Change& change : changes.changes) {
    if (open.contains(change.path)) continue;
    bytes += kFile;
    const auto status = (*disk)->stat(change.path.text());
    if (status && *status && S_ISREG((*status)->st_mode))
      bytes += static_cast<std::uint64_t>((*status)->st_size);
    if (bytes > kMuch) return true;
  }
  return false;
}

/// What it costs to write what comes in, in bytes.
std::uint64_t cost_to_write(const Work& work, Tree& wanted) {
  std::uint64_t bytes = 0;
  static_cast<void>(for_each_incoming(work, wanted, [&](const std::string&, const Node& node) {
    bytes += kFile + node.size;
    return Result<void>();
  }));
  return bytes;
}

Unexpected broken_off(Error reason, const SnapshotId& before) {
  reason.message += "; the restore was broken off half way: restore " + before.text() +
                    " to have back what was there before it";
  return fail(std::move(reason));
}

}  // namespace

/// The workspace, and where what comes into it is built.
struct GitStore::Site {
  Disk disk;
  StagingFolder folder;
  Staging staging;
};

Result<RestoreResult> GitStore::restore_locked(const std::string& snapshot, const std::vector<RelPath>& paths,
                                               bool dry_run, const RestoreHooks& hooks,
                                               const Progress& progress) {
  if (snapshot.empty()) return fail(Code::kUnknownSnapshot, "say which snapshot to restore");
  auto target = commit_of(snapshot);
  if (!target) return fail(target.error());
  return dry_run ? plan_only(*target, paths, hooks.caller, unheld(hooks), progress)
                 : restore_now(*target, paths, hooks, progress);
}

Result<RestoreResult> GitStore::undo_locked(const RestoreHooks& hooks, const Progress& progress) {
  const auto before = repository_ ? repository_->ref(kUndoRef) : std::optional<Oid>();
  if (!before) return fail(before.error());
  if (!*before) return fail(Code::kUnknownSnapshot, "nothing was restored yet, so there is nothing to undo");
  auto target = read_commit(*repository_, **before);
  if (!target) return fail(target.error());
  return restore_now(*target, {}, hooks, progress);
}

Result<Disk> GitStore::reach_workspace() {
  fault_point("restore.workspace");
  if (::mkdir(config_.workspace.c_str(), 0700) != 0 && errno != EEXIST)
    return fail_errno(errno, "the workspace cannot be made");
  auto disk = Disk::open(config_.workspace);
  if (!disk) return fail(disk.error());
  if (!*disk) return fail_errno(ENOENT, "the workspace cannot be opened");
  return std::move(**disk);
}

/// What a restore would do.
Result<RestoreResult> GitStore::plan_only(const Commit& target, const std::vector<RelPath>& paths,
                                          const Caller& caller, const ChangeSource& changes,
                                          const Progress& progress) {
  auto wanted = open_tree(target);
  if (!wanted) return fail(wanted.error());
  auto live = look_at_workspace(changes, Look::kAtChanges, progress);
  if (!live) return fail(live.error());
  auto plan = make_plan(**live, **wanted, paths, caller, unwritten_zone());
  if (!plan) return fail(plan.error());
  auto rows = to_differences(plan->deltas);
  if (!rows) return fail(rows.error());
  return RestoreResult{StoreAccess::id(target.oid), std::move(*rows), std::nullopt};
}

Result<RestoreResult> GitStore::restore_now(const Commit& target, const std::vector<RelPath>& paths,
                                            const RestoreHooks& hooks, const Progress& progress) {
  auto restored = restore_held(target, paths, hooks, progress);
  if (restored) tidy_up(progress);  // programs go on again
  return restored;
}

Result<RestoreResult> GitStore::restore_held(const Commit& target, const std::vector<RelPath>& paths,
                                             const RestoreHooks& hooks, const Progress& progress) {
  auto wanted = open_tree(target);
  if (!wanted) return fail(wanted.error());
  const std::string label = "Before the restore of " + target.oid.hex().substr(0, kShortId);
  std::unique_ptr<Site> site;
  if (hooks.hold && hooks.changes.cut) {
    auto ahead = write_ahead(target, paths, label, hooks, progress);
    if (!ahead) return fail(ahead.error());
    site = std::move(*ahead);
  }
  const auto hold = hooks.hold ? hooks.hold() : nullptr;
  auto taken = take_now(label, WhereSame::kIsTheNewest, hooks.changes, progress);
  if (!taken) return fail(taken.error());
  auto plan = make_plan(*taken->tree, **wanted, paths, hooks.caller, unwritten_zone());
  if (!plan) return fail(plan.error());
  auto rows = to_differences(plan->deltas);
  if (!rows) return fail(rows.error());
  if (auto arranged = arrange(*plan, *taken->tree, **wanted); !arranged) return fail(arranged.error());
  if (plan->deltas.empty()) {
    auto undo = undo_after_nothing(*taken);
    if (!undo) return fail(undo.error());
    return RestoreResult{StoreAccess::id(target.oid), {}, std::move(*undo)};
  }
  if (!site) {
    auto opened = open_site(progress);
    if (!opened) return fail(opened.error());
    site = std::move(*opened);
  }
  if (auto done = carry_out(*site, *plan, *taken, target, **wanted, hooks); !done) return fail(done.error());
  return RestoreResult{StoreAccess::id(target.oid), std::move(*rows), taken->snapshot};
}

Result<std::unique_ptr<GitStore::Site>> GitStore::open_site(const Progress& progress) {
  auto disk = reach_workspace();
  if (!disk) return fail(disk.error());
  auto folder = StagingFolder::make(*disk);
  if (!folder) return fail(folder.error());
  Staging staging(*repository_, folder->take(), progress);
  return std::make_unique<Site>(Site{std::move(*disk), std::move(*folder), std::move(staging)});
}

/// What takes long, while programs go on: what they change meanwhile is looked at again under the hold.
/// Answers where it wrote, or null: there is little to write.
Result<std::unique_ptr<GitStore::Site>> GitStore::write_ahead(const Commit& target,
                                                              const std::vector<RelPath>& paths,
                                                              const std::string& label,
                                                              const RestoreHooks& hooks,
                                                              const Progress& progress) {
  std::unique_ptr<Tree> live;
  const auto from = base();
  if (!from) return fail(from.error());
  if (takes_long(cut(hooks.changes, *from), config_.workspace)) {
    auto taken = take_now(label, WhereSame::kIsTheNewest, unheld(hooks), progress);
    if (!taken) return fail(taken.error());
    live = std::move(taken->tree);
  } else {
    auto seen = look_at_workspace(unheld(hooks), Look::kAtChanges, progress);
    if (!seen) return fail(seen.error());
    live = std::move(*seen);
  }
  auto wanted = open_tree(target);
  if (!wanted) return fail(wanted.error());
  auto plan = make_plan(*live, **wanted, paths, hooks.caller, unwritten_zone());
  if (!plan) return fail(plan.error());
  if (auto arranged = arrange(*plan, *live, **wanted); !arranged) return fail(arranged.error());
  if (cost_to_write(plan->work, **wanted) <= config_.much) return nullptr;
  auto site = open_site(progress);
  if (!site) return site;
  if (auto enough = check_space((*site)->disk, plan->work, **wanted, 0); !enough) return fail(enough.error());
  if (auto written = (*site)->staging.write_ahead(plan->work, **wanted); !written)
    return fail(written.error());
  static_cast<void>(::syncfs((*site)->disk.root()));  // that which counts comes under the hold
  return site;
}

/// A restore that changes nothing leaves what can be undone: the last one that did, if there was any.
Result<Snapshot> GitStore::undo_after_nothing(const Taken& taken) {
  const auto undo = repository_->spare_ref(kUndoRef);
  if (!undo) return fail(undo.error());
  if (*undo) {
    auto commit = read_commit(*repository_, **undo);
    if (!commit) return fail(commit.error());
    return to_snapshot(*repository_, *commit);
  }
  if (auto moved = repository_->move_ref(kUndoRef, *undo, taken.commit.oid); !moved)
    return fail(moved.error());
  return taken.snapshot;
}

/// Makes the workspace, of which `taken` was just taken, what the plan wants; or, after an error, what it
/// was.
Result<void> GitStore::carry_out(Site& site, const Plan& plan, const Taken& taken, const Commit& target,
                                 Tree& wanted, const RestoreHooks& hooks) {
  auto& [disk, folder, staging] = site;
  Swap swap(disk, staging, *taken.tree, wanted, plan.work, plan.scope);
  if (auto ready = swap.prepare(); !ready) return ready;
  auto base = keep_base(taken.commit, target, wanted, plan);
  if (!base) return fail(base.error());
  const Journal journal{taken.commit.oid, *base};
  // Under which name they are written to from now on, which no request tells.
  if (hooks.changes.still_mapped)
    for (const auto* open : {&taken.open, &taken.snapshot.in_flight})
      if (const auto written = plan.renamed(*open); !written.empty()) hooks.changes.still_mapped(written);
  // Before the journal, with which a start goes on where nobody can be asked who has what open.
  if (hooks.will_replace) hooks.will_replace(plan.leaving());
  if (auto written = journal.write(*repository_); !written) {
    static_cast<void>(give_up_restore());
    if (hooks.invalidate) hooks.invalidate({});
    return written;
  }

  auto done = swap.apply();
  if (done) {
    done = name_restored(journal, disk);
    if (!done) static_cast<void>(swap.undo());
  }
  const bool is_whole = swap.is_whole();
  if (!done && !is_whole) folder.remove();
  const auto settled = is_whole ? Journal::remove(*repository_) : recover_restore(journal);
  folder.remove();  // only now what went is gone, as invalidate() finds it
  if (hooks.invalidate && (!done || !settled)) hooks.invalidate(plan.paths());
  if (!settled) {
    static_cast<void>(give_up_restore());
    return is_whole ? settled : broken_off(settled.error(), taken.snapshot.id);
  }
  Batch::drop_intent(*repository_);
  if (!done) return done;
  if (hooks.changes.counts_from) hooks.changes.counts_from(name_for_record(journal.base));
  note_arrivals(plan.work, disk, wanted, *index_);
  index_->commit(journal.base, StatIndex::Seen::kChanges);
  if (hooks.invalidate) hooks.invalidate(plan.paths());
  return {};
}

/// The state to come, as a commit on top of the newest snapshot: the next snapshot counts from it.
Result<Oid> GitStore::keep_base(const Commit& before, const Commit& target, Tree& wanted, const Plan& plan) {
  Batch batch(*repository_);
  Commit commit = before;
  commit.parent = newest_;
  commit.label = "State after a restore";
  commit.in_flight.clear();
  const bool is_the_target = plan.is_whole() && wanted.root().stored && before.names.left_out.is_none() &&
                             target.names.left_out.is_none();
  if (is_the_target) {
    commit.names = target.names;
    commit.stats = target.stats;
  } else {
    auto tree = open_tree(before);
    if (!tree) return fail(tree.error());
    if (auto grafted = graft(plan, wanted, **tree); !grafted) return fail(grafted.error());
    auto names = (*tree)->write(batch);
    if (!names) return fail(names.error());
    const Totals& totals = (*tree)->totals();
    commit.names = *names;
    commit.stats = {totals.files, totals.directories, totals.bytes, 0, 0, false};
  }
  auto oid = write_commit(batch, commit);
  if (!oid) return oid;
  if (auto published = batch.publish(*oid); !published) return fail(published.error());
  commit.oid = *oid;
  last_ = std::move(commit);
  return oid;
}

/// The workspace is as wanted: makes that durable, and says so in the refs, wholly or not at all.
Result<void> GitStore::name_restored(const Journal& journal, const Disk& disk) {
  if (with_faults("restore.sync", [&] { return ::syncfs(disk.root()); }) != 0)
    return fail_errno(errno, "the restored files cannot be written to disk");
  const auto undo = repository_->spare_ref(kUndoRef), base = repository_->spare_ref(kBaseRef);
  for (const auto* ref : {&undo, &base})
    if (!*ref) return fail(ref->error());
  if (*undo != journal.before)
    if (auto moved = repository_->move_ref(kUndoRef, *undo, journal.before); !moved) return moved;
  if (*base == journal.base) return {};
  auto moved = repository_->move_ref(kBaseRef, *base, journal.base);
  if (!moved && *undo && *undo != journal.before)
    static_cast<void>(repository_->move_ref(kUndoRef, journal.before, **undo));
  return moved;
}

}  // namespace okcvm::snapshots
