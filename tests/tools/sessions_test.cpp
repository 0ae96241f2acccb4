// What Sessions promises when the registry refuses, or when two requests meet.

#include "tools/daemon/sessions/sessions.h"

#include <gmock/gmock.h>

#include "tests/tools/fake_mounts.h"
#include "tools/daemon/host/clock.h"

namespace okcvm::test {
namespace {

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

}  // namespace
}  // namespace okcvm::test
