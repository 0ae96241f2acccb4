// What is counted from the state that a restore left.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/snapshots/fixture.h"

namespace okcvm::test {
namespace {

using namespace snapshots;
using ::testing::IsEmpty;

class AfterRestoreTest : public SnapshotTest {
 protected:
  void SetUp() override {
    make_zones();
    shell("echo x > outputs/f; chmod 644 outputs/f");
    closed_ = snapshot("closed");
    change_mode(0755);
    open_ = snapshot("open");
    restore(*closed_);
  }

  void change_mode(mode_t mode) {
    ASSERT_EQ(::chmod(in("outputs/f").c_str(), mode), 0);
    record_.note(ChangeKind::kAttributes, "outputs/f");
  }

  std::optional<Snapshot> closed_, open_;
};

TEST_F(AfterRestoreTest, ASessionThatWentForwardAgainByItselfIsCountedFromThere) {
  change_mode(0755);
  expect_exact(snapshot());
  expect_exact(snapshot());
  EXPECT_THAT(*store().diff("", {}, record_.source(), std::nullopt, nullptr), IsEmpty());
  restore(*closed_);
  EXPECT_EQ(mode_of(in("outputs/f")), 0644u);
}

TEST_F(AfterRestoreTest, SoItIsByARestoreThatFindsNothingToDo) {
  change_mode(0755);
  EXPECT_THAT(restore(*open_).applied, IsEmpty());
  restore(*closed_);
  EXPECT_EQ(mode_of(in("outputs/f")), 0644u);
}

TEST_F(AfterRestoreTest, ContentsThatCameBackWithTheirTimesAreNotTakenForThoseOfTheRestore) {
  shell("echo y > outputs/f; touch -d 2001-01-01 outputs/f outputs");
  const auto other = snapshot("other");
  restore(*closed_);
  shell("echo y > outputs/f; touch -d 2001-01-01 outputs/f outputs");
  usleep(50'000);  // past the tick within which a time stamp cannot tell two changes apart
  record_.lose_track();
  snapshot();
  record_.lose_track();
  const auto taken = snapshot();
  EXPECT_EQ(git("show " + taken.id.text() + ":workspace/outputs/f"), "y\n");
  expect_exact(taken);
}

/// A session of which a restore put back a folder and a large file.
class BroughtInTest : public SnapshotTest {
 protected:
  static constexpr std::uint64_t kLarge = 3 << 20;

  void SetUp() override {
    make_zones();
    shell(
        "mkdir -p outputs/d/in outputs/stays; seq 100 > outputs/d/in/some; seq 9 > outputs/stays/x;"
        "head -c 3M /dev/urandom > outputs/d/in/large; cp outputs/d/in/large outputs/alone");
    full_ = snapshot("full");
    shell("rm -r outputs/d outputs/alone; echo other > outputs/stays/x");
    snapshot("without");
    restore(*full_);
  }

  void expect_recognised(const std::string& from, const std::string& to) {
    move(from, to);
    const auto taken = snapshot();
    EXPECT_EQ(taken.stats.bytes_read, 0u);
    expect_exact(taken);
  }

  std::optional<Snapshot> full_;
};

TEST_F(BroughtInTest, AFolderIsRecognisedWhenItIsMoved) {
  expect_recognised("outputs/d", "outputs/e");
}

TEST_F(BroughtInTest, ALargeFileIsRecognisedWhenItIsMoved) {
  expect_recognised("outputs/alone", "outputs/d/alone");
}

TEST_F(BroughtInTest, WhatStayedInADirectoryOfOtherTimesIsRecognised) {
  expect_recognised("outputs/stays", "outputs/stayed");
}

TEST_F(BroughtInTest, ItIsNotReadAgainWhenTheRecordIsLost) {
  shell("rm -r outputs/d");
  auto slow = hooks();
  // Past the tick within which a time stamp cannot tell two changes apart.
  slow.will_replace = [](const std::vector<RelPath>&) { usleep(50'000); };
  ASSERT_TRUE(store().restore(full_->id.text(), {}, false, slow, nullptr));
  usleep(50'000);  // for what the restore renamed
  record_.lose_track();
  const auto taken = snapshot();
  EXPECT_TRUE(taken.stats.rescanned);
  EXPECT_LT(taken.stats.bytes_read, kLarge + 1000);  // the other large one came in with the first restore
  expect_exact(taken);
}

TEST_F(BroughtInTest, WhatChangedWithinTheSameTickIsReadWhenTheRecordIsLost) {
  const auto times = stat_of(in("outputs/alone"));
  {
    const auto file = open_file(in("outputs/alone"), O_WRONLY);
    ASSERT_EQ(::pwrite(file.get(), "other", 5, 0), 5);
    const timespec same[] = {times.st_atim, times.st_mtim};
    ASSERT_EQ(::futimens(file.get(), same), 0);
  }
  record_.lose_track();
  const auto taken = snapshot();
  EXPECT_NE(git("rev-parse " + taken.id.text() + ":workspace/outputs/alone"),
            git("rev-parse " + full_->id.text() + ":workspace/outputs/alone"));
  expect_exact(taken);
}

TEST_F(BroughtInTest, AnotherFolderInItsPlaceIsRead) {
  shell("mv outputs/d outputs/was; mkdir -p outputs/d/in; seq 50 > outputs/d/in/some");
  move("outputs/d", "outputs/e");
  expect_exact(snapshot());
}

}  // namespace
}  // namespace okcvm::test
