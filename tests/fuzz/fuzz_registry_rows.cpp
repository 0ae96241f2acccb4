#include <fuzzer/FuzzedDataProvider.h>

#include <array>

#include "tests/fuzz/registry_use.h"

/// A sound registry file with rows in it that no daemon wrote: any value of any type in any column.
namespace {

using namespace okcvm;
using namespace okcvm::daemon;

struct Statement {
  const char* sql;
  int parameters;
};
constexpr std::array kStatements{
    Statement{
        "INSERT OR IGNORE INTO sessions (thread_id, created_at, updated_at, metadata, owner_uid, owner_gid, "
        "root_mode, state, last_used, skills) VALUES (?,?,?,?,?,?,?,?,?,?)",
        10},
    Statement{
        "UPDATE sessions SET (workdir, workdir_policy, fallback_requested, fallback_reason, task, device_id, "
        "git_url, branch, head_checkpoint, agent) = (?,?,?,?,?,?,?,?,?,?)",
        10},
    Statement{
        "INSERT OR IGNORE INTO checkpoints (thread_id, checkpoint_id, parent_checkpoint_id, checkpoint_data, "
        "created_at, snapshot_id) VALUES (?,?,?,?,?,?)",
        6},
    Statement{"INSERT OR IGNORE INTO agents (owner_uid, agent, parent, thread_id) VALUES (?,?,?,?)", 4},
    Statement{"INSERT OR IGNORE INTO workdirs (owner_uid, task, device_id, path, policy, git_url, branch, "
              "last_used) "
              "VALUES (?,?,?,?,?,?,?,?)",
              8}};

/// Values that get past the first checks of a row.
constexpr std::array kLikelyTexts{"s1",          "2026-11-21T22:05:05.123Z",
                                  "mounted",     "{\"k\":\"v\"}",
                                  "[\"pdf\"]",   "repo-bound",
                                  "deleting",    "root",
                                  "https://x/y", "main"};

void bind_any(sqlite3_stmt* statement, int parameter, FuzzedDataProvider& provider) {
  switch (provider.ConsumeIntegralInRange(0, 5)) {
    case 0:
      sqlite3_bind_null(statement, parameter);
      break;
    case 1:
      sqlite3_bind_int64(statement, parameter, provider.ConsumeIntegral<std::int64_t>());
      break;
    case 2:
      sqlite3_bind_double(statement, parameter, provider.ConsumeFloatingPoint<double>());
      break;
    case 3: {
      const auto text = provider.ConsumeRandomLengthString(64);
      sqlite3_bind_text(statement, parameter, text.data(), static_cast<int>(text.size()), SQLITE_TRANSIENT);
      break;
    }
    case 4: {
      const auto blob = provider.ConsumeRandomLengthString(64);
      sqlite3_bind_blob(statement, parameter, blob.data(), static_cast<int>(blob.size()), SQLITE_TRANSIENT);
      break;
    }
    default:
      sqlite3_bind_text(statement, parameter, provider.PickValueInArray(kLikelyTexts), -1, SQLITE_STATIC);
  }
}

void write_rows(FuzzedDataProvider& provider) {
  sqlite3* connection = nullptr;
  FUZZ_EXPECT(sqlite3_open(fuzz::registry_file().c_str(), &connection) == SQLITE_OK);
  for (int row = 0; row < 8 && provider.remaining_bytes() > 0; ++row) {
    const auto& chosen = provider.PickValueInArray(kStatements);
    sqlite3_stmt* statement = nullptr;
    FUZZ_EXPECT(sqlite3_prepare_v2(connection, chosen.sql, -1, &statement, nullptr) == SQLITE_OK);
    for (int parameter = 1; parameter <= chosen.parameters; ++parameter)
      bind_any(statement, parameter, provider);
    sqlite3_step(statement);
    sqlite3_finalize(statement);
  }
  sqlite3_close(connection);
}

std::string empty_registry() {
  fuzz::remove_registry();
  FUZZ_EXPECT(Registry::open(fuzz::registry_file(), true).has_value());
  return fuzz::registry_bytes();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto empty = empty_registry();
  FuzzedDataProvider provider(data, size);
  fuzz::lay_out(empty);
  write_rows(provider);
  const auto registry = Registry::open(fuzz::registry_file(), provider.ConsumeBool());
  FUZZ_EXPECT(registry.has_value());
  fuzz::use(**registry);
  return 0;
}
