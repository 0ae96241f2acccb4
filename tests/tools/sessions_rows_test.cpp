// What is kept of sessions whose rows in sessions.db are damaged, gone, or cannot be removed.

#include <gmock/gmock.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <nlohmann/json.hpp>

#include "tests/support/unserved_mount.h"
#include "tests/tools/fake_mounts.h"
#include "tools/daemon/routes/handlers.h"
#include "tools/daemon/routes/metrics.h"

namespace okcvm::test {
namespace {

using daemon::SessionPhase;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class SessionRows : public SessionsOnFakes {
 protected:
  void refuse_removals() {
    run_sql("CREATE TRIGGER keep BEFORE DELETE ON sessions BEGIN SELECT RAISE(ABORT, 'refused'); END");
  }
  void accept_removals() { run_sql("DROP TRIGGER keep"); }
};

TEST_F(SessionRows, OfACreationThatFailedAreInViewUntilTheyCanBeRemoved) {
  daemon::CreateRequest request;
  request.id = "s";
  mounts_.at_mount = [&] {
    refuse_removals();
    return Result<void>(fail(Code::kInternal, "no thread could be started"));
  };
  EXPECT_EQ(sessions_->create(root_, request).error().code, Code::kInternal);
  const auto left = sessions_->find(root_, "s");
  ASSERT_TRUE(left);
  EXPECT_EQ((*left)->record().state, SessionPhase::kDeleting);
  EXPECT_EQ(sessions_->mount(**left).error().code, Code::kBusy);
  EXPECT_EQ(sessions_->unmount(**left, true).error().code, Code::kBusy);
  EXPECT_FALSE(sessions_->remove(root_, "s"));
  accept_removals();
  EXPECT_TRUE(*sessions_->remove(root_, "s"));
  EXPECT_FALSE(row("s"));
  mounts_.at_mount = [] { return Result<void>(); };
  EXPECT_TRUE(sessions_->create(root_, request));
}

TEST_F(SessionRows, ThatAreDamagedCanBeRemovedAgainAfterThatFailed) {
  create("s");
  run_sql("UPDATE sessions SET created_at = 'yesterday'");
  start();
  refuse_removals();
  EXPECT_FALSE(sessions_->remove(root_, "s"));
  accept_removals();
  EXPECT_TRUE(*sessions_->remove(root_, "s"));
  EXPECT_FALSE(*sessions_->remove(root_, "s"));
}

TEST_F(SessionRows, ThatAreGoneAreNotTakenForWritten) {
  auto& session = create("s");
  run_sql("DELETE FROM sessions");
  const auto set = sessions_->change_labels(session, [](const auto&) {
    return daemon::Sessions::Labels{{"a", "b"}};
  });
  ASSERT_FALSE(set);
  EXPECT_EQ(set.error().code, Code::kCorrupt);
}

TEST_F(SessionRows, WithASkillThatCannotBeAreMountedWithoutIt) {
  create("s");
  run_sql("UPDATE sessions SET skills = '[\"../x\"]'");
  start();
  EXPECT_TRUE(mounts_.shown("s"));
}

TEST_F(SessionRows, WithASkillThatLeftTheRegistryAreAffectedUntilTheyShowIt) {
  const auto skills = top_ / "skills";
  auto& session = create("s");
  for (const char* skill : {"a", "b"}) {
    std::filesystem::create_directory(skills / skill);
    ASSERT_TRUE(sessions_->load_skill(session, skill));
    std::filesystem::remove(skills / skill);
  }
  EXPECT_THAT(sessions_->affected(), IsEmpty()) << "it shows them still";
  start();
  auto affected = sessions_->affected();
  ASSERT_THAT(affected, SizeIs(1));
  EXPECT_THAT(affected[0].reason, ::testing::HasSubstr("skills a, b"));
  auto& again = **sessions_->find(root_, "s");
  std::filesystem::create_directory(skills / "a");
  sessions_->renew_skills();
  EXPECT_THAT(mounts_.shown("s")->skills, ::testing::ElementsAre("a"));
  affected = sessions_->affected();
  ASSERT_THAT(affected, SizeIs(1));
  EXPECT_THAT(affected[0].reason, ::testing::HasSubstr("skills b"));
  ASSERT_TRUE(sessions_->unmount(again, false));
  EXPECT_THAT(sessions_->affected(), IsEmpty());
  ASSERT_TRUE(sessions_->mount(again));
  EXPECT_THAT(sessions_->affected(), SizeIs(1));
  ASSERT_TRUE(sessions_->unload_skill(again, "b"));
  EXPECT_THAT(sessions_->affected(), IsEmpty());
}

TEST_F(SessionRows, WithAWorkdirWhoseFileSystemDoesNotAnswerAreMountedWithoutIt) {
  const auto workdir = top_ / "projects/p";
  std::filesystem::create_directory(workdir);
  daemon::CreateRequest request;
  request.workdir.path = workdir;
  for (const char* id : {"a", "b"}) {
    request.id = id;
    ASSERT_TRUE(sessions_->create(root_, request));
  }
  UnservedMount hung(workdir);
  auto started = std::async(std::launch::async, [&] { start(); });
  const bool is_back = started.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
  hung.end();
  started.get();
  EXPECT_TRUE(is_back);
  EXPECT_TRUE(mounts_.shown("a"));
  EXPECT_TRUE(mounts_.shown("b"));
  const auto affected = sessions_->affected();
  ASSERT_THAT(affected, SizeIs(2));
  EXPECT_THAT(affected[0].reason, ::testing::HasSubstr("does not answer"));
}

TEST_F(SessionRows, MissingForFilesAreToldOfUntilTheFilesAreGone) {
  const auto files = top_ / "state/workspaces/s";
  std::filesystem::create_directories(files);
  start();
  EXPECT_THAT(sessions_->affected(), SizeIs(1));
  sessions_->try_again();
  EXPECT_THAT(sessions_->affected(), SizeIs(1));
  std::filesystem::remove(files);
  sessions_->try_again();
  EXPECT_THAT(sessions_->affected(), IsEmpty());
}

TEST_F(SessionRows, OfCheckpointsThatAreNestedDeeperThanTheStackAreShownAsText) {
  create("s");
  const std::string nested = std::string(200'000, '[') + std::string(200'000, ']');
  run_sql(
      "INSERT INTO checkpoints (thread_id, checkpoint_id, checkpoint_data, created_at) VALUES ('s', 'c', '" +
      nested + "', '2025-01-02T03:04:05Z')");
  daemon::RequestMetrics metrics;
  daemon::Service service{*sessions_, events_, metrics, 7, 0, {}, {}, {}, {}};
  daemon::Request request;
  request.captures["checkpoint"] = "c";
  daemon::Exchange exchange{service, request, *sessions_->find(root_, "s")};
  const auto answer = daemon::routes::load_checkpoint(exchange);
  ASSERT_TRUE(answer);
  EXPECT_EQ(nlohmann::json::parse(std::get<std::string>(answer->body)).at("data"), nested);
}

}  // namespace
}  // namespace okcvm::test
