#include "snapshots/git_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <unordered_set>

#include "snapshots/io.h"
#include "snapshots/ledger.h"

namespace okcvm::snapshots {
namespace {

constexpr std::size_t kShortestPrefix = 4;

Unexpected unknown(const std::string& snapshot) {
  return fail(Code::kUnknownSnapshot,
              "there is no snapshot \"" + snapshot.substr(0, 80) + "\"; okcvm snapshots lists them");
}

/// Whether the ledger has all of these, newest first. It may have lost ones between them.
bool has_in_order(const std::vector<Oid>& ledger, const std::vector<Oid>& found) {
  auto place = ledger.rbegin();
  for (const Oid& oid : found) {
    place = std::find(place, ledger.rend(), oid);
    if (place == ledger.rend()) return false;
    ++place;
  }
  return true;
}

/// Where the ref cannot be read: what it said last.
Error with_newest_known(Error error, const std::vector<Oid>& ledger) {
  if (error.code == Code::kCorrupt && !ledger.empty())
    error.message += "; the newest snapshot was " + ledger.back().hex() +
                     ": write that to this file in the session's repository";
  return error;
}

}  // namespace

Result<SnapshotId> SnapshotId::parse(std::string_view text) {
  if (!Oid::parse(text)) return fail(Code::kUnknownSnapshot, "a snapshot id is 40 lower-case hex digits");
  return SnapshotId(std::string(text));
}

Result<std::unique_ptr<Store>> Store::open(const StoreConfig& config) try {
  Result<void> ready;
  for (int tries = 0; tries < 2; ++tries) {  // for a moment's lack of memory a sound one looks damaged
    auto store = std::make_unique<GitStore>(config);
    ready = store->recover();
    if (ready) return std::unique_ptr<Store>(std::move(store));
    if (ready.error().code != Code::kCorrupt && ready.error().errno_value != ENOMEM) break;
  }
  if (ready.error().code != Code::kCorrupt) return fail(ready.error());
  // What is damaged cannot be waited for. Repaired some day, it must not go on over what came meanwhile.
  static_cast<void>(Journal::give_up(config.repository));
  return fail(ready.error());
} catch (const std::exception&) {
  return fail_errno(ENOMEM, "the snapshots cannot be opened");
}

void GitStore::release_memory() {
  if (!mutex_.try_lock()) return;
  warm_.reset();
  if (index_) index_->forget_rows();
  if (repository_) repository_->close();
  mutex_.unlock();
}

// -- One at a time

/// Runs one public call under both locks.
template <typename Answer, typename... Parameters, typename... Arguments>
Result<Answer> GitStore::locked(Result<Answer> (GitStore::*work)(Parameters...), Arguments&&... arguments) {
  MutexLock lock(mutex_);
  return run(work, std::forward<Arguments>(arguments)...);
}

/// The edge where exceptions end (only a lack of memory throws here).
template <typename Answer, typename... Parameters, typename... Arguments>
Result<Answer> GitStore::run(Result<Answer> (GitStore::*work)(Parameters...), Arguments&&... arguments) try {
  if (auto found = find_repository(); !found) return fail(found.error());
  FileDescriptor held;
  if (repository_) {
    if (!only_looks_) {
      auto file = lock_repository();
      if (!file) return fail(file.error());
      held = std::move(*file);
    }
    if (auto noticed = notice_others(); !noticed) return fail(noticed.error());
    if (gives_up_)
      if (auto put_aside = give_up_restore(); !put_aside) return fail(put_aside.error());
  }
  return (this->*work)(std::forward<Arguments>(arguments)...);
} catch (const std::exception&) {
  gives_up_ = true;  // a restore may have been under way
  return fail_errno(ENOMEM, "the work on snapshots was given up");
}

/// Opens what stands at the repository's place, unless that is what is open already.
Result<void> GitStore::find_repository() {
  const auto is_made = is_there(config_.repository);
  if (!is_made) return fail(is_made.error());
  if (repository_ && !repository_->is_at(config_.repository)) forget_repository();
  if (repository_ || !*is_made) return {};
  if (!only_looks_ && is_half_restored(config_))
    return fail(Code::kBusy,
                "a restore was broken off in the session's repository: `okcvm unmount` and `okcvm load` "
                "settle it");
  auto opened = Repository::open(config_.repository);
  if (!opened) return fail(opened.error());
  repository_ = std::move(*opened);
  index_ = std::make_unique<StatIndex>(repository_->own_folder());
  return {};
}

/// Somebody removed it, or put another in its place.
void GitStore::forget_repository() {
  warm_.reset();
  index_.reset();
  repository_.reset();
  newest_.reset();
  last_.reset();
  history_.reset();
  stale_base_.reset();
  untold_ = true;
}

/// Runs what only reads what snapshots hold by a store of its own, beside one that may be at work: refs move
/// in one step, and no object of a snapshot ever changes. It may go to another pack, though, and not be found
/// just then.
template <typename Answer, typename... Parameters, typename... Arguments>
Result<Answer> GitStore::beside(Result<Answer> (GitStore::*work)(Parameters...),
                                const Arguments&... arguments) const {
  GitStore other(config_);
  other.only_looks_ = true;
  return other.locked(work, arguments...);
}

/// Runs one public call that only reads what snapshots hold, without waiting for another one, which may be at
/// work for long.
template <typename Answer, typename... Parameters, typename... Arguments>
Result<Answer> GitStore::looked(Result<Answer> (GitStore::*work)(Parameters...),
                                const Arguments&... arguments) {
  if (mutex_.try_lock()) {
    auto answer = run(work, arguments...);
    mutex_.unlock();
    return answer;
  }
  auto answer = beside(work, arguments...);
  return answer || answer.error().code != Code::kCorrupt ? answer : locked(work, arguments...);
}

Result<Snapshot> GitStore::take(const std::string& label, const ChangeSource& changes,
                                const Progress& progress) {
  return locked(&GitStore::take_locked, label, changes, progress);
}

Result<std::vector<Snapshot>> GitStore::list(std::size_t limit, const std::string& after) {
  return looked(&GitStore::list_locked, limit, after);
}

Result<Snapshot> GitStore::find(const std::string& snapshot) {
  return looked(&GitStore::find_locked, snapshot);
}

Result<std::vector<Difference>> GitStore::show(const std::string& snapshot,
                                               const std::optional<Caller>& reader,
                                               const Progress& progress) {
  return looked(&GitStore::show_locked, snapshot, reader, progress);
}

Result<std::vector<Difference>> GitStore::diff(const std::string& from, const std::optional<std::string>& to,
                                               const ChangeSource& changes,
                                               const std::optional<Caller>& reader,
                                               const Progress& progress) {
  return to ? looked(&GitStore::diff_locked, from, to, changes, reader, progress)
            : locked(&GitStore::diff_locked, from, to, changes, reader, progress);
}

Result<RestoreResult> GitStore::restore(const std::string& snapshot, const std::vector<RelPath>& paths,
                                        bool dry_run, const RestoreHooks& hooks, const Progress& progress) {
  return locked(&GitStore::restore_locked, snapshot, paths, dry_run, hooks, progress);
}

Result<RestoreResult> GitStore::undo(const RestoreHooks& hooks, const Progress& progress) {
  return locked(&GitStore::undo_locked, hooks, progress);
}

Result<Snapshot> GitStore::fork(const std::string& snapshot, const StoreConfig& target,
                                const Progress& progress) {
  return locked(&GitStore::fork_locked, snapshot, target, progress);
}

Result<VerifyReport> GitStore::verify(const std::string& snapshot, const ChangeSource& changes,
                                      const Progress& progress) {
  // What takes long is read beside the others. Should anything not be well, it may have moved meanwhile: then
  // all is read again, alone.
  {
    MutexLock lock(mutex_);
    if (repository_) repository_->close();  // what is opened beside it would share its maps
  }
  auto intact = beside(&GitStore::intact_objects, progress);
  if (!intact && intact.error().code == Code::kBusy) return fail(intact.error());
  return locked(&GitStore::verify_locked, snapshot, std::move(intact).value_or(Intact()), changes, progress);
}

Result<FileDescriptor> GitStore::lock_repository() {
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  FileDescriptor file(::openat(repository_->own_folder(), kLock, kFlags));
  if (!file && errno == ENOENT)  // of an older daemon
    file = FileDescriptor(::openat(repository_->own_folder(), kLock, kFlags | O_CREAT, 0600));
  if (!file) return fail_errno(errno, "the snapshot repository cannot be locked");
  while (::flock(file.get(), LOCK_EX) != 0)
    if (errno != EINTR) return fail_errno(errno, "the snapshot repository cannot be locked");
  return file;
}

/// Another process may have made the repository, moved it on, or packed it, since we last held the lock.
Result<void> GitStore::notice_others() {
  const auto packs_went = repository_->notice_removed_packs();
  if (!packs_went) return fail(packs_went.error());
  if (*packs_went) {
    warm_.reset();
    history_.reset();
    may_lack_objects_ = true;
  }
  auto newest = repository_->ref(kMainRef);
  if (!newest || !*newest) {
    const auto ledger = Ledger(repository_->own_folder()).all().ids;
    if (newest && !ledger.empty())
      newest = fail(Code::kCorrupt, "the ref " + std::string(kMainRef) + " of the snapshots is missing");
    if (!newest) return fail(with_newest_known(newest.error(), ledger));
  }
  if (*newest == newest_) return {};
  newest_ = *newest;
  history_.reset();
  repository_->refresh();
  return {};
}

// -- Finding snapshots

/// The ledger's word on what came before counts for more than a commit's: of a snapshot that was taken while
/// the one before it could not be read, the commit names an older one. A damaged ledger is asked only where a
/// commit cannot be read.
Result<const std::vector<Oid>*> GitStore::history() {
  if (history_) return &*history_;
  const Ledger ledger(repository_ ? repository_->own_folder() : -1);
  const auto [taken, is_sound] = ledger.all();
  std::vector<Oid> found;
  std::unordered_set<Oid, OidHash> seen;
  bool is_whole = true;
  auto before = taken.rbegin();
  for (auto next = newest_; next && seen.insert(*next).second;) {
    found.push_back(*next);
    auto parent = read_parent(*repository_, *next);
    is_whole &= parent.has_value();
    if (!parent && parent.error().code != Code::kCorrupt) return fail(parent.error());
    if (const auto place = std::find(before, taken.rend(), *next); place != taken.rend()) {
      before = std::next(place);
      if (is_sound || !parent) parent = before == taken.rend() ? std::optional<Oid>() : *before;
    }
    if (!parent) return fail(parent.error());
    next = *parent;
  }
  const bool is_out_of_date = !is_sound || !has_in_order(taken, found);
  if (is_whole && !only_looks_ && !found.empty() && is_out_of_date) ledger.write(found);
  history_ = std::move(found);
  return &*history_;
}

Result<Oid> GitStore::resolve(const std::string& snapshot) {
  const bool is_hex = snapshot.find_first_not_of("0123456789abcdef") == snapshot.npos;
  if (!is_hex || snapshot.size() > Oid::kHexSize) return unknown(snapshot);
  if (snapshot.size() < kShortestPrefix)
    return fail(Code::kUnknownSnapshot,
                "\"" + snapshot + "\" is too short to name a snapshot: give at least 4 digits of its id");
  auto all = history();
  if (!all) return fail(all.error());
  std::optional<Oid> match;
  for (const Oid& oid : **all) {
    if (!oid.hex().starts_with(snapshot)) continue;
    if (match)
      return fail(Code::kAmbiguousPrefix,
                  "more than one snapshot begins with " + snapshot + "; use more digits");
    match = oid;
  }
  if (!match) return unknown(snapshot);
  return *match;
}

Result<Commit> GitStore::commit_of(const std::string& snapshot) {
  if (snapshot.empty()) {
    auto all = history();
    if (!all) return fail(all.error());
    if ((*all)->empty()) return fail(Code::kUnknownSnapshot, "there is no snapshot yet; take one first");
    return read_commit(*repository_, (*all)->front());
  }
  auto oid = resolve(snapshot);
  if (!oid) return fail(oid.error());
  return read_commit(*repository_, *oid);
}

Result<std::unique_ptr<Tree>> GitStore::open_tree(const Commit& commit) {
  return Tree::open(*repository_, commit.names, totals_of(commit));
}

Result<Snapshot> GitStore::row_of(const Oid& oid) {
  auto commit = read_commit(*repository_, oid);
  auto snapshot = commit ? to_snapshot(*repository_, *commit) : Result<Snapshot>(fail(commit.error()));
  if (snapshot || snapshot.error().code != Code::kCorrupt) return snapshot;
  Snapshot damaged{StoreAccess::id(oid), {}, {}, {}, {}, {}, {}};
  damaged.damaged = true;
  return damaged;
}

Result<std::vector<Snapshot>> GitStore::list_locked(std::size_t limit, const std::string& after) {
  auto all = history();
  if (!all) return fail(all.error());
  auto next = (*all)->begin();
  if (!after.empty()) {
    const auto last = resolve(after);
    if (!last) return fail(last.error());
    next = std::next(std::find(next, (*all)->end(), *last));
  }
  std::vector<Snapshot> snapshots;
  std::size_t texts = 0;
  for (; next != (*all)->end(); ++next) {
    if ((limit != 0 && snapshots.size() == limit) || texts >= kMostListed) break;
    auto snapshot = row_of(*next);
    if (!snapshot) return fail(snapshot.error());
    texts += snapshot->text_size();
    snapshots.push_back(std::move(*snapshot));
  }
  return snapshots;
}

Result<Snapshot> GitStore::find_locked(const std::string& snapshot) {
  if (snapshot.empty()) return unknown(snapshot);
  auto commit = commit_of(snapshot);
  if (!commit) return fail(commit.error());
  return to_snapshot(*repository_, *commit);
}

}  // namespace okcvm::snapshots
