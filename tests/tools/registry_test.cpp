#include "tools/daemon/sessions/registry.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <future>
#include <sstream>

#include "policy/iso_time.h"
#include "tests/support/file_io.h"
#include "tests/support/loop_disk.h"
#include "tests/support/process.h"
#include "tools/daemon/host/clock.h"

namespace okcvm::daemon {
namespace {

SessionId id_of(const char* text) {
  return *SessionId::parse(text);
}

class RegistryTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<Registry> open() {
    auto opened = Registry::open(file_, true);
    EXPECT_TRUE(opened) << (opened ? "" : opened.error().message);
    return opened ? std::move(*opened) : nullptr;
  }
  Error refusal() {
    auto opened = Registry::open(file_, true);
    EXPECT_FALSE(opened);
    return opened ? Error() : opened.error();
  }
  /// `found`: takes the first column of what was selected.
  void run_sql(const char* sql, std::string* found = nullptr) {
    sqlite3* connection = nullptr;
    ASSERT_EQ(sqlite3_open(file_.c_str(), &connection), SQLITE_OK);
    char* message = nullptr;
    const auto take = [](void* text, int, char** columns, char**) {
      if (text != nullptr) static_cast<std::string*>(text)->append(columns[0] ? columns[0] : "");
      return 0;
    };
    EXPECT_EQ(sqlite3_exec(connection, sql, take, found, &message), SQLITE_OK) << message;
    sqlite3_close(connection);
  }
  std::string bytes() {
    std::ostringstream text;
    text << std::ifstream(file_, std::ios::binary).rdbuf();
    return text.str();
  }
  /// What this process has asked files for, in bytes (proc_pid_io(5)).
  static std::size_t bytes_read() {
    std::ifstream io("/proc/self/io");
    std::string name;
    std::size_t count = 0;
    io >> name >> count;
    return count;
  }
  SessionRecord example(const char* id) {
    SessionRecord record(id_of(id));
    record.owner_uid = 1000;
    record.owner_gid = 100;
    record.root_mode = 0750;
    record.created_at = *parse_time("2026-11-21T22:05:05.123Z");
    record.last_used = 1'764'000'000'000;
    record.labels = {{"k", "v"}, {"ключ", "значение"}};
    record.skills = {"pdf", "xlsx"};
    record.workdir = "/home/a/p";
    record.workdir_policy = WorkdirPolicy::kRepoBound;
    record.workdir_fallback = WorkdirFallback{"/etc", "no"};
    record.device_id = "mac-1";
    record.git_url = "https://x/y";
    record.agent = "a1";
    record.forked_from = daemon::ForkedFrom{"s0", "5e1f"};
    return record;
  }

  const std::filesystem::path folder_ = ::testing::TempDir() + "okcvm-registry-" + std::to_string(::getpid());
  const std::filesystem::path file_ = folder_ / "sessions.db";
};

TEST_F(RegistryTest, GivesBackWhatItWasTold) {
  ASSERT_TRUE(open()->insert(example("a1")));
  const auto loaded = open()->load();
  ASSERT_EQ(loaded->sessions.size(), 1u);
  const auto& record = loaded->sessions.front();
  EXPECT_EQ(record.id.text(), "a1");
  EXPECT_EQ(record.owner_uid, 1000u);
  EXPECT_EQ(record.root_mode, 0750u);
  EXPECT_EQ(time_text(record.created_at), "2026-11-21T22:05:05.123Z");
  EXPECT_EQ(record.labels, example("a1").labels);
  EXPECT_EQ(record.skills, example("a1").skills);
  EXPECT_EQ(record.workdir_policy, WorkdirPolicy::kRepoBound);
  EXPECT_EQ(record.workdir_fallback->reason, "no");
  EXPECT_EQ(record.git_url, "https://x/y");
  EXPECT_EQ(record.branch, std::nullopt);
  EXPECT_EQ(record.agent, "a1");
  EXPECT_EQ(record.forked_from->session, "s0");
  EXPECT_EQ(record.forked_from->snapshot, "5e1f");
}

TEST_F(RegistryTest, TakesAnIdOnce) {
  const auto registry = open();
  ASSERT_TRUE(registry->insert(example("a1")));
  EXPECT_EQ(registry->insert(example("a1")).error().code, Code::kAlreadyExists);
}

TEST_F(RegistryTest, RemovesASessionWithAllThatIsIts) {
  const auto registry = open();
  ASSERT_TRUE(registry->insert(example("a1")));
  ASSERT_TRUE(registry->add_checkpoint(id_of("a1"), {"c1", {}, {}, time_now(), 2, "{}"}, 10));
  ASSERT_TRUE(registry->add_agent({"a1", "root", 1000, id_of("a1")}));
  ASSERT_TRUE(registry->remove(id_of("a1")));
  ASSERT_TRUE(registry->remove(id_of("a1")));
  ASSERT_TRUE(registry->insert(example("a2")));
  ASSERT_TRUE(registry->remove_deleted(id_of("a2")));
  EXPECT_TRUE(registry->load()->sessions.empty());
  EXPECT_TRUE(registry->checkpoints(id_of("a1"), 10)->empty());
  EXPECT_TRUE(registry->agents(std::nullopt, "", 10)->list.empty());
}

TEST_F(RegistryTest, KeepsCheckpointsInOrderAndWithinTheirNumber) {
  const auto registry = open();
  ASSERT_TRUE(registry->insert(example("a1")));
  for (const char* id : {"c1", "c2", "c3"})
    ASSERT_TRUE(registry->add_checkpoint(id_of("a1"), {id, {}, "abc", time_now(), 2, "{}"}, 3));
  EXPECT_EQ(registry->add_checkpoint(id_of("a1"), {"c3", {}, {}, time_now(), 2, "{}"}, 9).error().code,
            Code::kAlreadyExists);
  EXPECT_EQ(registry->add_checkpoint(id_of("a1"), {"c4", {}, {}, time_now(), 2, "{}"}, 3).error().code,
            Code::kQuotaExceeded);
  const auto list = registry->checkpoints(id_of("a1"), 2);
  ASSERT_EQ(list->size(), 2u);
  EXPECT_EQ(list->front().id, "c3");
  EXPECT_EQ(registry->checkpoint(id_of("a1"), "c1")->data, "{}");
  EXPECT_EQ(registry->checkpoint(id_of("a1"), "c9").error().code, Code::kNotFound);
  EXPECT_EQ(registry->load()->sessions.front().head_checkpoint, "c3");
  EXPECT_EQ(*registry->remove_checkpoints(id_of("a1")), 3);
}

TEST_F(RegistryTest, ListsCheckpointsWithoutReadingThroughTheirData) {
  const auto registry = open();
  ASSERT_TRUE(registry->insert(example("a1")));
  const std::string data(1 << 20, 'x');
  for (const char* id : {"c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8"})
    ASSERT_TRUE(registry->add_checkpoint(id_of("a1"), {id, {}, "abc", time_now(), data.size(), data}, 10));
  const auto before = bytes_read();
  const auto list = registry->checkpoints(id_of("a1"), 10);
  EXPECT_LT(bytes_read() - before, 1u << 20);
  ASSERT_EQ(list->size(), 8u);
  EXPECT_EQ(list->back().bytes, data.size());
  EXPECT_EQ(list->back().snapshot, "abc");
}

TEST_F(RegistryTest, DropsCheckpointsWithoutWritingAsMuchAgain) {
  const auto registry = open();
  ASSERT_TRUE(registry->insert(example("a1")));
  const std::string data(1 << 20, 'x');
  for (const char* id : {"c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8"})
    ASSERT_TRUE(registry->add_checkpoint(id_of("a1"), {id, {}, {}, time_now(), data.size(), data}, 10));
  ASSERT_EQ(*registry->remove_checkpoints(id_of("a1")), 8);
  EXPECT_LT(std::filesystem::file_size(file_.string() + "-wal"), 2u << 20);
}

TEST_F(RegistryTest, GivesBackWhatALargeChangeTookOfItsLog) {
  const auto registry = open();
  ASSERT_TRUE(registry->insert(example("a1")));
  const std::string data(8 << 20, 'x');
  ASSERT_TRUE(registry->add_checkpoint(id_of("a1"), {"c1", {}, {}, time_now(), data.size(), data}, 10));
  ASSERT_TRUE(registry->update(example("a1")));
  EXPECT_LE(std::filesystem::file_size(file_.string() + "-wal"), 1u << 20);
}

TEST_F(RegistryTest, FindsAnAgentByItsName) {
  const auto registry = open();
  ASSERT_TRUE(registry->add_agent({"a", "root", 1000, id_of("s1")}));
  ASSERT_TRUE(registry->add_agent({"b", "a", 1000, id_of("s1")}));
  ASSERT_TRUE(registry->add_agent({"b", "root", 2000, id_of("s2")}));
  EXPECT_EQ((*registry->agent(1000, "b"))->parent, "a");
  EXPECT_EQ((*registry->agent(2000, "b"))->session, id_of("s2"));
  EXPECT_FALSE(*registry->agent(2000, "a"));
  EXPECT_FALSE(*registry->agent(1000, "c"));
}

TEST_F(RegistryTest, TellsTheAgentsOfWholeSessions) {
  const auto registry = open();
  for (const char* session : {"s3", "s1", "s2"})
    for (const char* name : {"x", "y", "z"})
      ASSERT_TRUE(registry->add_agent({std::string(session) + name, "root",
                                       *session == 's' && session[1] == '2' ? 2u : 1u, id_of(session)}));
  const auto told = [&](std::optional<uid_t> owner, const std::string& from, std::size_t enough) {
    const auto agents = registry->agents(owner, from, enough);
    std::string text;
    for (const auto& agent : agents->list) text += agent.agent + " ";
    return text + (agents->truncated ? "..." : "");
  };
  EXPECT_EQ(told({}, "", 100), "s1x s1y s1z s2x s2y s2z s3x s3y s3z ");
  EXPECT_EQ(told({}, "", 1), "s1x s1y s1z ...");
  EXPECT_EQ(told({}, "", 4), "s1x s1y s1z s2x s2y s2z ...");
  EXPECT_EQ(told({}, "s2", 3), "s2x s2y s2z ...");
  EXPECT_EQ(told({}, "s3", 1), "s3x s3y s3z ");
  EXPECT_EQ(told(1, "", 4), "s1x s1y s1z s3x s3y s3z ");
  EXPECT_EQ(told(2, "s21", 4), "");
  EXPECT_THAT(*registry->children_of({"root", "", 2, id_of("s2")}),
              ::testing::ElementsAre("s2x", "s2y", "s2z"));
  ASSERT_TRUE(registry->add_agent({"s1x", "root", 3, id_of("s4")}));
  EXPECT_EQ(registry->agents_named("s1x")->size(), 2u);
  EXPECT_EQ(registry->agents_named("s1y")->size(), 1u);
  EXPECT_TRUE(registry->agents_named("none")->empty());
}

TEST_F(RegistryTest, KeepsSoManyAgentsOfASession) {
  const auto registry = open();
  const auto add = [&](const std::string& name, const char* session) {
    return registry->add_agent({name, "a0", 1000, id_of(session)});
  };
  for (std::size_t i = 0; i < Registry::kMostAgents; ++i) ASSERT_TRUE(add("a" + std::to_string(i), "s1"));
  const auto refused = add("more", "s1");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kQuotaExceeded);
  EXPECT_THAT(refused.error().message, ::testing::HasSubstr("1000"));
  EXPECT_FALSE(*registry->agent(1000, "more"));
  EXPECT_TRUE(add("more", "s2")) << "of another session";
}

TEST_F(RegistryTest, ForgetsTheOldestWorkdirsOfAUser) {
  const auto registry = open();
  const auto bind = [&](uid_t owner, std::size_t task, std::int64_t last_used) {
    ASSERT_TRUE(registry->remember_workdir({owner,
                                            std::to_string(task),
                                            "d",
                                            "/p" + std::to_string(task),
                                            WorkdirPolicy::kExisting,
                                            {},
                                            {},
                                            last_used}));
  };
  const auto knows = [&](uid_t owner, std::size_t task) {
    return registry->workdir_of_task(owner, std::to_string(task), "d")->has_value();
  };
  constexpr std::size_t kMost = Registry::kMostWorkdirs;
  bind(2, 0, 1);
  for (std::size_t task = 0; task < kMost; ++task) bind(1, task, 5);
  EXPECT_EQ(registry->recent_workdirs(1, 2 * kMost)->size(), kMost);
  bind(1, 0, 6);  // used again
  bind(1, kMost, 6);
  EXPECT_EQ(registry->recent_workdirs(1, 2 * kMost)->size(), kMost);
  EXPECT_TRUE(knows(1, 0));
  EXPECT_FALSE(knows(1, 1)) << "the oldest";
  EXPECT_TRUE(knows(1, 2));
  EXPECT_TRUE(knows(1, kMost));
  EXPECT_TRUE(knows(2, 0)) << "another user's";
}

TEST_F(RegistryTest, RemembersWorkdirs) {
  const auto registry = open();
  ASSERT_TRUE(registry->remember_workdir({1, "t", "d", "/p", WorkdirPolicy::kExisting, {}, {}, 5}));
  ASSERT_TRUE(registry->remember_workdir({1, "t", "d", "/q", WorkdirPolicy::kRepoBound, "x/y", "main", 6}));
  ASSERT_TRUE(registry->remember_workdir({1, "u", {}, "/p", WorkdirPolicy::kExisting, {}, {}, 7}));
  EXPECT_EQ((*registry->workdir_of_task(1, "t", "d"))->path, "/q");
  EXPECT_FALSE(*registry->workdir_of_task(2, "t", "d"));
  EXPECT_EQ((*registry->workdir_of_branch(1, "x/y", "main", "d"))->path, "/q");
  EXPECT_FALSE(*registry->workdir_of_branch(1, "x/y", "other", "d"));
  EXPECT_EQ(registry->recent_workdirs(1, 10)->front().path, "/p");
}

TEST_F(RegistryTest, BringsTheSeedsDatabaseUpToDate) {
  run_sql(
      "CREATE TABLE sessions (id INTEGER PRIMARY KEY AUTOINCREMENT, thread_id TEXT UNIQUE NOT NULL, user_id "
      "TEXT, "
      "created_at TEXT NOT NULL, updated_at TEXT NOT NULL, metadata TEXT);"
      "CREATE TABLE checkpoints (id INTEGER PRIMARY KEY AUTOINCREMENT, thread_id TEXT NOT NULL, "
      "checkpoint_id TEXT NOT "
      "NULL, parent_checkpoint_id TEXT, checkpoint_data BLOB NOT NULL, created_at TEXT NOT NULL);"
      "INSERT INTO sessions VALUES (1, 'old', 'bob', '2025-01-02T03:04:05.678901+00:00', "
      "'2025-06-07T08:09:10+00:00', '{\"turn_count\": 10, \"last\": \"x\"}');"
      "INSERT INTO checkpoints VALUES (1, 'old', 'c', NULL, '{}', '2025-01-02T03:04:05.678901+00:00');");
  const auto registry = open();
  const auto loaded = registry->load();
  ASSERT_EQ(loaded->sessions.size(), 1u);
  EXPECT_EQ(loaded->sessions.front().state, SessionPhase::kUnmounted);
  EXPECT_FALSE(loaded->sessions.front().forked_from);
  EXPECT_EQ(time_text(loaded->sessions.front().created_at), "2025-01-02T03:04:05.678Z");
  EXPECT_EQ(registry->checkpoint(id_of("old"), "c")->data, "{}");
  EXPECT_EQ(time_text(from_milliseconds(loaded->sessions.front().last_used)), "2025-06-07T08:09:10.000Z");
  const std::map<std::string, std::string> metadata{{"turn_count", "10"}, {"last", "x"}};
  EXPECT_EQ(loaded->sessions.front().labels, metadata);
  ASSERT_TRUE(registry->update(loaded->sessions.front()));
  EXPECT_EQ(registry->load()->sessions.front().labels, metadata);
  const auto stored = [&] {
    std::string found;
    run_sql("SELECT user_id || ' ' || metadata FROM sessions", &found);
    return found;
  };
  EXPECT_EQ(stored(), "bob {\"turn_count\": 10, \"last\": \"x\"}");
  auto relabelled = loaded->sessions.front();
  relabelled.labels["last"] = "y";
  ASSERT_TRUE(registry->update(relabelled));
  EXPECT_EQ(stored(), "bob {\"last\":\"y\",\"turn_count\":\"10\"}");
}

TEST_F(RegistryTest, LeavesRowsOutThatMakeNoSense) {
  ASSERT_TRUE(open()->insert(example("good")));
  run_sql(
      "INSERT INTO sessions (thread_id, created_at, updated_at) VALUES ('../../etc', '2025-01-02T03:04:05Z', "
      "'');"
      "INSERT INTO sessions (thread_id, created_at, updated_at) VALUES ('badtime', 'yesterday', '');"
      "INSERT INTO sessions (thread_id, created_at, updated_at, state) VALUES ('badstate', "
      "'2025-01-02T03:04:05Z', '', 'x');"
      "INSERT INTO sessions (thread_id, created_at, updated_at, owner_uid) VALUES ('badowner', "
      "'2025-01-02T03:04:05Z', '', -1);"
      "INSERT INTO sessions (thread_id, created_at, updated_at, metadata, skills) VALUES ('odd', "
      "'2025-01-02T03:04:05Z', '', "
      "'[[[', x'FF00');");
  const auto loaded = open()->load();
  EXPECT_EQ(loaded->sessions.size(), 2u);
  ASSERT_EQ(loaded->unreadable.size(), 4u);
  EXPECT_FALSE(loaded->unreadable[0].id);
  EXPECT_EQ(loaded->unreadable[1].id->text(), "badtime");
}

TEST_F(RegistryTest, AddsAgentsOnceAnotherProgramHasWritten) {
  const auto registry = open();
  ASSERT_TRUE(registry->insert(example("s")));
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open(file_.c_str(), &other), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(other, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr), SQLITE_OK);
  auto added = std::async(std::launch::async, [&] {
    return registry->add_agent({"a", "root", 1000, id_of("s")});
  });
  EXPECT_EQ(added.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  EXPECT_EQ(sqlite3_exec(other, "COMMIT", nullptr, nullptr, nullptr), SQLITE_OK);
  EXPECT_TRUE(added.get());
  sqlite3_close(other);
}

TEST_F(RegistryTest, PassesOverMetadataThatIsNestedDeeperThanTheStack) {
  ASSERT_TRUE(open()->insert(example("deep")));
  const std::string nested = std::string(200'000, '[') + std::string(200'000, ']');
  run_sql(("UPDATE sessions SET last_used = 0, updated_at = '2099-01-01T00:00:00Z', metadata = '{\"a\":" +
           nested + ",\"b\":true}'")
              .c_str());
  const auto loaded = open()->load();
  ASSERT_EQ(loaded->sessions.size(), 1u);
  EXPECT_EQ(loaded->sessions.front().labels, (std::map<std::string, std::string>{{"b", "true"}}));
  EXPECT_LE(loaded->sessions.front().last_used, to_milliseconds(time_now()));
}

TEST_F(RegistryTest, IsClosedToOthersWhoeverMadeIt) {
  ASSERT_TRUE(open());
  std::filesystem::permissions(file_, std::filesystem::perms(0644));
  ASSERT_TRUE(open());
  EXPECT_EQ(test::mode_of(file_), 0600u);
}

TEST_F(RegistryTest, RefusesGarbageUntouched) {
  std::ofstream(file_) << std::string(8192, 'x');
  const auto before = bytes();
  EXPECT_EQ(refusal().code, Code::kCorrupt);
  EXPECT_EQ(bytes(), before);
}

TEST_F(RegistryTest, RefusesADamagedFileUntouched) {
  {
    const auto registry = open();
    for (int i = 0; i < 200; ++i) ASSERT_TRUE(registry->insert(example(("s" + std::to_string(i)).c_str())));
  }
  auto damaged = bytes();
  ASSERT_GT(damaged.size(), 20000u);
  for (std::size_t i = 8192; i < 16384; ++i) damaged[i] = static_cast<char>(i * 31);
  std::ofstream(file_, std::ios::binary) << damaged;
  EXPECT_EQ(refusal().code, Code::kCorrupt);
  EXPECT_EQ(bytes(), damaged);
}

TEST_F(RegistryTest, RefusesANewerVersionUntouched) {
  ASSERT_TRUE(open()->insert(example("a1")));
  run_sql("PRAGMA user_version = 999;");
  const auto before = bytes();
  const auto error = refusal();
  EXPECT_EQ(error.code, Code::kCorrupt);
  EXPECT_THAT(error.message, ::testing::HasSubstr("newer"));
  EXPECT_EQ(bytes(), before);
}

/// What was written since the last checkpoint is in the log alone.
TEST_F(RegistryTest, IsNotBegunAnewBesideTheLogOfAnother) {
  const auto log = std::filesystem::path(file_.string() + "-wal");
  open();
  test::ChildProcess killed([this](test::ChildProcess& self) {
    const auto registry = open();
    EXPECT_TRUE(registry && registry->insert(example("late")));
    self.signal();
    self.wait();
    return 0;
  });
  const bool is_written = killed.wait();
  ASSERT_TRUE(is_written);
  killed.kill(SIGKILL);
  ASSERT_GT(std::filesystem::file_size(log), 0u);
  std::filesystem::rename(file_, folder_ / "away");
  const Error error = refusal();
  EXPECT_EQ(error.code, Code::kCorrupt);
  EXPECT_NE(error.message.find("move that away as well"), std::string::npos) << error.message;
  std::filesystem::rename(folder_ / "away", file_);
  const auto registry = open();
  ASSERT_TRUE(registry);
  EXPECT_EQ(registry->load()->sessions.size(), 1u);
}

TEST_F(RegistryTest, IsOpenedWhileSomebodyElseWritesToIt) {
  ASSERT_TRUE(open()->insert(example("a1")));
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open(file_.c_str(), &other), SQLITE_OK);
  const auto run = [&](const char* sql) { return sqlite3_exec(other, sql, nullptr, nullptr, nullptr); };
  EXPECT_EQ(run("BEGIN IMMEDIATE; UPDATE sessions SET agent = 'other'"), SQLITE_OK);
  if (const auto registry = open()) {
    EXPECT_EQ(registry->load()->sessions.at(0).agent, "a1");
    EXPECT_EQ(run("COMMIT"), SQLITE_OK);
    EXPECT_TRUE(registry->insert(example("a2")));
  }
  sqlite3_close(other);
  const auto loaded = open()->load();
  ASSERT_EQ(loaded->sessions.size(), 2u);
  EXPECT_EQ(loaded->sessions.front().agent, "other");
}

TEST_F(RegistryTest, IsRootsAlone) {
  open();
  EXPECT_EQ(std::filesystem::status(file_).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

/// Which counts room as free that is too little for another file.
TEST_F(RegistryTest, AFullXfsIsToldAsFull) {
  test::LoopDisk disk("xfs", "300M");
  if (const auto why_not = disk.mount_at(folder_); !why_not.empty()) GTEST_SKIP() << why_not;
  open();
  const std::string much(1 << 20, 'm');
  FileDescriptor filler;
  for (int i = 0; filler || i == 0; ++i) {
    filler = FileDescriptor(::open((folder_ / std::to_string(i)).c_str(), O_WRONLY | O_CREAT | O_EXCL, 0600));
    while (filler && ::write(filler.get(), much.data(), much.size()) > 0) {
    }
  }
  EXPECT_EQ(errno, ENOSPC);
  EXPECT_EQ(refusal().code, Code::kNoSpace) << refusal().message;
}

}  // namespace
}  // namespace okcvm::daemon
