#pragma once

#include <sys/types.h>
#include <time.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "policy/error.h"
#include "policy/session_id.h"
#include "policy/thread_annotations.h"
#include "policy/workdir_rule.h"

namespace okcvm::daemon {

/// How far a session's making or unmaking has come. A daemon start mounts kMounted and removes what is left
/// of the last two.
enum class SessionPhase : std::uint8_t { kMounted, kUnmounted, kMaking, kDeleting };

struct WorkdirFallback {
  std::string requested;
  std::string reason;
};

/// What a session was made of: ids, of what may be gone by now.
struct ForkedFrom {
  std::string session;
  std::string snapshot;
};

/// What the registry knows of a session.
struct SessionRecord {
  explicit SessionRecord(SessionId session_id) : id(std::move(session_id)) {}

  SessionId id;
  uid_t owner_uid = 0;
  gid_t owner_gid = 0;
  mode_t root_mode = 0700;
  timespec created_at{};
  std::int64_t last_used = 0;  // milliseconds since 1970
  SessionPhase state = SessionPhase::kMounted;
  std::map<std::string, std::string> labels;
  std::vector<std::string> skills;
  std::optional<std::string> agent;    // the child of root that it was made for
  std::optional<std::string> workdir;  // real path on the host
  WorkdirPolicy workdir_policy = WorkdirPolicy::kManaged;
  std::optional<WorkdirFallback> workdir_fallback;
  std::optional<std::string> task;
  std::optional<std::string> device_id;
  std::optional<std::string> git_url;
  std::optional<std::string> branch;
  std::optional<std::string> head_checkpoint;
  std::optional<ForkedFrom> forked_from;
};

struct AgentRecord {
  std::string agent;
  std::string parent;  // "root" for those with a session of their own
  uid_t owner_uid = 0;
  SessionId session;
};

/// A directory that a task used on a device, or that holds a branch of a repository [S4].
struct WorkdirBinding {
  uid_t owner_uid = 0;
  std::string task;
  std::optional<std::string> device_id;
  std::string path;
  WorkdirPolicy policy = WorkdirPolicy::kExisting;
  std::optional<std::string> git_url;
  std::optional<std::string> branch;
  std::int64_t last_used = 0;  // milliseconds since 1970
};

struct Checkpoint {
  std::string id;
  std::optional<std::string> parent;
  std::optional<std::string> snapshot;
  timespec created_at{};
  std::size_t bytes = 0;
  std::string data;  // JSON; empty in lists
};

class Database;

/// Everything that must be known after a restart: <state-dir>/sessions.db. Thread-safe; every change is
/// durable when its call returns, except where said. Errors: `no_space`, `corrupt`, `internal`, and those
/// named.
class Registry final {
 public:
  /// With `check` the whole file is read first. `corrupt`: damaged or newer; it is then untouched.
  static Result<std::unique_ptr<Registry>> open(const std::filesystem::path& file, bool check);
  ~Registry();

  /// With the agent that it is made for, both or neither. `already_exists` if the id or the agent's name is
  /// taken.
  Result<void> insert(const SessionRecord& record, const std::optional<AgentRecord>& agent = std::nullopt);
  Result<void> update(const SessionRecord& record);
  /// The session with its checkpoints and agents. Removing what is not there is no error.
  Result<void> remove(const SessionId& id);
  /// The same for a session whose row says kDeleting. Durable with the next change: without one, a host that
  /// stops uncleanly finds that row again and finishes the deletion at the next start.
  Result<void> remove_deleted(const SessionId& id);
  /// Last-used times; these may be lost when the host stops uncleanly.
  using Uses = std::vector<std::pair<SessionId, std::int64_t>>;
  Result<void> touch(const Uses& used);
  struct Unreadable {
    std::optional<SessionId> id;
    std::string reason;
  };
  struct Loaded {
    std::vector<SessionRecord> sessions;
    std::vector<Unreadable> unreadable;  // rows that were left out; they stay in the file
  };
  Result<Loaded> load();

  /// `already_exists` if the id is taken, `quota_exceeded` beyond `most` of one session.
  Result<void> add_checkpoint(const SessionId& session, const Checkpoint& checkpoint, std::size_t most);
  /// Whether add_checkpoint() would refuse that now.
  Result<void> can_add_checkpoint(const SessionId& session, const std::string& id, std::size_t most);
  /// Newest first, without their data.
  Result<std::vector<Checkpoint>> checkpoints(const SessionId& session, std::size_t limit);
  /// `not_found`.
  Result<Checkpoint> checkpoint(const SessionId& session, const std::string& id);
  Result<std::int64_t> remove_checkpoints(const SessionId& session);

  static constexpr std::size_t kMostAgents = 1000;  // of one session
  /// `already_exists` if the owner has an agent of this name, `quota_exceeded` beyond kMostAgents.
  Result<void> add_agent(const AgentRecord& agent);
  struct Agents {
    std::vector<AgentRecord> list;
    bool truncated = false;  // there are more
  };
  /// An owner's, or everybody's, by session and then oldest first: those of the session `from` and of as many
  /// whole sessions behind it as have `enough`.
  Result<Agents> agents(std::optional<uid_t> owner, const std::string& from, std::size_t enough);
  Result<std::optional<AgentRecord>> agent(uid_t owner, const std::string& name);
  /// Up to two of that name, whoever's they are.
  Result<std::vector<AgentRecord>> agents_named(const std::string& name);
  /// Oldest first.
  Result<std::vector<std::string>> children_of(const AgentRecord& agent);

  static constexpr std::size_t kMostWorkdirs = 1000;  // of one user; the oldest are forgotten
  /// Durable with the next change.
  Result<void> remember_workdir(const WorkdirBinding& binding);
  Result<std::optional<WorkdirBinding>> workdir_of_task(uid_t owner, const std::string& task,
                                                        const std::string& device);
  Result<std::optional<WorkdirBinding>> workdir_of_branch(uid_t owner, const std::string& git_url,
                                                          const std::string& branch,
                                                          const std::optional<std::string>& device);
  /// Most recently used first, each directory once.
  Result<std::vector<WorkdirBinding>> recent_workdirs(uid_t owner, std::size_t limit);

 private:
  explicit Registry(std::unique_ptr<Database> database);
  Result<void> write_uses(const Uses& used) REQUIRES(mutex_);
  Result<std::string> metadata_to_keep(const SessionRecord& record) REQUIRES(mutex_);
  Result<void> remove_rows(const SessionId& id) REQUIRES(mutex_);
  Result<void> write_binding(const WorkdirBinding& binding) REQUIRES(mutex_);
  Result<void> can_add_locked(const SessionId& session, const std::string& id, std::size_t most)
      REQUIRES(mutex_);
  Result<void> insert_agent(const AgentRecord& agent) REQUIRES(mutex_);
  Mutex mutex_;
  std::unique_ptr<Database> database_ GUARDED_BY(mutex_);
};

}  // namespace okcvm::daemon
