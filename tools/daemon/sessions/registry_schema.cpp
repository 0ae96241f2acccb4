#include "tools/daemon/sessions/registry_schema.h"

#include <array>
#include <string>

#include "tools/daemon/sessions/database.h"

namespace okcvm::daemon {
namespace {

// Step N takes version N to N + 1. A step that was released is never edited; changes come as new steps.
constexpr std::array kSteps{
    // The seeds' own tables [S2 5.1].
    R"(CREATE TABLE IF NOT EXISTS sessions (
         id INTEGER PRIMARY KEY AUTOINCREMENT,
         thread_id TEXT UNIQUE NOT NULL,
         user_id TEXT,
         created_at TEXT NOT NULL,
         updated_at TEXT NOT NULL,
         metadata TEXT);
       CREATE TABLE IF NOT EXISTS checkpoints (
         id INTEGER PRIMARY KEY AUTOINCREMENT,
         thread_id TEXT NOT NULL,
         checkpoint_id TEXT NOT NULL,
         parent_checkpoint_id TEXT,
         checkpoint_data BLOB NOT NULL,
         created_at TEXT NOT NULL,
         FOREIGN KEY (thread_id) REFERENCES sessions (thread_id));)",
    // Owners, mounts, agents and workdirs. `metadata` holds the labels.
    R"(ALTER TABLE sessions ADD COLUMN owner_uid INTEGER NOT NULL DEFAULT 0;
       ALTER TABLE sessions ADD COLUMN owner_gid INTEGER NOT NULL DEFAULT 0;
       ALTER TABLE sessions ADD COLUMN root_mode INTEGER NOT NULL DEFAULT 448;
       ALTER TABLE sessions ADD COLUMN state TEXT NOT NULL DEFAULT 'unmounted';
       ALTER TABLE sessions ADD COLUMN last_used INTEGER NOT NULL DEFAULT 0;
       ALTER TABLE sessions ADD COLUMN skills TEXT NOT NULL DEFAULT '[]';
       ALTER TABLE sessions ADD COLUMN workdir TEXT;
       ALTER TABLE sessions ADD COLUMN workdir_policy TEXT NOT NULL DEFAULT 'managed';
       ALTER TABLE sessions ADD COLUMN fallback_requested TEXT;
       ALTER TABLE sessions ADD COLUMN fallback_reason TEXT;
       ALTER TABLE sessions ADD COLUMN task TEXT;
       ALTER TABLE sessions ADD COLUMN device_id TEXT;
       ALTER TABLE sessions ADD COLUMN git_url TEXT;
       ALTER TABLE sessions ADD COLUMN branch TEXT;
       ALTER TABLE sessions ADD COLUMN head_checkpoint TEXT;
       ALTER TABLE sessions ADD COLUMN agent TEXT;
       ALTER TABLE checkpoints ADD COLUMN snapshot_id TEXT;
       CREATE INDEX checkpoints_by_thread ON checkpoints (thread_id, checkpoint_id);
       CREATE TABLE agents (
         id INTEGER PRIMARY KEY AUTOINCREMENT,
         owner_uid INTEGER NOT NULL,
         agent TEXT NOT NULL,
         parent TEXT NOT NULL,
         thread_id TEXT NOT NULL,
         UNIQUE (owner_uid, agent));
       CREATE TABLE workdirs (
         owner_uid INTEGER NOT NULL,
         task TEXT NOT NULL,
         device_id TEXT NOT NULL DEFAULT '',
         path TEXT NOT NULL,
         policy TEXT NOT NULL,
         git_url TEXT,
         branch TEXT,
         last_used INTEGER NOT NULL,
         PRIMARY KEY (owner_uid, task, device_id));)",
    // In a row these stand behind the data, all of which would be read on the way to them.
    R"(CREATE INDEX checkpoints_listed ON checkpoints
         (thread_id, id, checkpoint_id, parent_checkpoint_id, snapshot_id, created_at);)",
    R"(CREATE INDEX agents_by_thread ON agents (thread_id, id);)",
    // What a fork was made of.
    R"(ALTER TABLE sessions ADD COLUMN forked_session TEXT;
       ALTER TABLE sessions ADD COLUMN forked_snapshot TEXT;)",
};

Result<std::size_t> version_of(Database& database) {
  auto statement = database.prepare("PRAGMA user_version");
  if (!statement) return fail(statement.error());
  if (auto row = statement->step(); !row) return fail(row.error());
  return static_cast<std::size_t>(statement->integer(0));
}

}  // namespace

int newest_schema() {
  return static_cast<int>(kSteps.size());
}

Result<void> migrate(Database& database) {
  // Mostly there is nothing to do, and somebody else who writes just now keeps nobody from that.
  auto version = version_of(database);
  if (!version) return fail(version.error());
  if (*version == kSteps.size()) return {};
  auto transaction = Database::Transaction::begin(database);
  if (!transaction) return fail(transaction.error());
  version = version_of(database);
  if (!version) return fail(version.error());
  for (; *version < kSteps.size(); ++*version)
    if (auto done = database.run(kSteps[*version]); !done) return done;
  const std::string mark = "PRAGMA user_version = " + std::to_string(*version);
  if (auto done = database.run(mark.c_str()); !done) return done;
  return transaction->commit();
}

}  // namespace okcvm::daemon
