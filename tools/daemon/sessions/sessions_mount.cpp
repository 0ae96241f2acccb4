#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <filesystem>
#include <string>

#include "fusefs/session_mount.h"
#include "policy/fault.h"
#include "policy/trees.h"
#include "tools/daemon/host/clock.h"
#include "tools/daemon/host/log.h"
#include "tools/daemon/sessions/session_metadata.h"
#include "tools/daemon/sessions/sessions.h"

namespace okcvm::daemon {
namespace {

/// What `info` says of a session that is not mounted, so that nothing can change meanwhile.
Result<fusefs::WorkspaceInfo> count_tree(const std::filesystem::path& workspace,
                                         const fusefs::GoesOn& goes_on) {
  fusefs::WorkspaceInfo info;
  struct stat status {};
  if (::lstat(workspace.c_str(), &status) != 0) return info;
  info.materialized = true;
  for (const auto& rule : kZoneRules) {
    if (!rule.snapshotted) continue;
    const auto place = workspace / rule.name;
    FileDescriptor zone(::open(place.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    auto opened = zone ? Result<FileDescriptor>(std::move(zone)) : fail_errno(errno);
    if (auto counted = info.count_zone(rule.zone, std::move(opened), goes_on); !counted)
      return fail(counted.error());
  }
  return info;
}

}  // namespace

snapshots::StoreConfig Sessions::store_config(const SessionRecord& record) const {
  return {config_.state_dir / "snapshots" / (record.id.text() + ".git"),
          config_.state_dir / "workspaces" / record.id.text(), record.owner_uid, record.owner_gid,
          record.created_at};
}

/// A workdir that cannot be bound now stays in the record: the next mount tries it again.
Result<fusefs::MountConfig> Sessions::mount_config(const Session& session, bool is_taken_over,
                                                   std::optional<WorkdirFallback>& unbound) {
  const auto record = session.record();
  fusefs::MountConfig config{
      .id = record.id,
      .mount_point = mount_point_of(record.id),
      .workspace = config_.state_dir / "workspaces" / record.id.text(),
      .runtime_dir = config_.run_dir / "sessions",
      .owner_uid = record.owner_uid,
      .owner_gid = record.owner_gid,
      .root_mode = record.root_mode,
      .created_at = record.created_at,
      .passthrough = config_.passthrough ? fusefs::Passthrough::kAuto : fusefs::Passthrough::kOff,
      .record_changes = config_.snapshots,
      .is_as_snapshotted = record.state == SessionPhase::kMaking,
      .symlink_host_roots = config_.symlink_host_roots,
      .skills = {},
      .workdir = {},
      .expects_workdir = record.workdir.has_value(),
      .metadata = metadata_file_of(record),
      .on_denial = {}};
  for (const auto& skill : record.skills) {
    const auto name = Name::parse(skill);
    // A skill that left the registry must not keep its sessions from being mounted.
    if (auto directory = name ? skills_.open(*name) : fail(name.error()))
      config.skills.push_back({*name, std::move(*directory)});
    else
      log_warning("session {}: it is mounted without the skill {}: {}", record.id.text(), skill,
                  directory.error().message);
  }
  if (record.workdir) {
    auto opened = workdirs_.reopen(*record.workdir, record.owner_uid, record.owner_gid);
    // What programs have of the former one must not be looked for in another.
    if (opened && is_taken_over &&
        !fusefs::may_be_workdir(config.runtime_dir, record.id, opened->directory.get()))
      opened = fail(Code::kNotFound, "another directory is at its path now");
    if (opened) {
      config.workdir = std::move(opened->directory);
    } else {
      log_warning("session {}: its workdir cannot be bound: {}", record.id.text(), opened.error().message);
      unbound = WorkdirFallback{*record.workdir, opened.error().message};
    }
  }
  config.on_denial = [this, id = record.id.text(), owner = record.owner_uid](
                         std::string_view operation, const RelPath& path, int errno_value) {
    if (!events_.has_listeners()) return;
    const char* name = ::strerrorname_np(errno_value);
    events_.publish("denial", id, owner,
                    {EventHub::text("operation", operation), EventHub::text("path", path.text()),
                     EventHub::text("errno", name ? name : "EIO")});
  };
  return config;
}

/// What a crash interrupted in the workspace is settled here, so this comes before anything is served.
void Sessions::open_store(Session& session) {
  if (!config_.snapshots) return session.set_store(nullptr, "the daemon runs with --snapshots off");
  if (session.store()) return;
  auto store = backends_.open_store(store_config(session.record()));
  if (store) return session.set_store(std::move(*store), {});
  auto why = "the session's snapshots cannot be opened (each call tries again): " + store.error().message;
  if (why != session.store_error()) log_error("session {}: {}", session.id().text(), why);
  session.set_store(nullptr, std::move(why));
}

/// What failed before. In a mounted session a restore would be settled under the programs in it: attach()
/// sees to it that none is, unless somebody puts the repository of another time back.
void Sessions::reopen_store(Session& session) {
  if (!config_.snapshots || session.store()) return;
  const MutexLock one_at_a_time(session.opening_store());
  if (session.store()) return;
  if (session.mount() && snapshots::is_half_restored(store_config(session.record())))
    return session.set_store(nullptr,
                             "a restore was broken off in the session's repository: `okcvm unmount` and "
                             "`okcvm load` settle it");
  open_store(session);
  if (session.store()) log_info("session {}: its snapshots can be opened again", session.id().text());
}

/// The record of changes rests beside it, and knows nothing of that.
std::optional<snapshots::Snapshot> Sessions::lost_workspace(const Session& session) const {
  const auto store = session.store();
  const auto config = store_config(session.record());
  std::error_code ignored;
  if (!store || !std::filesystem::exists(config.repository, ignored) ||
      std::filesystem::exists(config.workspace, ignored))
    return std::nullopt;
  auto newest = store->list(1);
  if (!newest || newest->empty()) return std::nullopt;
  return std::move(newest->front());
}

/// An exception, as for lack of memory, is an error like any other: a mount that is kept must not stay
/// unserved.
Result<void> Sessions::attach(Session& session, FileDescriptor kept_device) try {
  open_store(session);
  // What is written now would be lost when the restore is settled.
  if (!session.store() && snapshots::is_half_restored(store_config(session.record())))
    return fail(Code::kBusy,
                "a restore of it was broken off and has to be settled first: " + session.store_error());
  const bool is_taken_over = static_cast<bool>(kept_device);
  std::optional<WorkdirFallback> unbound;
  auto config = mount_config(session, is_taken_over, unbound);
  if (!config) return fail(config.error());
  auto mount = is_taken_over ? backends_.take_over(std::move(*config), std::move(kept_device))
                             : backends_.mount(std::move(*config));
  if (!mount) return fail(mount.error());
  for (const auto until : {Affected::Until::kMounted, Affected::Until::kRestored})
    forget_affected(session.id(), until);
  if (const auto store = session.store(); store && !store->recovered().empty()) {
    const auto recovered = store->recovered();
    (*mount)->mark_changed(recovered);
    (*mount)->hold()->invalidate(recovered);
  }
  const auto lost = is_taken_over ? std::nullopt : lost_workspace(session);
  if (lost) {
    if (lost->stats.files > 0)
      note_affected(session,
                    "its files are not in the state directory any more: put them back, or restore " +
                        lost->id.text() + ", its newest snapshot",
                    Affected::Until::kRestored);
    std::vector<RelPath> zones;
    for (const auto& rule : kZoneRules)
      if (rule.snapshotted) zones.push_back(*RelPath::parse(rule.name));
    (*mount)->mark_changed(zones);
  }
  fault_point("session.mounted");
  if (backends_.keep_device) backends_.keep_device(session.id(), (*mount)->device());
  fault_point("session.kept");
  begin_mount(session, std::move(*mount), is_taken_over, std::move(unbound));
  note_unbound(session);
  note_missing_skills(session);
  return {};
} catch (const std::exception& error) {
  return fail(Code::kInternal, std::string("it cannot be mounted: ") + error.what());
}

/// After a call that is refused, which leaves everything as it was.
void Sessions::attach_again(Session& session) {
  if (auto attached = attach(session); !attached)
    log_error("session {}: it could not be mounted again: {}", session.id().text(), attached.error().message);
}

void Sessions::begin_mount(Session& session, std::shared_ptr<fusefs::SessionMount> mount, bool was_taken_over,
                           std::optional<WorkdirFallback> unbound) {
  const MutexLock lock(totals_mutex_);
  if (was_taken_over) ended_.take_off_counters(mount->statistics());
  session.set_mount(std::move(mount), std::move(unbound));
}

/// The mount leaves the sum of those there are in the moment in which it joins those that ended.
void Sessions::end_mount(Session& session, const fusefs::SessionMount& mount) {
  const MutexLock lock(totals_mutex_);
  ended_.add_counters(mount.statistics());
  session.set_mount(nullptr);
  forget_affected(session.id(), Affected::Until::kShown);
}

MountTotals Sessions::mount_totals() const {
  std::vector<std::shared_ptr<fusefs::SessionMount>> mounts;  // the last to hold one ends it: after the lock
  const auto sessions = all();
  const MutexLock lock(totals_mutex_);
  for (const auto& session : sessions)
    if (auto mount = session->mount_object()) mounts.push_back(std::move(mount));
  auto totals = ended_;
  for (const auto& mount : mounts) {
    if (mount->is_mounted())
      totals.add_mount(mount->statistics());
    else
      totals.add_counters(mount->statistics());
  }
  return totals;
}

Result<void> Sessions::detach(Session& session, bool force) {
  const auto mount = session.mount_object();
  if (!mount) return {};
  // Also one that was taken away from outside ends now: an upload that goes on may keep the object for long.
  if (auto unmounted = mount->unmount(force || !mount->is_mounted()); !unmounted) return unmounted;
  fault_point("session.unmounted");
  if (backends_.forget_device) backends_.forget_device(session.id());
  fault_point("session.forgotten");
  end_mount(session, *mount);
  return {};
}

/// Where its record of changes finds no room it is unmounted all the same, which the second call finds.
Result<void> Sessions::detach_for_good(Session& session) {
  auto detached = detach(session, true);
  if (!detached && detached.error().code == Code::kNoSpace) detached = detach(session, true);
  return detached;
}

Result<void> Sessions::note_phase(Session& session, SessionPhase phase) {
  auto record = session.record();
  record.state = phase;
  return save(session, std::move(record));
}

/// A deletion, or a creation, may have failed halfway.
Result<void> Sessions::check_is_whole(const Session& session) {
  if (session.record().state != SessionPhase::kDeleting) return {};
  return fail(Code::kBusy, "the session could not be removed to the end: delete it again");
}

Result<void> Sessions::mount(Session& session) {
  const auto pass = session.gate().alone();
  if (!pass) return fail(pass.error());
  if (auto whole = check_is_whole(session); !whole) return whole;
  const auto live = session.mount();
  const bool is_in_place = live && live->is_in_place();
  const bool is_noted = session.record().state == SessionPhase::kMounted;
  if (is_in_place) reopen_store(session);
  if (is_in_place && is_noted) return {};
  // First, since no call that is refused leaves a mount that the next daemon would take away.
  if (auto noted = note_phase(session, SessionPhase::kMounted); !noted) return noted;
  if (!is_in_place) {
    // Its mount may have been taken away from outside; then the rest of it goes first.
    auto attached = detach(session, true);
    if (attached) attached = attach(session);
    if (!attached && !is_noted)
      if (auto noted = note_phase(session, SessionPhase::kUnmounted); !noted)
        log_error("session {}: the registry has it as mounted: {}", session.id().text(),
                  noted.error().message);
    if (!attached) return attached;
  }
  tell(session, "session", "mounted");
  return {};
}

Result<void> Sessions::unmount(Session& session, bool force) {
  const auto pass = session.gate().alone();
  if (!pass) return fail(pass.error());
  if (auto whole = check_is_whole(session); !whole) return whole;
  const bool is_noted = session.record().state == SessionPhase::kUnmounted;
  // What programs have open does not come back with another mount: by force it goes only once that is noted.
  if (force && !is_noted)
    if (auto noted = note_phase(session, SessionPhase::kUnmounted); !noted) return noted;
  if (auto detached = detach(session, force); !detached) return detached;
  forget_affected(session.id(), Affected::Until::kMounted);
  if (is_noted) return {};
  if (!force)
    if (auto noted = note_phase(session, SessionPhase::kUnmounted); !noted) {
      attach_again(session);
      return noted;
    }
  tell(session, "session", "unmounted");
  return {};
}

Result<std::int64_t> Sessions::reset(Session& session, const fusefs::GoesOn& goes_on) {
  const auto pass = session.gate().alone();
  if (!pass) return fail(pass.error());
  const bool was_mounted = session.mount() != nullptr;
  // temp/ is emptied by the driver, which records it for the next snapshot.
  if (!was_mounted) {
    if (auto detached = detach(session, true); !detached) return fail(detached.error());
    if (auto attached = attach(session); !attached) return fail(attached.error());
  }
  auto emptied = session.mount_object()->files().empty_zone(Zone::kTemp, goes_on);
  if (!was_mounted) {
    if (auto detached = detach(session, true); !detached) return fail(detached.error());
    forget_affected(session.id(), Affected::Until::kMounted);
  }
  if (!emptied) return fail(emptied.error());
  auto removed = registry_->remove_checkpoints(session.id());
  if (!removed) return removed;
  auto record = session.record();
  record.head_checkpoint.reset();
  session.set_record(std::move(record));
  tell(session, "session", "reset");
  return removed;
}

/// Workspace, repository and change record go out of the way in one step each, so that the id is free again,
/// also for whoever comes after a power loss. Adds where they are then.
Result<void> Sessions::put_away(const Session& session, std::vector<std::filesystem::path>& left) {
  const auto places = store_config(session.record());
  const auto bin = config_.state_dir / "discarded";
  const auto now = "." + std::to_string(to_milliseconds(time_now())) + ".";
  if (backends_.forget_mount) backends_.forget_mount(config_.run_dir / "sessions", session.id());
  const auto record = config_.state_dir / "changes" / session.id().text();
  for (const auto& place : {places.workspace, places.repository, record, fusefs::draft_of_record(record),
                            snapshots::draft_of(places.workspace), snapshots::draft_of(places.repository)}) {
    const auto name = place.filename().string() + now + std::to_string(left.size());
    auto away = bin / name;
    int error = ::rename(place.c_str(), away.c_str()) != 0 ? errno : 0;
    if (error == EXDEV) {  // a file system of its own
      const auto own_bin = place.parent_path() / kOwnBin;
      ::mkdir(own_bin.c_str(), 0700);
      away = own_bin / name;
      error = ::rename(place.c_str(), away.c_str()) != 0 ? errno : 0;
    }
    if (error == ENOENT) continue;
    if (error != 0) return fail_errno(error, "a deleted session's files cannot be put away");
    left.push_back(std::move(away));
    const FileDescriptor folder(::open(place.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!folder || ::fsync(folder.get()) != 0)
      return fail_errno(errno, "a deleted session's files cannot be put away for good");
    fault_point("session.discarded");
  }
  return {};
}

Result<void> Sessions::discard(const Session& session) {
  std::vector<std::filesystem::path> left;
  auto put = put_away(session, left);
  for (const auto& folder : left)
    if (auto removed = remove_tree(AT_FDCWD, folder.c_str()); !removed)
      log_warning("{} cannot be removed now and will be at the next start: {}", folder.string(),
                  removed.error().message);
  return put;
}

Result<bool> Sessions::remove(const Peer& peer, std::string_view id) {
  if (auto valid = SessionId::parse(id); !valid) return fail(valid.error());
  const auto session = exact(peer, id);
  if (!session) return remove_unreadable(peer, id);
  const auto started = std::chrono::steady_clock::now();
  auto removed = remove_found(*session);
  if (!removed || *removed)
    work_.deleted(std::chrono::steady_clock::now() - started, removed ? nullptr : &removed.error());
  return removed;
}

/// Of a damaged row nobody knows whose it is.
Result<bool> Sessions::remove_unreadable(const Peer& peer, std::string_view id) {
  const auto valid = SessionId::parse(id);
  {
    const MutexLock lock(mutex_);
    // Taken out at once: once its row is gone, the id may be another session's.
    if (!peer.is_root() || unreadable_.erase(valid->text()) == 0) return false;
  }
  auto removed = discard(Session(SessionRecord(*valid)));
  if (removed) removed = registry_->remove(*valid);
  if (!removed) {
    const MutexLock lock(mutex_);
    unreadable_.insert(valid->text());
    return fail(removed.error());
  }
  forget_affected(*valid, Affected::Until::kDeleted);
  return true;
}

Result<bool> Sessions::remove_found(Session& session) {
  const auto pass = session.gate().alone_for_end();
  if (!pass) {
    if (pass.error().code == Code::kNotFound) return false;
    return fail(pass.error());
  }
  const auto noted = note_deletion(session);
  if (!noted) return fail(noted.error());
  return remove_noted(session, *noted);
}

/// False where there is no room for the note: deleting is what makes room.
Result<bool> Sessions::note_deletion(Session& session) {
  const auto saved = note_phase(session, SessionPhase::kDeleting);
  if (saved) return true;
  if (saved.error().code != Code::kNoSpace) return fail(saved.error());
  log_warning("session {}: it is deleted without a note of that, as the state directory is full",
              session.id().text());
  return false;
}

Result<bool> Sessions::remove_noted(Session& session, bool is_noted) {
  if (auto detached = detach_for_good(session); !detached) return fail(detached.error());
  session.set_store(nullptr, "the session is being deleted");
  if (auto discarded = discard(session); !discarded) return fail(discarded.error());
  // Without a note on disk the rows must not come back.
  if (auto removed = is_noted ? registry_->remove_deleted(session.id()) : registry_->remove(session.id());
      !removed)
    return fail(removed.error());
  note_gone(session);
  drop_entry(session.id(), [&] { tell(session, "session", "deleted"); });
  session.gate().close();  // last: who waits may want the id
  return true;
}

Result<bool> Sessions::remove_unused(Session& session, std::int64_t limit) {
  const auto started = std::chrono::steady_clock::now();
  const auto pass = session.gate().alone();
  if (!pass) {
    if (pass.error().code == Code::kNotFound) return false;
    return fail(pass.error());
  }
  if (session.last_used() > limit) return false;
  const bool was_mounted = session.mount() != nullptr;
  // Unmounting unforced is what settles whether a file was opened just now.
  if (auto detached = detach(session, false); !detached) return fail(detached.error());
  const auto noted = note_deletion(session);
  if (!noted) {
    if (was_mounted) attach_again(session);
    return fail(noted.error());
  }
  auto removed = remove_noted(session, *noted);
  work_.deleted(std::chrono::steady_clock::now() - started, removed ? nullptr : &removed.error());
  return removed;
}

Sessions::Cleaned Sessions::clean(const Peer& peer, std::chrono::seconds older_than, bool dry_run,
                                  const snapshots::Progress& progress) {
  Cleaned cleaned;
  const auto limit = to_milliseconds(time_now()) - std::chrono::milliseconds(older_than).count();
  const auto sessions = list(peer, {});
  std::uint64_t done = 0;
  for (const auto& session : sessions) {
    if (!progress("cleaning", done++, sessions.size())) break;
    if (session->last_used() > limit) continue;
    const auto id = session->id().text();
    if (const auto mount = session->mount(); mount && mount->statistics().open_files > 0) {
      cleaned.skipped.emplace_back(id, "files are open");
      continue;
    }
    const auto removed = dry_run ? Result<bool>(true) : remove_unused(*session, limit);
    if (!removed)
      cleaned.skipped.emplace_back(id, removed.error().message);
    else if (*removed)
      cleaned.removed.push_back(id);
  }
  return cleaned;
}

Result<fusefs::WorkspaceInfo> Sessions::info(const Session& session, const fusefs::GoesOn& goes_on) const {
  if (const auto mount = session.mount()) return mount->files().info(goes_on);
  return count_tree(store_config(session.record()).workspace, goes_on);
}

}  // namespace okcvm::daemon
