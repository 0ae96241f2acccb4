#include "tools/daemon/sessions/database.h"
#include "tools/daemon/sessions/registry.h"

namespace okcvm::daemon {
namespace {

constexpr std::string_view kBindingColumns = "task, device_id, path, policy, git_url, branch, last_used";

/// Columns: agent, parent, owner_uid, thread_id. None where that names no session.
std::optional<AgentRecord> agent_of(const Database::Statement& row) {
  auto session = SessionId::parse(row.text(3));
  if (!session) return std::nullopt;
  return AgentRecord{row.text(0), row.text(1), static_cast<uid_t>(row.integer(2)), *session};
}

WorkdirBinding binding_of(uid_t owner, const Database::Statement& row) {
  WorkdirBinding binding;
  binding.owner_uid = owner;
  binding.task = row.text(0);
  if (auto device = row.text(1); !device.empty()) binding.device_id = std::move(device);
  binding.path = row.text(2);
  binding.policy = workdir_policy_named(row.text(3)).value_or(WorkdirPolicy::kExisting);
  if (!row.is_null(4)) binding.git_url = row.text(4);
  if (!row.is_null(5)) binding.branch = row.text(5);
  binding.last_used = row.integer(6);
  return binding;
}

Result<std::optional<WorkdirBinding>> first_binding(uid_t owner, Database::Statement& statement) {
  auto row = statement.step();
  if (!row) return fail(row.error());
  if (!*row) return std::nullopt;
  return binding_of(owner, statement);
}

}  // namespace

Result<void> Registry::add_agent(const AgentRecord& agent) {
  const MutexLock lock(mutex_);
  auto transaction = Database::Transaction::begin(*database_);
  if (!transaction) return fail(transaction.error());
  if (auto added = insert_agent(agent); !added) return added;
  return transaction->commit();
}

Result<void> Registry::insert_agent(const AgentRecord& agent) {
  auto count = database_->prepare("SELECT count(*) FROM agents WHERE thread_id = ?");
  if (!count) return fail(count.error());
  if (auto row = count->bind(agent.session.text()).step(); !row) return fail(row.error());
  if (static_cast<std::size_t>(count->integer(0)) >= kMostAgents)
    return fail(Code::kQuotaExceeded,
                "the session has " + std::to_string(kMostAgents) +
                    " agents, the most it may: give others a session of their own (parent root)");
  auto statement =
      database_->prepare("INSERT INTO agents (owner_uid, agent, parent, thread_id) VALUES (?,?,?,?)");
  if (!statement) return fail(statement.error());
  statement->bind(static_cast<std::int64_t>(agent.owner_uid)).bind(agent.agent).bind(agent.parent);
  auto added = statement->bind(agent.session.text()).run();
  if (!added && added.error().code == Code::kAlreadyExists)
    return fail(Code::kAlreadyExists, "an agent of this name exists");
  return added;
}

Result<Registry::Agents> Registry::agents(std::optional<uid_t> owner, const std::string& from,
                                          std::size_t enough) {
  const MutexLock lock(mutex_);
  auto statement = database_->prepare(
      "SELECT agent, parent, owner_uid, thread_id FROM agents WHERE thread_id >= ?1 AND "
      "(?2 IS NULL OR owner_uid = ?2) ORDER BY thread_id, id");
  if (!statement) return fail(statement.error());
  statement->bind(from).bind_optional(owner ? std::optional(std::int64_t{*owner}) : std::nullopt);
  Agents agents;
  for (;;) {
    auto row = statement->step();
    if (!row) return fail(row.error());
    if (!*row) return agents;
    auto agent = agent_of(*statement);
    if (!agent) continue;
    agents.truncated = agents.list.size() >= enough && agents.list.back().session != agent->session;
    if (agents.truncated) return agents;
    agents.list.push_back(std::move(*agent));
  }
}

Result<std::optional<AgentRecord>> Registry::agent(uid_t owner, const std::string& name) {
  const MutexLock lock(mutex_);
  auto statement = database_->prepare(
      "SELECT agent, parent, owner_uid, thread_id FROM agents WHERE owner_uid = ? AND agent = ?");
  if (!statement) return fail(statement.error());
  auto row = statement->bind(static_cast<std::int64_t>(owner)).bind(name).step();
  if (!row) return fail(row.error());
  return *row ? agent_of(*statement) : std::nullopt;
}

Result<std::vector<AgentRecord>> Registry::agents_named(const std::string& name) {
  const MutexLock lock(mutex_);
  auto statement = database_->prepare(
      "SELECT agent, parent, owner_uid, thread_id FROM agents WHERE agent = ? ORDER BY id LIMIT 2");
  if (!statement) return fail(statement.error());
  statement->bind(name);
  std::vector<AgentRecord> agents;
  for (;;) {
    auto row = statement->step();
    if (!row) return fail(row.error());
    if (!*row) return agents;
    if (auto agent = agent_of(*statement)) agents.push_back(std::move(*agent));
  }
}

Result<std::vector<std::string>> Registry::children_of(const AgentRecord& agent) {
  const MutexLock lock(mutex_);
  auto statement = database_->prepare(
      "SELECT agent FROM agents WHERE thread_id = ? AND owner_uid = ? AND parent = ? ORDER BY id");
  if (!statement) return fail(statement.error());
  statement->bind(agent.session.text()).bind(std::int64_t{agent.owner_uid}).bind(agent.agent);
  std::vector<std::string> children;
  for (;;) {
    auto row = statement->step();
    if (!row) return fail(row.error());
    if (!*row) return children;
    children.push_back(statement->text(0));
  }
}

Result<void> Registry::remember_workdir(const WorkdirBinding& binding) {
  const MutexLock lock(mutex_);
  return database_->without_sync([&]() REQUIRES(mutex_) { return write_binding(binding); });
}

Result<void> Registry::write_binding(const WorkdirBinding& binding) {
  auto statement = database_->prepare("INSERT OR REPLACE INTO workdirs (owner_uid, " +
                                      std::string(kBindingColumns) + ") VALUES (?,?,?,?,?,?,?,?)");
  if (!statement) return fail(statement.error());
  statement->bind(static_cast<std::int64_t>(binding.owner_uid)).bind(binding.task);
  statement->bind(binding.device_id.value_or("")).bind(binding.path).bind(name_of(binding.policy));
  statement->bind_optional(binding.git_url).bind_optional(binding.branch).bind(binding.last_used);
  if (auto written = statement->run(); !written) return written;
  auto forget = database_->prepare(
      "DELETE FROM workdirs WHERE rowid IN (SELECT rowid FROM workdirs WHERE owner_uid = ? "
      "ORDER BY last_used DESC, rowid DESC LIMIT -1 OFFSET ?)");
  if (!forget) return fail(forget.error());
  forget->bind(static_cast<std::int64_t>(binding.owner_uid)).bind(std::int64_t{kMostWorkdirs});
  return forget->run();
}

Result<std::optional<WorkdirBinding>> Registry::workdir_of_task(uid_t owner, const std::string& task,
                                                                const std::string& device) {
  const MutexLock lock(mutex_);
  auto statement = database_->prepare("SELECT " + std::string(kBindingColumns) +
                                      " FROM workdirs WHERE owner_uid = ? AND task = ? AND device_id = ?");
  if (!statement) return fail(statement.error());
  statement->bind(static_cast<std::int64_t>(owner)).bind(task).bind(device);
  return first_binding(owner, *statement);
}

Result<std::optional<WorkdirBinding>> Registry::workdir_of_branch(uid_t owner, const std::string& git_url,
                                                                  const std::string& branch,
                                                                  const std::optional<std::string>& device) {
  const MutexLock lock(mutex_);
  auto statement = database_->prepare(
      "SELECT " + std::string(kBindingColumns) +
      " FROM workdirs WHERE owner_uid = ? AND git_url = ? AND branch = ? AND device_id = ? "
      "ORDER BY last_used DESC LIMIT 1");
  if (!statement) return fail(statement.error());
  statement->bind(static_cast<std::int64_t>(owner)).bind(git_url).bind(branch).bind(device.value_or(""));
  return first_binding(owner, *statement);
}

Result<std::vector<WorkdirBinding>> Registry::recent_workdirs(uid_t owner, std::size_t limit) {
  const MutexLock lock(mutex_);
  auto statement = database_->prepare(
      "SELECT task, device_id, path, policy, git_url, branch, max(last_used) FROM workdirs WHERE owner_uid = "
      "? "
      "GROUP BY path ORDER BY max(last_used) DESC LIMIT ?");
  if (!statement) return fail(statement.error());
  statement->bind(static_cast<std::int64_t>(owner)).bind(static_cast<std::int64_t>(limit));
  std::vector<WorkdirBinding> bindings;
  for (;;) {
    auto row = statement->step();
    if (!row) return fail(row.error());
    if (!*row) return bindings;
    bindings.push_back(binding_of(owner, *statement));
  }
}

}  // namespace okcvm::daemon
