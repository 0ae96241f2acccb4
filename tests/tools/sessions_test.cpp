// What Sessions promises when the registry refuses, or when two requests meet.

#include "tools/daemon/sessions/sessions.h"

#include <gmock/gmock.h>
#include <sqlite3.h>

#include <atomic>
#include <future>
#include <latch>
#include <thread>
#include <utility>

#include "tests/support/file_io.h"
#include "tests/support/session.h"
#include "tests/support/unserved_mount.h"
#include "tests/tools/fake_mounts.h"
#include "tools/daemon/host/clock.h"

namespace okcvm::test {
namespace {

using daemon::SessionPhase;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::chrono::hours kWeek{7 * 24};

class Sessions : public SessionsOnFakes {
 protected:
  /// Nobody used them for years, says the registry, and so does this daemon.
  void let_all_age() {
    run_sql("UPDATE sessions SET last_used = 1600000000000");
    start();
  }
  daemon::Session& found(const std::string& id) { return **sessions_->find(root_, id); }
};

TEST_F(Sessions, AreAsOldAsTheirLastUseInEveryRowThatIsWritten) {
  create("s");
  create("labelled");
  let_all_age();
  const auto now = daemon::to_milliseconds(daemon::time_now());
  for (const char* id : {"s", "labelled"}) found(id).touch();
  EXPECT_TRUE(sessions_->unmount(found("s"), false));
  EXPECT_TRUE(sessions_->change_labels(found("labelled"), [](const auto&) {
    return daemon::Sessions::Labels{{"a", "b"}};
  }));
  for (const char* id : {"s", "labelled"}) EXPECT_GE(row(id)->last_used, now);
  start();
  EXPECT_THAT(clean_unused_since(kWeek).removed, IsEmpty());
}

TEST_F(Sessions, AreCleanedUntilItIsGivenUp) {
  for (const char* id : {"a", "b", "c"}) create(id);
  let_all_age();
  EXPECT_THAT(clean_unused_since(kWeek, 2).removed, SizeIs(2));
  EXPECT_THAT(clean_unused_since(kWeek).removed, SizeIs(1));
}

TEST_F(Sessions, AreNotCleanedWhenSomebodyUsesThemMeanwhile) {
  create("s");
  let_all_age();
  // Looked at to put them in order, to see their age, and whether files are open.
  int looks = 0;
  mounts_.at_statistics = [&] {
    if (++looks == 3) found("s").touch();
  };
  const auto cleaned = clean_unused_since(kWeek);
  EXPECT_GE(looks, 3);
  EXPECT_THAT(cleaned.removed, IsEmpty());
  EXPECT_TRUE(sessions_->find(root_, "s"));
  EXPECT_TRUE(mounts_.shown("s"));
}

TEST_F(Sessions, ThatCannotBeCleanedAreMountedStill) {
  create("s");
  let_all_age();
  refuse_changes();
  EXPECT_THAT(clean_unused_since(kWeek).skipped, SizeIs(1));
  EXPECT_TRUE(mounts_.shown("s"));
  accept_changes();
  EXPECT_THAT(clean_unused_since(kWeek).removed, ElementsAre("s"));
  EXPECT_FALSE(mounts_.shown("s"));
}

TEST_F(Sessions, AreTakenOverOnceTheHostHasRoomForThem) {
  create("s");
  int tries = 0;
  mounts_.at_take_over = [&]() -> Result<void> {
    return ++tries < 3 ? Result<void>(fail(Code::kInternal, "no thread could be started")) : Result<void>();
  };
  mounts_.at_mount = [] { return Result<void>(fail(Code::kBusy, "its files are open")); };
  start_with_kept("s");
  EXPECT_EQ(tries, 3);
  EXPECT_TRUE(mounts_.shown("s"));
  EXPECT_THAT(sessions_->affected(), IsEmpty());
}

TEST_F(Sessions, AreNotAffectedWhereTheLastDaemonHadJustUnmountedThem) {
  create("s");
  mounts_.at_take_over = [] { return Result<void>(fail(Code::kNotFound, "it is not mounted any more")); };
  start_with_kept("s");
  EXPECT_TRUE(mounts_.shown("s"));
  EXPECT_THAT(sessions_->affected(), IsEmpty());
}

TEST_F(Sessions, ThatCouldNotBeMountedAtTheStartAreTriedAgain) {
  create("s");
  mounts_.at_mount = [] { return Result<void>(fail(Code::kInternal, "no thread could be started")); };
  start();
  sessions_->try_again();
  EXPECT_FALSE(mounts_.shown("s"));
  mounts_.at_mount = [] { return Result<void>(); };
  sessions_->try_again();
  EXPECT_TRUE(mounts_.shown("s"));
  EXPECT_TRUE(sessions_->unmount(found("s"), false));
  sessions_->try_again();
  EXPECT_FALSE(mounts_.shown("s"));
}

TEST_F(Sessions, AreMountedInTheRegistryToo) {
  auto& session = create("s");
  EXPECT_TRUE(sessions_->unmount(session, false));
  refuse_changes();
  EXPECT_FALSE(sessions_->mount(session));
  EXPECT_FALSE(mounts_.shown("s"));
  accept_changes();
  EXPECT_TRUE(sessions_->mount(session));
  EXPECT_EQ(row("s")->state, SessionPhase::kMounted);
}

TEST_F(Sessions, ThatCannotBeMountedAreNotInTheRegistryEither) {
  auto& session = create("s");
  EXPECT_TRUE(sessions_->unmount(session, false));
  mounts_.at_mount = [] { return Result<void>(fail(Code::kInternal, "no thread could be started")); };
  EXPECT_FALSE(sessions_->mount(session));
  EXPECT_EQ(row("s")->state, SessionPhase::kUnmounted);
}

TEST_F(Sessions, AreMountedStillWhenThatTheyAreNotCannotBeNoted) {
  auto& session = create("s");
  for (const bool force : {false, true}) {
    const auto mount = session.mount_object();
    refuse_changes();
    EXPECT_FALSE(sessions_->unmount(session, force));
    EXPECT_TRUE(mounts_.shown("s"));
    if (force) {
      EXPECT_EQ(session.mount_object(), mount) << "what is open in it has to stay open";
    }
    accept_changes();
  }
  EXPECT_EQ(row("s")->state, SessionPhase::kMounted);
  EXPECT_TRUE(sessions_->unmount(session, true));
  EXPECT_EQ(row("s")->state, SessionPhase::kUnmounted);
}

TEST_F(Sessions, AreAffectedNoLongerOnceThatIsMended) {
  create("s");
  mounts_.at_mount = [] { return Result<void>(fail(Code::kInternal, "no thread could be started")); };
  start();
  EXPECT_THAT(sessions_->affected(), SizeIs(1));
  sessions_->try_again();
  EXPECT_THAT(sessions_->affected(), SizeIs(1));
  mounts_.at_mount = [] { return Result<void>(); };
  sessions_->try_again();
  EXPECT_THAT(sessions_->affected(), IsEmpty());
}

TEST_F(Sessions, WhoseRowIsDamagedAreToldOf) {
  create("s");
  run_sql("UPDATE sessions SET created_at = 'yesterday'");
  start();
  const auto affected = sessions_->affected();
  ASSERT_THAT(affected, SizeIs(1));
  EXPECT_EQ(affected[0].id.text(), "s");
  EXPECT_THAT(affected[0].reason, ::testing::HasSubstr("invalid time"));
  daemon::CreateRequest same;
  same.id = "s";
  EXPECT_FALSE(sessions_->create(root_, same)) << "it may be somebody's";
  EXPECT_THAT(sessions_->affected(), SizeIs(1));
  const daemon::Peer other{1, 1000, 1000, {}};
  EXPECT_FALSE(*sessions_->remove(other, "s"));
  EXPECT_TRUE(*sessions_->remove(root_, "s"));
  EXPECT_THAT(sessions_->affected(), IsEmpty());
  EXPECT_TRUE(sessions_->create(root_, same));
}

TEST_F(Sessions, ThatWereToBeUnmountedByADaemonThatDiedAreTakenOverForThat) {
  create("s");
  run_sql("UPDATE sessions SET state = 'unmounted'");
  int takings = 0, endings = 0;
  mounts_.at_take_over = [&] {
    ++takings;
    return Result<void>();
  };
  mounts_.at_unmount = [&] { ++endings; };
  start_with_kept("s");
  EXPECT_EQ(takings, 1);
  EXPECT_EQ(endings, 1);
  EXPECT_FALSE(mounts_.shown("s"));
  EXPECT_EQ(row("s")->state, SessionPhase::kUnmounted);
}

TEST_F(Sessions, WhoseWorkdirIsNotBoundAreAffectedUntilItIs) {
  const auto workdir = top_ / "projects/p";
  std::filesystem::create_directory(workdir);
  daemon::CreateRequest request;
  request.id = "s";
  request.workdir.path = workdir;
  ASSERT_TRUE(sessions_->create(root_, request));
  std::filesystem::rename(workdir, top_ / "projects/q");
  start();
  EXPECT_THAT(sessions_->affected(), SizeIs(1));
  EXPECT_TRUE(sessions_->unmount(found("s"), false));
  EXPECT_THAT(sessions_->affected(), IsEmpty());
  EXPECT_TRUE(sessions_->mount(found("s")));
  EXPECT_THAT(sessions_->affected(), SizeIs(1));
  std::filesystem::rename(top_ / "projects/q", workdir);
  EXPECT_TRUE(sessions_->unmount(found("s"), false));
  EXPECT_TRUE(sessions_->mount(found("s")));
  EXPECT_THAT(sessions_->affected(), IsEmpty());
}

TEST_F(Sessions, ShowNoSkillThatWasRefused) {
  std::filesystem::create_directory(top_ / "skills/tool");
  auto& session = create("s");
  const auto metadata = mounts_.shown("s")->metadata;
  refuse_changes();
  EXPECT_FALSE(sessions_->load_skill(session, "tool"));
  EXPECT_THAT(mounts_.shown("s")->skills, IsEmpty());
  EXPECT_EQ(mounts_.shown("s")->metadata, metadata);
  accept_changes();
  const auto loaded = sessions_->load_skill(session, "tool");
  EXPECT_TRUE(loaded && *loaded);
  EXPECT_THAT(mounts_.shown("s")->skills, ElementsAre("tool"));
  EXPECT_THAT(row("s")->skills, ElementsAre("tool"));
}

TEST_F(Sessions, ShowASkillStillWhoseEndWasRefused) {
  std::filesystem::create_directory(top_ / "skills/tool");
  auto& session = create("s");
  ASSERT_TRUE(sessions_->load_skill(session, "tool"));
  const auto metadata = mounts_.shown("s")->metadata;
  refuse_changes();
  EXPECT_FALSE(sessions_->unload_skill(session, "tool"));
  EXPECT_THAT(mounts_.shown("s")->skills, ElementsAre("tool"));
  EXPECT_EQ(mounts_.shown("s")->metadata, metadata);
  accept_changes();
  EXPECT_TRUE(sessions_->unload_skill(session, "tool"));
  EXPECT_THAT(mounts_.shown("s")->skills, IsEmpty());
  EXPECT_NE(mounts_.shown("s")->metadata, metadata);
}

TEST_F(Sessions, KeepTheirWorkdirAndMountWhenASwitchIsRefused) {
  auto& session = create("s");
  daemon::WorkdirRequest request;
  request.device_id = "d";
  const auto expect_as_before = [&] {
    EXPECT_FALSE(sessions_->switch_workdir(session, request, true));
    EXPECT_TRUE(mounts_.shown("s"));
    EXPECT_EQ(session.record().device_id, std::nullopt);
    EXPECT_EQ(row("s")->device_id, std::nullopt);
  };
  refuse_changes();
  const auto mount = session.mount_object();
  expect_as_before();
  EXPECT_EQ(session.mount_object(), mount) << "what is open in it has to stay open";
  accept_changes();
  bool is_first = true;
  mounts_.at_mount = [&]() -> Result<void> {
    if (std::exchange(is_first, false)) return fail(Code::kBusy, "the mount point is in use");
    return {};
  };
  expect_as_before();
  EXPECT_TRUE(sessions_->switch_workdir(session, request, true));
  EXPECT_EQ(row("s")->device_id, "d");
}

TEST_F(Sessions, WithTheSameWorkdirAreRememberedOnce) {
  for (const char* name : {"p", "q"}) std::filesystem::create_directory(top_ / "projects" / name);
  const auto bind = [&](const char* project, std::optional<std::string> task,
                        std::optional<std::string> device) {
    daemon::CreateRequest request;
    request.workdir.path = top_ / "projects" / project;
    request.workdir.task = std::move(task);
    request.workdir.device_id = std::move(device);
    const auto created = sessions_->create(root_, std::move(request));
    ASSERT_TRUE(created) << created.error().message;
    EXPECT_EQ(created->session->record().workdir, (top_ / "projects" / project).string());
  };
  for (int i = 0; i < 3; ++i) {
    bind("p", {}, {});
    bind("q", {}, {});
    bind("p", "a task", {});
    bind("q", "a task", "a device");
  }
  run_sql("CREATE TABLE found (rows CHECK (rows = 4)); INSERT INTO found SELECT count(*) FROM workdirs");
  const auto recent = sessions_->registry().recent_workdirs(0, 10);
  ASSERT_TRUE(recent && recent->size() == 2u);
  EXPECT_EQ(sessions_->registry().workdir_of_task(0, "a task", "a device").value()->path,
            (top_ / "projects/q").string());
}

TEST_F(Sessions, OfAnAgentAreMadeOnce) {
  constexpr int kRounds = 100;
  for (int round = 0; round < kRounds; ++round) {
    const auto agent = "lead" + std::to_string(round);
    std::latch ready(2);
    const auto make = [&] {
      ready.arrive_and_wait();
      return create_agent(agent);
    };
    auto other = std::async(std::launch::async, make);
    const auto mine = make();
    const auto others = other.get();
    ASSERT_TRUE(mine) << mine.error().message;
    ASSERT_TRUE(others) << others.error().message;
    EXPECT_NE(mine->is_new, others->is_new);
    EXPECT_EQ(mine->session, others->session);
  }
  EXPECT_EQ(sessions_->count(), static_cast<std::size_t>(kRounds));
}

TEST_F(Sessions, OfAnAgentAreFoundOrMadeWhileTheyAreDeleted) {
  std::atomic<bool> is_done{false};
  const auto make = [&] {
    for (int i = 0; i < 100; ++i) {
      const auto found = create_agent("lead");
      EXPECT_TRUE(found) << found.error().message;
    }
  };
  auto removed = std::async(std::launch::async, [&] {
    while (!is_done)
      if (const auto agent = sessions_->agent(root_, "lead", {}); agent && agent->session)
        static_cast<void>(sessions_->remove(root_, agent->session->id().text()));
  });
  std::vector<std::future<void>> makers;
  for (int i = 0; i < 3; ++i) makers.push_back(std::async(std::launch::async, make));
  for (auto& maker : makers) maker.get();
  is_done = true;
  removed.get();
}

/// Who follows the events would take the next one for deleted.
TEST_F(Sessions, AreToldOfAsDeletedBeforeOthersGetTheirId) {
  create("s");
  std::vector<std::string> told;
  std::future<void> another;
  const auto listening = events_.listen([&](const daemon::Event& event) {
    if (event.data.find("deleted") != event.data.npos) {
      another = std::async(std::launch::async, [&] { create("s"); });
      another.wait_for(std::chrono::milliseconds(300));
    }
    told.push_back(event.data);
  });
  ASSERT_TRUE(sessions_->remove(root_, "s"));
  another.get();
  ASSERT_THAT(told, SizeIs(2));
  EXPECT_THAT(told[0], ::testing::HasSubstr("deleted"));
  EXPECT_THAT(told[1], ::testing::HasSubstr("created"));
}

TEST_F(Sessions, ThatAreGoneAreNoPrefixesOfOthers) {
  create("task-1");
  create("task-10");
  ASSERT_TRUE(*sessions_->remove(root_, "task-1"));
  const auto late = sessions_->find(root_, "task-1");
  ASSERT_FALSE(late) << (*late)->id().text();
  EXPECT_EQ(late.error().code, Code::kNotFound);
  EXPECT_EQ(found("task").id().text(), "task-10");
  create("task-1");
  EXPECT_EQ(found("task-1").id().text(), "task-1");
}

TEST_F(Sessions, AreBroughtBackBeforeWhatWasDeletedIsRemoved) {
  if (const auto reason = why_no_mounts(); !reason.empty()) GTEST_SKIP() << reason;
  for (const char* id : {"s", "deleted"}) create(id);
  run_sql("UPDATE sessions SET state = 'deleting' WHERE thread_id = 'deleted'");
  const auto bin = top_ / "state/discarded", workspace = top_ / "state/workspaces/deleted";
  for (const auto& folder : {bin / "left.1.1", bin / "small.1.2", bin / "nobody's", workspace / "outputs"})
    std::filesystem::create_directories(folder);
  {
    // To remove these takes for ever.
    UnservedMount first(bin / "left.1.1"), second(workspace / "outputs");
    auto started = std::async(std::launch::async, [&] { start(); });
    const bool is_back = started.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
    for (auto* mount : {&first, &second}) mount->end();
    started.get();
    ASSERT_TRUE(is_back);
    EXPECT_TRUE(mounts_.shown("s"));
    EXPECT_FALSE(row("deleted"));
    create("deleted");
    while (there_is(bin / "small.1.2")) std::this_thread::yield();
    EXPECT_TRUE(there_is(bin / "nobody's"));
    for (const auto& entry : std::filesystem::directory_iterator(bin))
      if (entry.path().filename().string().starts_with("deleted.")) std::filesystem::rename(entry, workspace);
  }
}

std::atomic<std::promise<void>*> agents_read;

/// Keeps the promise when agents have been read next, by any connection that is opened while it lives.
class AgentsRead final {
 public:
  AgentsRead() { sqlite3_auto_extension(reinterpret_cast<void (*)()>(&AgentsRead::watch)); }
  ~AgentsRead() { sqlite3_cancel_auto_extension(reinterpret_cast<void (*)()>(&AgentsRead::watch)); }

 private:
  static int watch(sqlite3* connection, char** /*error*/, const void* /*routines*/) {
    return sqlite3_trace_v2(connection, SQLITE_TRACE_PROFILE, &AgentsRead::note, nullptr);
  }
  static int note(unsigned /*kind*/, void* /*context*/, void* statement, void* /*nanoseconds*/) {
    if (std::string_view(sqlite3_sql(static_cast<sqlite3_stmt*>(statement))).starts_with("SELECT agent,"))
      if (auto* promise = agents_read.exchange(nullptr)) promise->set_value();
    return 0;
  }
};

/// A request that is held up in the middle, until the next one has read the agents.
class SessionsOfAgents : public Sessions {
 protected:
  void hold_up() {
    reached_.set_value();
    read_.get_future().wait();
  }
  void wait_until_held_up() {
    reached_.get_future().wait();
    agents_read = &read_;
  }

 private:
  const AgentsRead watch_;
  std::promise<void> reached_, read_;
};

TEST_F(SessionsOfAgents, AreWaitedForUntilTheyAreMounted) {
  mounts_.at_mount = [&] {
    hold_up();
    return Result<void>();
  };
  auto first = std::async(std::launch::async, [&] { return create_agent("lead"); });
  wait_until_held_up();
  const auto second = create_agent("lead");
  ASSERT_TRUE(second) << second.error().message;
  EXPECT_FALSE(second->is_new);
  EXPECT_NE(second->session->mount(), nullptr);
  EXPECT_TRUE(first.get()->is_new);
}

TEST_F(SessionsOfAgents, ThatAreBeingDeletedAreNotShared) {
  ASSERT_TRUE(create_agent("lead"));
  mounts_.at_unmount = [&] { hold_up(); };
  auto removed = std::async(std::launch::async, [&] { return sessions_->remove(root_, "lead"); });
  wait_until_held_up();
  const auto child = create_agent("child", "lead");
  EXPECT_TRUE(removed.get());
  mounts_.at_unmount = [] {};
  ASSERT_FALSE(child);
  EXPECT_EQ(child.error().code, Code::kNotFound);
  EXPECT_THAT(sessions_->registry().agents(std::nullopt, "", 10)->list, IsEmpty());
  ASSERT_TRUE(create_agent("lead"));
  EXPECT_TRUE(create_agent("child", "lead"));
}

TEST_F(SessionsOfAgents, ThatAreBeingDeletedAreMadeAnew) {
  ASSERT_TRUE(create_agent("lead"));
  mounts_.at_unmount = [&] { hold_up(); };
  auto removed = std::async(std::launch::async, [&] { return sessions_->remove(root_, "lead"); });
  wait_until_held_up();
  const auto anew = create_agent("lead");
  EXPECT_TRUE(removed.get());
  mounts_.at_unmount = [] {};
  ASSERT_TRUE(anew) << anew.error().message;
  EXPECT_TRUE(anew->is_new);
  EXPECT_EQ(anew->session.get(), &found("lead"));
}

daemon::Checkpoint checkpoint(const char* id, std::optional<std::string> parent = {}) {
  daemon::Checkpoint checkpoint;
  checkpoint.id = id;
  checkpoint.parent = std::move(parent);
  checkpoint.data = "{}";
  return checkpoint;
}

TEST_F(Sessions, HaveNoHeadOrParentThatIsNoCheckpoint) {
  auto& session = create("s");
  EXPECT_EQ(sessions_->set_head(session, "dropped").error().code, Code::kNotFound);
  EXPECT_EQ(row("s")->head_checkpoint, std::nullopt);
  auto orphan = checkpoint("c", "dropped");
  EXPECT_EQ(sessions_->add_checkpoint(session, orphan).error().code, Code::kNotFound);
  auto first = checkpoint("1"), second = checkpoint("2"), third = checkpoint("3", "1");
  for (auto* next : {&first, &second, &third}) EXPECT_TRUE(sessions_->add_checkpoint(session, *next));
  EXPECT_EQ(first.parent, std::nullopt);
  EXPECT_EQ(second.parent, "1");
  EXPECT_EQ(third.parent, "1");
  EXPECT_TRUE(sessions_->set_head(session, "2"));
  EXPECT_EQ(row("s")->head_checkpoint, "2");
}

}  // namespace
}  // namespace okcvm::test
