#include <chrono>
#include <utility>

#include "fusefs/session_mount.h"
#include "policy/utf8.h"
#include "tools/daemon/host/clock.h"
#include "tools/daemon/host/log.h"
#include "tools/daemon/sessions/sessions.h"

namespace okcvm::daemon {
namespace {

constexpr std::size_t kMostOfLabel = 256;  // bytes, in events

class Stopwatch {
 public:
  std::chrono::nanoseconds time() const { return std::chrono::steady_clock::now() - start_; }
  std::int64_t milliseconds() const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(time()).count();
  }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// `held` is the hold under way, if any: cutting through the mount itself would wait for that to end.
snapshots::Store::ChangeSource changes_through(
    const std::shared_ptr<fusefs::SessionMount>& mount,
    const std::shared_ptr<std::weak_ptr<fusefs::SessionMount::Hold>>& held =
        std::make_shared<std::weak_ptr<fusefs::SessionMount::Hold>>()) {
  snapshots::Store::ChangeSource source;
  source.cut = [mount, held] {
    const auto hold = held->lock();
    return hold ? hold->cut_changes() : mount->cut_changes();
  };
  source.retire = [mount](const ChangeSet& set) { mount->retire_changes(set); };
  source.counts_from = [mount](const std::string& state) { mount->changes_count_from(state); };
  source.still_mapped = [mount](const std::vector<RelPath>& files) { mount->mark_changed(files); };
  source.hold = [mount, held]() -> std::shared_ptr<void> {
    std::shared_ptr<fusefs::SessionMount::Hold> hold = mount->hold();
    *held = hold;
    return hold;
  };
  return source;
}

}  // namespace

Result<std::shared_ptr<snapshots::Store>> Sessions::store_of(Session& session) {
  if (auto store = session.store()) return store;
  reopen_store(session);
  if (auto store = session.store()) return store;
  return fail(Code::kSnapshotsDisabled, session.store_error());
}

Result<snapshots::Store::ChangeSource> Sessions::changes_of(const Session& session) const {
  auto mount = session.need_mount();
  if (!mount) return fail(mount.error());
  return changes_through(*mount);
}

Result<Sessions::Taken> Sessions::take_snapshot(Session& session, const std::string& label,
                                                const snapshots::Progress& progress) {
  auto store = store_of(session);
  if (!store) return fail(store.error());
  auto mount = session.need_mount();
  if (!mount) return fail(mount.error());
  const Stopwatch watch;
  auto taken = (*store)->take(label, changes_through(*mount), progress);
  const bool is_new = taken && !taken->unchanged;
  work_.snapshot(watch.time(), taken, is_new);
  if (!taken) return fail(taken.error());
  if (is_new)
    events_.publish("snapshot", session.id().text(), session.owner(),
                    {EventHub::text("snapshot", taken->id.text()),
                     EventHub::text("label", truncated_utf8(taken->label, kMostOfLabel)),
                     EventHub::number("milliseconds", watch.milliseconds())});
  return Taken{std::move(*taken), is_new};
}

Result<snapshots::RestoreResult> Sessions::restore(Session& session,
                                                   const std::optional<std::string>& snapshot,
                                                   const std::vector<RelPath>& paths, const Caller& caller,
                                                   bool dry_run, const snapshots::Progress& progress) {
  auto store = store_of(session);
  if (!store) return fail(store.error());
  auto mounted = session.need_mount();
  if (!mounted) return fail(mounted.error());
  const auto mount = *mounted;
  const Stopwatch watch;

  const auto held = std::make_shared<std::weak_ptr<fusefs::SessionMount::Hold>>();
  snapshots::Store::RestoreHooks hooks;
  hooks.caller = caller;
  hooks.changes = changes_through(mount, held);
  hooks.hold = std::exchange(hooks.changes.hold, {});
  hooks.will_replace = [held](const std::vector<RelPath>& names) {
    if (const auto hold = held->lock()) hold->will_replace(names);
  };
  hooks.invalidate = [held](const std::vector<RelPath>& changed) {
    if (const auto hold = held->lock()) hold->invalidate(changed);
  };

  auto restored = snapshot ? (*store)->restore(*snapshot, paths, dry_run, hooks, progress)
                           : (*store)->undo(hooks, progress);
  if (!dry_run) work_.restored(watch.time(), restored);
  if (!restored) return restored;
  if (!dry_run) {
    if (snapshot && paths.empty()) forget_affected(session.id(), Affected::Until::kRestored);
    events_.publish("restore", session.id().text(), session.owner(),
                    {EventHub::text("snapshot", restored->target.text()),
                     EventHub::text("before", restored->before ? restored->before->id.text() : ""),
                     EventHub::number("changes", static_cast<std::int64_t>(restored->applied.size())),
                     EventHub::number("milliseconds", watch.milliseconds())});
  }
  return restored;
}

Result<SessionPointer> Sessions::fork(const Peer& peer, Session& source, const std::string& snapshot,
                                      const std::optional<std::string>& wanted_id,
                                      std::optional<std::map<std::string, std::string>> labels,
                                      const snapshots::Progress& progress) {
  if (!peer.may_use(source.owner())) return no_such_session();
  auto store = store_of(source);
  if (!store) return fail(store.error());
  auto id = choose_id(wanted_id, std::nullopt);
  if (!id) return fail(id.error());

  const auto original = source.record();
  SessionRecord record(*id);
  record.owner_uid = original.owner_uid;
  record.owner_gid = original.owner_gid;
  record.root_mode = original.root_mode;
  record.created_at = time_now();
  record.last_used = to_milliseconds(record.created_at);
  record.state = SessionPhase::kMaking;
  record.labels = original.labels;
  if (labels) record.labels = std::move(*labels);
  record.skills = original.skills;
  auto entry = make_entry(record);
  if (!entry) return fail(entry.error());
  auto& session = *entry->session;

  const snapshots::Progress until_deleted = [&](std::string_view phase, std::uint64_t done,
                                                std::uint64_t total) {
    return !session.gate().is_ending() && (!progress || progress(phase, done, total));
  };
  bool is_inserted = false;
  const auto forked = [&]() -> Result<snapshots::Snapshot> {
    auto from = snapshot;
    if (from.empty()) {
      auto taken = take_snapshot(source, {}, until_deleted);
      if (!taken) return fail(taken.error());
      from = taken->snapshot.id.text();
    }
    if (auto inserted = registry_->insert(record); !inserted) return fail(inserted.error());
    is_inserted = true;
    auto copied = (*store)->fork(from, store_config(record), until_deleted);
    if (!copied) return copied;
    if (auto attached = attach(session); !attached) return fail(attached.error());
    // What was left out of the snapshot is not there.
    if (const auto mount = session.mount()) {
      mount->mark_changed(copied->left_out);
      mount->changes_count_from(copied->id.text());
    }
    record.state = SessionPhase::kMounted;
    record.forked_from = ForkedFrom{source.id().text(), copied->id.text()};
    if (auto saved = save(session, record); !saved) return fail(saved.error());
    return copied;
  }();
  if (!forked) {
    static_cast<void>(detach(session, true));
    session.set_store(nullptr, {});
    auto removed = is_inserted ? discard(session) : Result<void>();
    if (is_inserted && removed) removed = registry_->remove(*id);
    end_creation(session, removed);
    return fail(forked.error());
  }
  tell(session, "session", "created");
  return entry->session;
}

}  // namespace okcvm::daemon
