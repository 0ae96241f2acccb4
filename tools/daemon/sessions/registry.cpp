#include "tools/daemon/sessions/registry.h"

#include <array>
#include <nlohmann/json.hpp>

#include "policy/iso_time.h"
#include "tools/daemon/host/clock.h"
#include "tools/daemon/sessions/database.h"
#include "tools/daemon/sessions/registry_schema.h"

namespace okcvm::daemon {
namespace {

using nlohmann::json;

struct StateRow {
  SessionPhase state;
  std::string_view name;
};
constexpr std::array kStates{
    StateRow{SessionPhase::kMounted, "mounted"}, StateRow{SessionPhase::kUnmounted, "unmounted"},
    StateRow{SessionPhase::kMaking, "making"}, StateRow{SessionPhase::kDeleting, "deleting"}};

constexpr std::string_view kColumns =
    "user_id, created_at, updated_at, metadata, owner_uid, owner_gid, root_mode, state, last_used, "
    "skills, workdir, workdir_policy, fallback_requested, fallback_reason, task, device_id, git_url, "
    "branch, head_checkpoint, agent, forked_session, forked_snapshot";

/// The values of kColumns, in that order; `metadata` holds the labels.
void bind_record(Database::Statement& statement, const SessionRecord& record, std::string_view metadata) {
  const auto& fallback = record.workdir_fallback;
  const auto& origin = record.forked_from;
  statement.bind(std::to_string(record.owner_uid))
      .bind(time_text(record.created_at))
      .bind(time_text(time_now()))
      .bind(metadata)
      .bind(static_cast<std::int64_t>(record.owner_uid))
      .bind(static_cast<std::int64_t>(record.owner_gid))
      .bind(static_cast<std::int64_t>(record.root_mode))
      .bind(kStates[static_cast<std::size_t>(record.state)].name)
      .bind(record.last_used)
      .bind(json(record.skills).dump(-1, ' ', false, json::error_handler_t::replace))
      .bind_optional(record.workdir)
      .bind(name_of(record.workdir_policy))
      .bind_optional(fallback ? std::optional(fallback->requested) : std::nullopt)
      .bind_optional(fallback ? std::optional(fallback->reason) : std::nullopt)
      .bind_optional(record.task)
      .bind_optional(record.device_id)
      .bind_optional(record.git_url)
      .bind_optional(record.branch)
      .bind_optional(record.head_checkpoint)
      .bind_optional(record.agent)
      .bind_optional(origin ? std::optional(origin->session) : std::nullopt)
      .bind_optional(origin ? std::optional(origin->snapshot) : std::nullopt);
}

std::optional<std::string> optional_text(const Database::Statement& row, int column) {
  return row.is_null(column) ? std::nullopt : std::optional(row.text(column));
}

/// Numbers and truth values, as in other programs' metadata, become strings; objects and arrays, which may be
/// nested deeper than the stack is, are passed over.
std::map<std::string, std::string> labels_of(const std::string& text) {
  std::map<std::string, std::string> labels;
  const auto parsed = json::parse(text, nullptr, false);
  if (!parsed.is_object()) return labels;
  for (const auto& [name, value] : parsed.items())
    if (!value.is_structured())
      labels.emplace(name, value.is_string() ? value.get<std::string>() : value.dump());
  return labels;
}
std::string labels_json(const SessionRecord& record) {
  return json(record.labels).dump(-1, ' ', false, json::error_handler_t::replace);
}
/// Strings of a JSON array; anything else in it is passed over.
std::vector<std::string> names_of(const std::string& text) {
  std::vector<std::string> names;
  const auto parsed = json::parse(text, nullptr, false);
  if (!parsed.is_array()) return names;
  for (const auto& value : parsed)
    if (value.is_string()) names.push_back(value.get<std::string>());
  return names;
}

/// Column 0 is thread_id, then kColumns. Nothing in a row is taken on trust.
Result<SessionRecord> record_of(const Database::Statement& row) {
  auto id = SessionId::parse(row.text(0));
  if (!id) return fail(Code::kCorrupt, "a session has an invalid id");
  SessionRecord record(*id);
  const auto created = parse_time(row.text(2));
  if (!created) return fail(Code::kCorrupt, "session " + id->text() + " has an invalid time");
  record.created_at = *created;
  record.labels = labels_of(row.text(4));
  for (const int column : {5, 6})
    if (row.integer(column) < 0 || row.integer(column) >= UINT32_MAX)
      return fail(Code::kCorrupt, "session " + id->text() + " has an invalid owner");
  record.owner_uid = static_cast<uid_t>(row.integer(5));
  record.owner_gid = static_cast<gid_t>(row.integer(6));
  record.root_mode = static_cast<mode_t>(row.integer(7)) & 0777;
  bool known_state = false;
  for (const auto& state : kStates)
    if (state.name == row.text(8)) record.state = state.state, known_state = true;
  if (!known_state) return fail(Code::kCorrupt, "session " + id->text() + " has an unknown state");
  // A row of another program's has no such time, but was in use whenever it was written.
  const auto updated = parse_time(row.text(3));
  record.last_used = row.integer(9);
  if (record.last_used <= 0)
    record.last_used =
        std::min(to_milliseconds(time_now()),
                 std::max(to_milliseconds(*created), to_milliseconds(updated.value_or(*created))));
  record.skills = names_of(row.text(10));
  record.workdir = optional_text(row, 11);
  record.workdir_policy = workdir_policy_named(row.text(12)).value_or(WorkdirPolicy::kManaged);
  if (!row.is_null(13)) record.workdir_fallback = WorkdirFallback{row.text(13), row.text(14)};
  record.task = optional_text(row, 15);
  record.device_id = optional_text(row, 16);
  record.git_url = optional_text(row, 17);
  record.branch = optional_text(row, 18);
  record.head_checkpoint = optional_text(row, 19);
  record.agent = optional_text(row, 20);
  if (!row.is_null(21)) record.forked_from = ForkedFrom{row.text(21), row.text(22)};
  return record;
}

}  // namespace

Registry::Registry(std::unique_ptr<Database> database) : database_(std::move(database)) {}
Registry::~Registry() = default;

Result<std::unique_ptr<Registry>> Registry::open(const std::filesystem::path& file, bool check) {
  auto database = Database::open(file, newest_schema(), check);
  if (!database) return fail(database.error());
  if (auto migrated = migrate(*database); !migrated) return fail(migrated.error());
  // A log that is damaged is taken for one that ends there: less of it should be what is known of nowhere
  // else.
  [[maybe_unused]] auto folded = database->run("PRAGMA wal_checkpoint(PASSIVE)");
  database->make_room_in_log();
  return std::unique_ptr<Registry>(new Registry(std::make_unique<Database>(std::move(*database))));
}

Result<void> Registry::insert(const SessionRecord& record, const std::optional<AgentRecord>& agent) {
  const MutexLock lock(mutex_);
  auto transaction = Database::Transaction::begin(*database_);
  if (!transaction) return fail(transaction.error());
  const std::string sql = "INSERT INTO sessions (thread_id, " + std::string(kColumns) +
                          ") VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)";
  auto statement = database_->prepare(sql);
  if (!statement) return fail(statement.error());
  statement->bind(record.id.text());
  bind_record(*statement, record, labels_json(record));
  auto inserted = statement->run();
  if (!inserted && inserted.error().code == Code::kAlreadyExists)
    return fail(Code::kAlreadyExists, "a session with this id exists: choose another id");
  if (!inserted) return inserted;
  if (agent)
    if (auto added = insert_agent(*agent); !added) return added;
  return transaction->commit();
}

/// What another program wrote stays as it is while it says the same.
Result<std::string> Registry::metadata_to_keep(const SessionRecord& record) {
  auto statement = database_->prepare("SELECT metadata FROM sessions WHERE thread_id = ?");
  if (!statement) return fail(statement.error());
  auto is_there = statement->bind(record.id.text()).step();
  if (!is_there) return fail(is_there.error());
  auto stored = *is_there ? statement->text(0) : std::string();
  return stored.empty() || labels_of(stored) != record.labels ? labels_json(record) : std::move(stored);
}

Result<void> Registry::update(const SessionRecord& record) {
  const MutexLock lock(mutex_);
  auto metadata = metadata_to_keep(record);
  if (!metadata) return fail(metadata.error());
  const std::string sql =
      "UPDATE sessions SET (" + std::string(kColumns) +
      ") = (coalesce(user_id, ?),?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?) WHERE thread_id = ?";
  auto statement = database_->prepare(sql);
  if (!statement) return fail(statement.error());
  bind_record(*statement, record, *metadata);
  if (auto updated = statement->bind(record.id.text()).run(); !updated) return updated;
  if (database_->changes() == 0)
    return fail(Code::kCorrupt,
                "sessions.db has no row of this session any more: put the right sessions.db back while no "
                "daemon runs, or delete the session");
  return {};
}

Result<void> Registry::remove(const SessionId& id) {
  const MutexLock lock(mutex_);
  return remove_rows(id);
}

Result<void> Registry::remove_deleted(const SessionId& id) {
  const MutexLock lock(mutex_);
  return database_->without_sync([&]() REQUIRES(mutex_) { return remove_rows(id); });
}

Result<void> Registry::remove_rows(const SessionId& id) {
  auto transaction = Database::Transaction::begin(*database_);
  if (!transaction) return fail(transaction.error());
  for (const char* sql :
       {"DELETE FROM checkpoints WHERE thread_id = ?", "DELETE FROM agents WHERE thread_id = ?",
        "DELETE FROM sessions WHERE thread_id = ?"}) {
    auto statement = database_->prepare(sql);
    if (!statement) return fail(statement.error());
    if (auto done = statement->bind(id.text()).run(); !done) return done;
  }
  return transaction->commit();
}

Result<void> Registry::touch(const Uses& used) {
  if (used.empty()) return {};
  const MutexLock lock(mutex_);
  return database_->without_sync([&]() REQUIRES(mutex_) { return write_uses(used); });
}

Result<void> Registry::write_uses(const Uses& used) {
  auto transaction = Database::Transaction::begin(*database_);
  if (!transaction) return fail(transaction.error());
  for (const auto& [id, time] : used) {
    auto statement = database_->prepare("UPDATE sessions SET last_used = ? WHERE thread_id = ?");
    if (!statement) return fail(statement.error());
    if (auto done = statement->bind(time).bind(id.text()).run(); !done) return done;
  }
  return transaction->commit();
}

Result<Registry::Loaded> Registry::load() {
  const MutexLock lock(mutex_);
  auto statement =
      database_->prepare("SELECT thread_id, " + std::string(kColumns) + " FROM sessions ORDER BY id");
  if (!statement) return fail(statement.error());
  Loaded loaded;
  for (;;) {
    auto row = statement->step();
    if (!row) return fail(row.error());
    if (!*row) return loaded;
    auto record = record_of(*statement);
    if (record) {
      loaded.sessions.push_back(std::move(*record));
      continue;
    }
    const auto id = SessionId::parse(statement->text(0));
    loaded.unreadable.push_back({id ? std::optional(*id) : std::nullopt, record.error().message});
  }
}

}  // namespace okcvm::daemon
