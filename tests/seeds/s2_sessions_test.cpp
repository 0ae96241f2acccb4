#include <gmock/gmock.h>
#include <sqlite3.h>
#include <sys/stat.h>

#include "tests/seeds/seed_test.h"
#include "tests/support/file_io.h"

/// Seed 2 (002_…), chapters 4.5 and 5: sessions are kept, found, reset and cleaned.
namespace okcvm::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

/// Runs SQL on the registry and answers the first column of its rows.
std::vector<std::string> sql(const std::filesystem::path& file, const std::string& text) {
  sqlite3* connection = nullptr;
  std::vector<std::string> rows;
  EXPECT_EQ(sqlite3_open(file.c_str(), &connection), SQLITE_OK);
  const auto keep = [](void* kept, int, char** values, char**) {
    static_cast<std::vector<std::string>*>(kept)->emplace_back(values[0] ? values[0] : "");
    return 0;
  };
  EXPECT_EQ(sqlite3_exec(connection, text.c_str(), keep, &rows, nullptr), SQLITE_OK)
      << sqlite3_errmsg(connection);
  sqlite3_close(connection);
  return rows;
}

/// A daemon of the test's own, which can be stopped.
class SeedS2Store : public DaemonFixture {
 protected:
  std::filesystem::path registry() const { return root_ / "state/sessions.db"; }
  void restart() {
    EXPECT_EQ(stop(), 0);
    start();
  }
};

TEST_F(SeedS2Store, Requirement4_5_WorkspacesUnusedForSevenDaysAreCleaned) {
  start();
  for (const char* id : {"old", "young"}) {
    create({{"id", id}});
    write(mount(id) / "outputs/f", "bytes");
  }
  EXPECT_EQ(ask("POST", "/v1/clean").json()["removed"], nlohmann::json::array());
  kill_daemon();
  sql(registry(),
      "UPDATE sessions SET last_used = last_used - 8 * 86400000 WHERE thread_id = 'old';"
      "UPDATE sessions SET last_used = last_used - 6 * 86400000 WHERE thread_id = 'young';");
  start();
  EXPECT_EQ(ask("POST", "/v1/clean").json()["removed"], nlohmann::json({"old"}));
  EXPECT_FALSE(there_is(root_ / "state/workspaces/old"));
  EXPECT_TRUE(there_is(root_ / "state/workspaces/young"));
}

TEST_F(SeedS2Store, Requirement4_5_ADaemonThatMountsAWorkspaceDoesNotUseIt) {
  start({"--keeper"});
  create({{"id", "s1"}});
  write(mount("s1") / "outputs/f", "bytes");
  EXPECT_EQ(stop(), 0);
  sql(registry(), "UPDATE sessions SET last_used = 1600000000000");
  const auto last_used = [&] {
    return ask("GET", "/v1/sessions").json()["sessions"][0]["last_used_at"].get<std::string>();
  };
  const std::string before = "2020-09-13T12:26:40.000Z";
  start({"--keeper"});
  EXPECT_EQ(last_used(), before);
  kill_daemon();
  EXPECT_EQ(last_used(), before);
  const pid_t killed = serving_pid();
  signal(SIGHUP);
  while (serving_pid() == killed) ::usleep(1000);
  EXPECT_EQ(last_used(), before);
  EXPECT_EQ(read(mount("s1") / "outputs/f"), "bytes");
  EXPECT_GT(last_used(), before);
}

TEST_F(SeedS2Store, Requirement4_5_CleaningAlsoHappensAtTheEndOfTheProgram) {
  start();
  create({{"id", "old"}});
  write(mount("old") / "outputs/f", "bytes");
  ask("POST", "/v1/sessions/old/unmount");
  kill_daemon();
  sql(registry(), "UPDATE sessions SET last_used = last_used - 8 * 86400000");
  start();
  EXPECT_EQ(stop(), 0);
  EXPECT_FALSE(there_is(root_ / "state/workspaces/old"));
  EXPECT_THAT(sql(registry(), "SELECT thread_id FROM sessions"), ElementsAre());
}

TEST_F(SeedS2Store, Requirement5_1_SessionsAndCheckpointsAreTheSeedsTables) {
  start();
  create({{"id", "s1"}});
  ASSERT_EQ(ask("POST", "/v1/sessions/s1/checkpoints", R"({"id":"c1","data":{"turn":1}})").status, 201);
  EXPECT_EQ(stop(), 0);
  EXPECT_THAT(sql(registry(), "SELECT name FROM pragma_table_info('sessions')"),
              IsSupersetOf({"id", "thread_id", "user_id", "created_at", "updated_at", "metadata"}));
  EXPECT_THAT(sql(registry(), "SELECT name FROM pragma_table_info('checkpoints')"),
              IsSupersetOf({"id", "thread_id", "checkpoint_id", "parent_checkpoint_id", "checkpoint_data",
                            "created_at"}));
  EXPECT_THAT(sql(registry(), "SELECT thread_id || user_id FROM sessions"), ElementsAre("s10"));
  EXPECT_THAT(sql(registry(), "SELECT json_extract(checkpoint_data, '$.turn') FROM checkpoints"),
              ElementsAre("1"));
}

TEST_F(SeedS2Store, Requirement5_1_SessionsAreKeptOverARestart) {
  start();
  const auto before = create({{"id", "s1"}, {"labels", {{"k", "v"}}}});
  ask("POST", "/v1/sessions/s1/checkpoints", R"({"data":{"turn":1}})");
  restart();
  const auto after = ask("GET", "/v1/sessions/s1").json();
  for (const char* field : {"id", "owner", "created_at", "labels", "mount"})
    EXPECT_EQ(after[field], before[field]);
  EXPECT_EQ(ask("GET", "/v1/sessions/s1/checkpoints/latest").json()["data"]["turn"], 1);
}

class SeedS2Sessions : public SeedTest {
 protected:
  HttpAnswer save(const Json& checkpoint) { return about("POST", "/checkpoints", checkpoint); }
};

TEST_F(SeedS2Sessions, Requirement5_1_RecentSessionsOfAUserAreListed) {
  ASSERT_EQ(daemon().ask_as(1234, "POST", "/v1/sessions", R"({"id":"theirs1"})").status, 201);
  ASSERT_EQ(daemon().ask_as(1234, "POST", "/v1/sessions", R"({"id":"theirs2"})").status, 201);
  const auto ids = [](const HttpAnswer& answer) {
    std::vector<std::string> found;
    const auto listed = answer.json();
    for (const auto& session : listed["sessions"]) found.push_back(session["id"]);
    return found;
  };
  EXPECT_THAT(ids(daemon().ask_as(1234, "GET", "/v1/sessions")), ElementsAre("theirs2", "theirs1"));
  EXPECT_THAT(ids(daemon().ask_as(1234, "GET", "/v1/sessions?limit=1")), ElementsAre("theirs2"));
  EXPECT_THAT(ids(ask("GET", "/v1/sessions")), IsSupersetOf({id(), std::string("theirs1")}));
  for (const char* theirs : {"theirs1", "theirs2"}) ask("DELETE", std::string("/v1/sessions/") + theirs);
}

TEST_F(SeedS2Sessions, Requirement5_1_DeletingASessionDeletesItsCheckpoints) {
  create({{"id", "again"}});
  EXPECT_EQ(ask("POST", "/v1/sessions/again/checkpoints", {{"data", 1}}).status, 201);
  ask("DELETE", "/v1/sessions/again");
  create({{"id", "again"}});
  EXPECT_EQ(ask("GET", "/v1/sessions/again/checkpoints/latest").code(), "not_found");
}

TEST_F(SeedS2Sessions, Requirement5_1_TheLatestCheckpointIsLoaded) {
  EXPECT_EQ(about("GET", "/checkpoints/latest").code(), "not_found");
  for (int turn = 1; turn <= 3; ++turn) EXPECT_EQ(save({{"data", {{"turn", turn}}}}).status, 201);
  EXPECT_EQ(about("GET", "/checkpoints/latest").json()["data"]["turn"], 3);
  EXPECT_EQ(about("GET", "/checkpoints").json()["checkpoints"].size(), 3u);
}

TEST_F(SeedS2Sessions, Requirement5_1_CheckpointsKnowTheirParents) {
  save({{"id", "one"}, {"data", 1}});
  EXPECT_EQ(save({{"id", "two"}, {"data", 2}}).json()["parent_id"], "one");
  EXPECT_EQ(save({{"id", "branch"}, {"parent_id", "one"}, {"data", 3}}).json()["parent_id"], "one");
  EXPECT_EQ(about("GET", "/checkpoints/one").json()["parent_id"], nullptr);
}

TEST_F(SeedS2Sessions, Requirement5_2_CreatingASessionMakesItsRecordAndWorkspace) {
  const auto session = create();
  EXPECT_EQ(session["state"], "mounted");
  EXPECT_EQ(ask("GET", "/v1/sessions/" + session["id"].get<std::string>()).json()["mount"], session["mount"]);
  EXPECT_TRUE(there_is(daemon().mount(session["id"]) / "outputs"));
}

TEST_F(SeedS2Sessions, Requirement5_2_ASessionIsLoadedByPrefix) {
  create({{"id", "prefix-one"}});
  EXPECT_EQ(ask("POST", "/v1/sessions/prefix/unmount").json()["state"], "unmounted");
  const auto loaded = okcvm({"load", "prefix"});
  EXPECT_EQ(loaded.exit_code, 0) << loaded.output;
  EXPECT_THAT(loaded.output, HasSubstr(daemon().mount("prefix-one").string()));
  EXPECT_EQ(ask("GET", "/v1/sessions/prefix-one").json()["state"], "mounted");
}

TEST_F(SeedS2Sessions, Requirement5_2_AnUnknownPrefixIsNotFound) {
  const auto loaded = okcvm({"load", "zzz"});
  EXPECT_EQ(loaded.exit_code, 1);
  EXPECT_THAT(loaded.output, HasSubstr("not_found"));
}

TEST_F(SeedS2Sessions, Requirement5_2_ResetClearsTempAndCheckpointsAndKeepsTheRest) {
  write(temp() / "t", "x");
  write(outputs() / "o", "x");
  save({{"data", 1}});
  EXPECT_EQ(okcvm({"reset", id()}).exit_code, 0);
  EXPECT_THAT(list(temp()), ElementsAre());
  EXPECT_EQ(read(outputs() / "o"), "x");
  EXPECT_TRUE(about("GET", "/checkpoints").json()["checkpoints"].empty());
  EXPECT_EQ(about("GET", "").json()["id"], id());
}

TEST_F(SeedS2Sessions, Requirement5_2_TheCommandLineShowsSessionsAndTheCurrentOne) {
  EXPECT_THAT(okcvm({"list"}).output, HasSubstr(id()));
  EXPECT_EQ(okcvm({"path", id()}).output, mount().string() + "\n");
  EXPECT_THAT(okcvm({"info", id()}).output, HasSubstr(id()));
}

TEST_F(SeedS2Sessions, Requirement5_3_ATurnIsSavedWithItsFiles) {
  write(outputs() / "f", "turn 7");
  const auto seventh = save({{"data", {{"turn", 7}}}, {"snapshot", true}});
  ASSERT_EQ(seventh.status, 201) << seventh.body;
  write(outputs() / "f", "turn 8");
  save({{"data", {{"turn", 8}}}, {"snapshot", true}});
  const auto back = about("POST", "/checkpoints/" + seventh.json()["id"].get<std::string>() + "/restore");
  EXPECT_EQ(back.json()["checkpoint"]["data"]["turn"], 7) << back.body;
  EXPECT_EQ(read(outputs() / "f"), "turn 7");
}

TEST_F(SeedS2Sessions, Requirement5_3_SavingATurnUpdatesTheSession) {
  const auto before = about("GET", "").json()["last_used_at"].get<std::string>();
  save({{"data", 1}});
  EXPECT_EQ(about("POST", "/labels", {{"labels", {{"last_message", "hello"}, {"turn_count", "10"}}}}).status,
            200);
  const auto session = about("GET", "").json();
  EXPECT_EQ(session["labels"]["turn_count"], "10");
  EXPECT_GE(session["last_used_at"].get<std::string>(), before);
}

}  // namespace
}  // namespace okcvm::test
