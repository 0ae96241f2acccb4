#include "policy/iso_time.h"
#include "tools/daemon/sessions/database.h"
#include "tools/daemon/sessions/registry.h"

namespace okcvm::daemon {
namespace {

/// Columns: checkpoint_id, parent_checkpoint_id, snapshot_id, created_at, length, data.
Checkpoint checkpoint_of(const Database::Statement& row) {
  Checkpoint checkpoint;
  checkpoint.id = row.text(0);
  if (!row.is_null(1)) checkpoint.parent = row.text(1);
  if (!row.is_null(2)) checkpoint.snapshot = row.text(2);
  checkpoint.created_at = parse_time(row.text(3)).value_or(timespec{});
  checkpoint.bytes = static_cast<std::size_t>(row.integer(4));
  checkpoint.data = row.text(5);
  return checkpoint;
}

}  // namespace

Result<void> Registry::can_add_checkpoint(const SessionId& session, const std::string& id, std::size_t most) {
  const MutexLock lock(mutex_);
  return can_add_locked(session, id, most);
}

Result<void> Registry::can_add_locked(const SessionId& session, const std::string& id, std::size_t most) {
  auto count = database_->prepare(
      "SELECT count(*), count(CASE WHEN checkpoint_id = ? THEN 1 END) FROM checkpoints WHERE thread_id = ?");
  if (!count) return fail(count.error());
  if (auto row = count->bind(id).bind(session.text()).step(); !row) return fail(row.error());
  if (count->integer(1) > 0)
    return fail(Code::kAlreadyExists, "a checkpoint with this id exists: choose another id");
  if (static_cast<std::size_t>(count->integer(0)) >= most)
    return fail(Code::kQuotaExceeded,
                "the session has as many checkpoints as --max-checkpoints allows: reset it or raise that");
  return {};
}

Result<void> Registry::add_checkpoint(const SessionId& session, const Checkpoint& checkpoint,
                                      std::size_t most) {
  const MutexLock lock(mutex_);
  auto transaction = Database::Transaction::begin(*database_);
  if (!transaction) return fail(transaction.error());
  if (auto can = can_add_locked(session, checkpoint.id, most); !can) return can;
  auto insert = database_->prepare(
      "INSERT INTO checkpoints (thread_id, checkpoint_id, parent_checkpoint_id, checkpoint_data, created_at, "
      "snapshot_id) "
      "VALUES (?,?,?,?,?,?)");
  if (!insert) return fail(insert.error());
  insert->bind(session.text())
      .bind(checkpoint.id)
      .bind_optional(checkpoint.parent)
      .bind_blob(checkpoint.data);
  insert->bind(time_text(checkpoint.created_at)).bind_optional(checkpoint.snapshot);
  if (auto done = insert->run(); !done) return done;
  auto head = database_->prepare("UPDATE sessions SET head_checkpoint = ? WHERE thread_id = ?");
  if (!head) return fail(head.error());
  if (auto done = head->bind(checkpoint.id).bind(session.text()).run(); !done) return done;
  return transaction->commit();
}

Result<std::vector<Checkpoint>> Registry::checkpoints(const SessionId& session, std::size_t limit) {
  const MutexLock lock(mutex_);
  auto statement = database_->prepare(
      "SELECT checkpoint_id, parent_checkpoint_id, snapshot_id, created_at, length(checkpoint_data), NULL "
      "FROM checkpoints WHERE thread_id = ? ORDER BY id DESC LIMIT ?");
  if (!statement) return fail(statement.error());
  statement->bind(session.text()).bind(static_cast<std::int64_t>(limit));
  std::vector<Checkpoint> checkpoints;
  for (;;) {
    auto row = statement->step();
    if (!row) return fail(row.error());
    if (!*row) return checkpoints;
    checkpoints.push_back(checkpoint_of(*statement));
  }
}

Result<Checkpoint> Registry::checkpoint(const SessionId& session, const std::string& id) {
  const MutexLock lock(mutex_);
  auto statement = database_->prepare(
      "SELECT checkpoint_id, parent_checkpoint_id, snapshot_id, created_at, length(checkpoint_data), "
      "checkpoint_data "
      "FROM checkpoints WHERE thread_id = ? AND checkpoint_id = ? ORDER BY id DESC LIMIT 1");
  if (!statement) return fail(statement.error());
  auto row = statement->bind(session.text()).bind(id).step();
  if (!row) return fail(row.error());
  if (!*row) return fail(Code::kNotFound, "no such checkpoint: list the session's checkpoints");
  return checkpoint_of(*statement);
}

Result<std::int64_t> Registry::remove_checkpoints(const SessionId& session) {
  const MutexLock lock(mutex_);
  auto transaction = Database::Transaction::begin(*database_);
  if (!transaction) return fail(transaction.error());
  auto head = database_->prepare("UPDATE sessions SET head_checkpoint = NULL WHERE thread_id = ?");
  if (!head) return fail(head.error());
  if (auto done = head->bind(session.text()).run(); !done) return fail(done.error());
  auto statement = database_->prepare("DELETE FROM checkpoints WHERE thread_id = ?");
  if (!statement) return fail(statement.error());
  if (auto done = statement->bind(session.text()).run(); !done) return fail(done.error());
  const auto removed = database_->changes();
  if (auto done = transaction->commit(); !done) return fail(done.error());
  return removed;
}

}  // namespace okcvm::daemon
