#pragma once

#include <chrono>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "policy/error.h"
#include "policy/thread_annotations.h"
#include "snapshots/store.h"
#include "tools/daemon/sessions/backends.h"
#include "tools/daemon/sessions/event_hub.h"
#include "tools/daemon/sessions/mount_totals.h"
#include "tools/daemon/sessions/peer.h"
#include "tools/daemon/sessions/registry.h"
#include "tools/daemon/sessions/session.h"
#include "tools/daemon/sessions/skill_registry.h"
#include "tools/daemon/sessions/work_metrics.h"
#include "tools/daemon/sessions/workdirs.h"

namespace okcvm::daemon {

struct SessionsConfig {
  std::filesystem::path state_dir;
  std::filesystem::path run_dir;
  std::filesystem::path mount_root;
  std::vector<std::filesystem::path> skills_dirs;
  std::vector<std::string> symlink_host_roots;
  std::vector<std::string> workdir_allow_roots;
  bool snapshots = true;
  bool passthrough = true;
  std::size_t max_sessions = 4096;
  std::size_t max_checkpoints = 10000;
};

/// What a session is to be bound to [S4]; absent fields are looked up or left out.
struct WorkdirRequest {
  std::optional<std::string> path;
  std::optional<WorkdirPolicy> policy;
  std::optional<std::string> device_id;
  std::optional<std::string> task;
  std::optional<std::string> git_url;
  std::optional<std::string> branch;
};

struct CreateRequest {
  std::optional<std::string> id;
  std::optional<uid_t> owner_uid;
  std::optional<gid_t> owner_gid;
  mode_t mode = 0700;
  std::map<std::string, std::string> labels;
  std::vector<std::string> skills;
  std::optional<std::string> agent;
  std::optional<std::string> parent_agent;
  WorkdirRequest workdir;
};

/// Where deleted files wait, beside them, when they are on another file system than "discarded/"; no session
/// has this id.
inline constexpr const char* kOwnBin = ".discarded";

/// Every session of the daemon, and all that can be done with one. Thread-safe. Locks: a session's gate, then
/// that of the totals, then the session's mutex, then the map's or the registry's; only the gate is held over
/// work. A peer sees its own sessions; for others every call answers as if they were not there.
class Sessions final {
 public:
  Sessions(SessionsConfig config, Backends backends, std::unique_ptr<Registry> registry, EventHub& events);
  ~Sessions();

  // -- The daemon's own life
  /// Brings back what was there: takes over the mounts whose devices were kept, mounts the others, finishes
  /// what was being made or deleted. Problems of single sessions end in affected().
  Result<void> start(std::map<std::string, FileDescriptor> kept_devices);
  /// Unmounts everything, or leaves the mounts to the next daemon. Sessions that are mounted are so again
  /// after a start. False: a request that was begun holds one up, and needs what this object has.
  bool stop(bool leave_mounts);
  /// Saves when sessions were used since the last call. Those that were not give back what they keep in
  /// memory.
  void save_uses();
  /// Tries again what could not be opened, or mounted when the daemon started.
  void try_again();
  /// SessionMount::forget_unknown() of all.
  void forget_unknown();
  /// As after the clock was set, when nobody knows how long they were not.
  void count_all_as_used();

  struct Affected {
    /// Anew, or as far as that one goes; kShown: the mount has its skills, or ends; kCleared: somebody
    /// removed the files, or made a session of them.
    enum class Until : std::uint8_t { kMounted, kRestored, kShown, kDeleted, kCleared };
    SessionId id;
    uid_t owner;
    std::string reason;
    timespec at;
    Until until = Until::kMounted;
  };
  std::vector<Affected> affected() const EXCLUDES(mutex_);

  // -- Sessions
  struct Created {
    SessionPointer session;
    bool is_new;
  };
  /// What the request names is made, or found and mounted where its agent has a session. `forbidden` (an
  /// owner or group of others), `invalid_request`, `already_exists` (the id, the agent, or files under the
  /// id), `not_found` (a skill, the parent agent), `quota_exceeded` (--max-sessions, agents), `busy` (it is
  /// being made).
  Result<Created> create(const Peer& peer, CreateRequest request);
  /// By exact id, else by a unique prefix. `not_found`, `ambiguous_prefix`.
  Result<SessionPointer> find(const Peer& peer, std::string_view id_or_prefix) const EXCLUDES(mutex_);
  /// Last used first.
  std::vector<SessionPointer> list(const Peer& peer, std::string_view prefix) const EXCLUDES(mutex_);
  /// By id, those that come after this one: an order that no use changes.
  std::vector<SessionPointer> list_after(const Peer& peer, std::string_view prefix,
                                         std::string_view after) const EXCLUDES(mutex_);
  /// False if there was none. By exact id only.
  Result<bool> remove(const Peer& peer, std::string_view id);
  Result<void> mount(Session& session);
  /// `busy` when files are open in it, unless `force`.
  Result<void> unmount(Session& session, bool force);
  /// Empties temp/ and drops the checkpoints; answers how many those were.
  Result<std::int64_t> reset(Session& session, const fusefs::GoesOn& goes_on);
  using Labels = std::map<std::string, std::string>;
  /// `change` answers the new labels for those that there are; it is called alone.
  Result<void> change_labels(Session& session, const std::function<Result<Labels>(Labels)>& change);

  struct Cleaned {
    std::vector<std::string> removed;
    std::vector<std::pair<std::string, std::string>> skipped;  // id and reason
  };
  /// Removes the peer's sessions (root's: everybody's) that were not used for so long and have no open files.
  /// One after the other; the rest stays where `progress` answers false.
  Cleaned clean(const Peer& peer, std::chrono::seconds older_than, bool dry_run,
                const snapshots::Progress& progress);

  std::filesystem::path mount_point_of(const SessionId& id) const;
  /// Of an unmounted session too.
  Result<fusefs::WorkspaceInfo> info(const Session& session, const fusefs::GoesOn& goes_on) const;

  // -- Skills and workdirs
  const SkillRegistry& skills() const { return skills_; }
  /// False if it was loaded already.
  Result<bool> load_skill(Session& session, const std::string& name);
  Result<void> unload_skill(Session& session, const std::string& name);
  /// Has all mounts show what stands in the registry under the names of their skills by now. Sessions that
  /// are in use by other calls are left for the next time.
  void renew_skills();
  /// Binds another workdir and mounts anew; what cannot be bound falls back to none and the record says why.
  Result<void> switch_workdir(Session& session, const WorkdirRequest& request, bool force);

  // -- Agents
  struct AgentView {
    AgentRecord agent;
    std::size_t depth = 1;
  };
  struct AgentPage {
    std::vector<AgentView> agents;
    bool truncated = false;  // there are more
  };
  /// By session and in the order of its tree, each agent before its children: those that come after the agent
  /// `after` of the session `from`.
  Result<AgentPage> agents(const Peer& peer, const std::string& from, const std::string& after,
                           std::size_t limit);
  struct AgentFound {
    AgentRecord agent;
    std::vector<std::string> children;
    SessionPointer session;
  };
  /// `not_found`; `ambiguous_prefix` where several users have one of that name and no `owner` is given.
  Result<AgentFound> agent(const Peer& peer, const std::string& name, std::optional<uid_t> owner);

  // -- Snapshots
  /// `snapshots_disabled` with the reason. What could not be opened before is tried again.
  Result<std::shared_ptr<snapshots::Store>> store_of(Session& session);
  /// Where a store learns what changed. Of an unmounted session: `busy`.
  Result<snapshots::Store::ChangeSource> changes_of(const Session& session) const;
  struct Taken {
    snapshots::Snapshot snapshot;
    bool is_new;
  };
  /// `snapshots_disabled`; `busy` of an unmounted session.
  Result<Taken> take_snapshot(Session& session, const std::string& label,
                              const snapshots::Progress& progress);
  /// An empty snapshot means undo. `snapshots_disabled`; `busy` of an unmounted session.
  Result<snapshots::RestoreResult> restore(Session& session, const std::optional<std::string>& snapshot,
                                           const std::vector<RelPath>& paths, const Caller& caller,
                                           bool dry_run, const snapshots::Progress& progress);
  /// An empty snapshot means what is there now, of which one is taken first: `busy` of an unmounted session.
  Result<SessionPointer> fork(const Peer& peer, Session& source, const std::string& snapshot,
                              const std::optional<std::string>& id,
                              std::optional<std::map<std::string, std::string>> labels,
                              const snapshots::Progress& progress);

  // -- Checkpoints
  /// Without a parent, the head becomes it. `not_found` if there is no such parent.
  Result<void> add_checkpoint(Session& session, Checkpoint& checkpoint);
  /// What would keep add_checkpoint() from adding it now.
  Result<void> can_add_checkpoint(const Session& session, const Checkpoint& checkpoint);
  /// `not_found`.
  Result<void> set_head(Session& session, const std::string& checkpoint);

  // -- What an operator watches
  std::size_t count() const EXCLUDES(mutex_);
  /// What all mounts did since this daemon started, those that ended meanwhile included: counters only grow.
  MountTotals mount_totals() const EXCLUDES(mutex_, totals_mutex_);
  WorkMetrics& work() { return work_; }

  Registry& registry() { return *registry_; }
  EventHub& events() { return events_; }
  const SessionsConfig& config() const { return config_; }

 private:
  // sessions.cpp
  struct Entry {
    SessionPointer session;
    SessionGate::Pass pass;  // alone, since before anybody could find it
  };
  Result<Entry> make_entry(SessionRecord record) EXCLUDES(mutex_);
  /// Does `last` before there can be another session of this id.
  void drop_entry(const SessionId& id, const std::function<void()>& last = nullptr) EXCLUDES(mutex_);
  /// After a creation that failed. If what was made of the session could not be removed, it stays in view, to
  /// be deleted.
  void end_creation(Session& session, const Result<void>& removed) EXCLUDES(mutex_);
  void note_gone(const Session& session) EXCLUDES(mutex_);
  SessionPointer exact(const Peer& peer, std::string_view id) const EXCLUDES(mutex_);
  std::vector<SessionPointer> all() const EXCLUDES(mutex_);
  bool is_known(const SessionId& id) const EXCLUDES(mutex_);
  bool has_files(const SessionId& id) const;
  Result<SessionId> choose_id(const std::optional<std::string>& wanted,
                              const std::optional<std::string>& agent) const EXCLUDES(mutex_);
  Result<Created> create_or_find(const Peer& peer, CreateRequest request);
  Result<Created> create_new(CreateRequest request, uid_t uid, gid_t gid);
  Result<Created> create_for_agent(const CreateRequest& request, uid_t uid, gid_t gid);
  void wait_for_rivals(const CreateRequest& request, uid_t owner) const;
  Result<std::optional<SessionPointer>> existing_agent(const CreateRequest& request, uid_t owner);
  Result<void> save(Session& session, SessionRecord record);
  Result<bool> remove_found(Session& session);
  Result<bool> remove_unreadable(const Peer& peer, std::string_view id);
  /// False if it was used after `limit`, or is gone. An error if it is in use, or cannot be removed.
  Result<bool> remove_unused(Session& session, std::int64_t limit);
  void tell(const Session& session, std::string_view type, std::string_view action) const;

  // sessions_mount.cpp: these need the gate alone
  Result<fusefs::MountConfig> mount_config(const Session& session, bool is_taken_over,
                                           std::optional<WorkdirFallback>& unbound);
  Result<void> attach(Session& session, FileDescriptor kept_device = {});
  void attach_again(Session& session);
  Result<void> detach(Session& session, bool force);
  Result<void> detach_for_good(Session& session);
  /// In the registry: what the next daemon is to make of it.
  static Result<void> check_is_whole(const Session& session);
  Result<void> note_phase(Session& session, SessionPhase phase);
  void begin_mount(Session& session, std::shared_ptr<fusefs::SessionMount> mount, bool was_taken_over,
                   std::optional<WorkdirFallback> unbound) EXCLUDES(totals_mutex_);
  void end_mount(Session& session, const fusefs::SessionMount& mount) EXCLUDES(mutex_, totals_mutex_);
  void open_store(Session& session);
  void reopen_store(Session& session);
  Result<bool> note_deletion(Session& session);
  Result<bool> remove_noted(Session& session, bool is_noted);
  Result<void> put_away(const Session& session, std::vector<std::filesystem::path>& left);
  Result<void> discard(const Session& session);
  Result<void> knows_parent(const Session& session, const Checkpoint& checkpoint);

  // sessions_skills.cpp
  Result<void> show_skill(Session& session, const Name& name, Result<FileDescriptor> directory);
  void note_missing_skills(const Session& session) EXCLUDES(mutex_);

  // sessions_start.cpp
  void end_kept(const SessionId& id);
  void let_go(const SessionId& id, bool was_kept);
  using Deadline = std::chrono::steady_clock::time_point;
  Result<void> take_over(Session& session, const FileDescriptor& device, Deadline last_try);
  void bring_back(Session& session, FileDescriptor kept_device, bool was_lost, Deadline last_try);
  void end_unmounting(Session& session);
  void note_unbound(const Session& session) EXCLUDES(mutex_);
  std::vector<std::filesystem::path> folders_put_away() const;
  void finish_deletion(const Session& session, bool was_kept, std::vector<std::filesystem::path>& left);
  void tell_of_unknown(std::map<std::string, FileDescriptor>&& devices,
                       const std::set<std::string, std::less<>>& known);
  void note_affected(const Session& session, std::string reason,
                     Affected::Until until = Affected::Until::kMounted) EXCLUDES(mutex_);
  /// What was wrong until now is mended.
  void forget_affected(const SessionId& id, Affected::Until until) EXCLUDES(mutex_);
  void note_unreadable(const Registry::Unreadable& row) EXCLUDES(mutex_);
  /// Of what there is of a session without a row.
  void note_unknown(const SessionId& id, std::string_view what, Affected::Until until) EXCLUDES(mutex_);
  void forget_cleared() EXCLUDES(mutex_);

  // sessions_workdir.cpp
  /// Fills the record's workdir fields; refusals become its fallback. Answers what is to be remembered once
  /// the session works in it.
  std::optional<WorkdirBinding> bind_workdir(SessionRecord& record, const WorkdirRequest& request);
  void remember_workdir(const Session& session, const std::optional<WorkdirBinding>& binding);
  Result<Workdirs::Opened> find_workdir(const SessionRecord& record, const WorkdirRequest& request);

  snapshots::StoreConfig store_config(const SessionRecord& record) const;
  /// The newest snapshot of a session whose workspace is gone.
  std::optional<snapshots::Snapshot> lost_workspace(const Session& session) const;

  const SessionsConfig config_;
  const Backends backends_;
  const std::unique_ptr<Registry> registry_;
  EventHub& events_;
  const SkillRegistry skills_;
  const Workdirs workdirs_;
  WorkMetrics work_;

  mutable Mutex totals_mutex_;  // before a session's
  MountTotals ended_ GUARDED_BY(totals_mutex_);

  mutable Mutex mutex_;
  std::map<std::string, SessionPointer, std::less<>> sessions_ GUARDED_BY(mutex_);
  /// Ids of this daemon's life that are free again, and whose they were: what comes late for one must not
  /// reach a session that begins with it.
  std::map<std::string, uid_t, std::less<>> gone_ GUARDED_BY(mutex_);
  std::deque<std::string> gone_first_ GUARDED_BY(mutex_);  // in the order in which they went
  std::vector<Affected> affected_ GUARDED_BY(mutex_);
  std::set<std::string, std::less<>> unreadable_ GUARDED_BY(mutex_);  // ids of damaged rows
};

}  // namespace okcvm::daemon
