// What Sessions promises when the registry refuses, or when two requests meet.

#include "tools/daemon/sessions/sessions.h"

#include <gmock/gmock.h>

#include <utility>

#include "tests/tools/fake_mounts.h"
#include "tools/daemon/host/clock.h"

namespace okcvm::test {
namespace {

using daemon::SessionState;
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
  EXPECT_TRUE(sessions_->set_labels(found("labelled"), {{"a", "b"}}));
  for (const char* id : {"s", "labelled"}) EXPECT_GE(row(id)->last_used, now);
  start();
  EXPECT_THAT(clean_unused_since(kWeek).removed, IsEmpty());
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

TEST_F(Sessions, AreMountedInTheRegistryToo) {
  auto& session = create("s");
  EXPECT_TRUE(sessions_->unmount(session, false));
  refuse_changes();
  EXPECT_FALSE(sessions_->mount(session));
  accept_changes();
  EXPECT_TRUE(sessions_->mount(session));
  EXPECT_EQ(row("s")->state, SessionState::kMounted);
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
  expect_as_before();
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

}  // namespace
}  // namespace okcvm::test
