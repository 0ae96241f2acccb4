// A restore that can neither be finished nor taken back, as on a disk that is full for longer.

#include <sys/stat.h>

#include <csignal>

#include "tests/snapshots/fixture.h"

namespace okcvm::test {
namespace {

using namespace snapshots;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class BrokenOffRestore : public SnapshotTest {
 protected:
  static constexpr const char* kFull = "errno:restore.attributes:0:ENOSPC";

  /// To restore "one" takes no more than to remove a file and to change its folder's mode.
  void SetUp() override {
    make_zones();
    shell("mkdir -m 755 outputs/d; echo 1 > outputs/d/f");
    one_ = snapshot("one");
    shell("echo 2 > outputs/d/extra; chmod 700 outputs/d");
    two_ = snapshot("two");
  }

  Result<RestoreResult> restore_in_vain() {
    const Fault full(kFull);
    return store().restore(one_->id.text(), {}, false, hooks(), nullptr);
  }
  void die_in_the_middle() {
    for (int n = 1; !there_is(own("journal")); ++n) {
      reopen();
      ChildProcess child([&](ChildProcess&) {
        const Fault dies("kill:" + std::to_string(n));
        restore(*one_);
        return 0;
      });
      ASSERT_EQ(child.join(), 128 + SIGKILL) << n;
    }
  }
  std::filesystem::path own(std::string_view name) const { return repository() / "okcvm" / name; }

  std::optional<Snapshot> one_, two_;
};

TEST_F(BrokenOffRestore, IsNeverCarriedOutOverWhatCameLater) {
  const auto restored = restore_in_vain();
  ASSERT_FALSE(restored);
  EXPECT_EQ(restored.error().code, Code::kNoSpace);
  EXPECT_THAT(restored.error().message, HasSubstr(two_->id.text())) << "which has what was there";
  EXPECT_FALSE(there_is(own("journal")));
  write(in("outputs/d/extra"), "later");
  record_.note(ChangeKind::kContent, "outputs/d/extra");
  reopen();
  EXPECT_THAT(store().recovered(), IsEmpty());
  EXPECT_EQ(read(in("outputs/d/extra")), "later");
  expect_exact(snapshot("three"));
  expect_sound_repository();
}

TEST_F(BrokenOffRestore, LeavesNothingThatTheNextSnapshotDoesNotSee) {
  for (const bool starts_again : {false, true}) {
    ASSERT_FALSE(restore_in_vain());
    if (starts_again) reopen();
    auto differences = store().diff(two_->id.text(), {}, record_.source(), std::nullopt, nullptr);
    ASSERT_TRUE(differences);
    EXPECT_FALSE(differences->empty()) << "the time of the folder at least";
    const auto taken = snapshot();
    EXPECT_TRUE(taken.stats.rescanned);
    expect_exact(taken);
    for (int i = 0; i < 2; ++i) EXPECT_FALSE(snapshot("again").stats.rescanned) << "once is enough";
    restore(*two_);
    expect_exact(*two_);
  }
}

TEST_F(BrokenOffRestore, WhoseJournalCannotBePutAwayKeepsTheStoreWaiting) {
  std::filesystem::create_directory(own("broken-off"));
  ASSERT_FALSE(restore_in_vain());
  ASSERT_TRUE(there_is(own("journal")));
  EXPECT_FALSE(store().take("three", record_.source(), nullptr));
  EXPECT_TRUE(there_is(own("journal")));
  std::filesystem::remove(own("broken-off"));
  expect_exact(snapshot("three"));
  EXPECT_FALSE(there_is(own("journal")));
}

TEST_F(BrokenOffRestore, ByADeathIsWaitedForAtTheStart) {
  die_in_the_middle();
  {
    const Fault full(kFull);
    const auto opened = Store::open(config());
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, Code::kNoSpace);
  }
  EXPECT_TRUE(is_half_restored(config()));
  store();
  EXPECT_FALSE(is_half_restored(config()));
  EXPECT_FALSE(there_is(in("outputs/d/extra")));
  expect_exact(*one_);
}

/// Else the session would be served as it is, and the restore be carried out over what comes meanwhile.
TEST_F(BrokenOffRestore, IsNotGivenUpForAMomentsLackOfMemory) {
  die_in_the_middle();
  {
    const Fault no_memory("errno:io.is_there:0:ENOMEM");
    const auto opened = Store::open(config());
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().errno_value, ENOMEM);
  }
  EXPECT_TRUE(is_half_restored(config()));
  store();
  EXPECT_FALSE(there_is(in("outputs/d/extra")));
  expect_exact(*one_);
}

TEST_F(BrokenOffRestore, OfWhatIsDamagedIsNotWaitedFor) {
  write(own("journal"), "damaged");
  const auto opened = Store::open(config());
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::kCorrupt);
  EXPECT_FALSE(is_half_restored(config()));
  write(in("outputs/d/extra"), "later");
  expect_exact(snapshot("three"));
}

}  // namespace
}  // namespace okcvm::test
