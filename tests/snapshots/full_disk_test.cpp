// Restores and snapshots that find no room.

#include "tests/snapshots/fixture.h"

namespace okcvm::test {
namespace {

using namespace snapshots;
using ::testing::IsEmpty;

/// A session or a repository on a disk of its own that can be filled.
class FullDiskTest : public SnapshotTest {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(small());
    const auto mounted = run_script("mount -t tmpfs -o size=24m none " + small().string(), "/");
    if (mounted.exit_code != 0) GTEST_SKIP() << "cannot mount a tmpfs: " << mounted.output;
    is_mounted_ = true;
  }
  void TearDown() override {
    if (is_mounted_) run_script("umount -l " + small().string(), "/");
  }
  std::filesystem::path small() const { return scratch_ / "small"; }
  void in_small(const std::string& script) {
    const auto done = run_script(script, small());
    ASSERT_EQ(done.exit_code, 0) << done.output;
  }
  /// Of a workspace on the small disk.
  void expect_no_room_for(Store& store, const Snapshot& wanted) {
    const Manifest before = manifest_of(small() / "w");
    const auto restored =
        store.restore(wanted.id.text(), {}, false, {nullptr, everything(), nullptr}, nullptr);
    ASSERT_FALSE(restored);
    EXPECT_EQ(restored.error().code, Code::kNoSpace) << restored.error().message;
    expect_same(before, manifest_of(small() / "w"));
  }
  static Store::ChangeSource everything() {
    return {[] {
              ChangeSet set;
              set.rescan = true;
              return set;
            },
            nullptr};
  }

 private:
  bool is_mounted_ = false;
};

TEST_F(FullDiskTest, WhatIsThereIsReadWhereNothingCanBeMadeOrWritten) {
  auto opened = Store::open({small() / "r.git", small() / "w", 0, 0});
  ASSERT_TRUE(opened);
  in_small("mkdir -p w/outputs; echo one > w/outputs/f");
  ASSERT_TRUE((*opened)->take("one", everything(), nullptr));
  const auto expect_all_read = [&](const char* when) {
    ASSERT_TRUE(opened) << when;
    const auto verified = (*opened)->verify("", everything(), nullptr);
    ASSERT_TRUE(verified) << when << ": " << verified.error().message;
    EXPECT_THAT(verified->problems, IsEmpty()) << when;
    const auto differences = (*opened)->diff("", std::nullopt, everything(), std::nullopt, nullptr);
    ASSERT_TRUE(differences) << when << ": " << differences.error().message;
    EXPECT_THAT(*differences, IsEmpty()) << when;
  };
  in_small("mount -o remount,nr_inodes=$(df --output=iused . | tail -1 | tr -d ' ') $PWD");
  expect_all_read("no inode is left");
  opened = Store::open({small() / "r.git", small() / "w", 0, 0});
  expect_all_read("no inode was left at the start");
  in_small("mount -o remount,ro $PWD");
  expect_all_read("it became read-only");
}

TEST_F(FullDiskTest, ARestoreIsRefusedUpFrontAndLeavesTheWorkspace) {
  auto opened = Store::open({repository(), small() / "w", 0, 0});
  ASSERT_TRUE(opened);
  in_small(
      "mkdir -p w/outputs; head -c 12M /dev/urandom > w/outputs/a; head -c 5M /dev/urandom > w/outputs/b");
  auto one = (*opened)->take("one", everything(), nullptr);
  ASSERT_TRUE(one);
  in_small("head -c 12M /dev/urandom > w/outputs/a; echo x > w/outputs/b");
  expect_no_room_for(**opened, *one);
}

TEST_F(FullDiskTest, ARestoreThatFillsItHalfWayLeavesTheWorkspace) {
  auto opened = Store::open({repository(), small() / "w", 0, 0});
  ASSERT_TRUE(opened);
  // Of a file with holes nobody can say up front how much it needs.
  in_small(
      "mkdir -p w/outputs/d; echo 1 > w/outputs/d/1; head -c 14M /dev/urandom > w/outputs/z; truncate -s 30M "
      "w/outputs/z; echo 2 > w/outputs/zz");
  auto one = (*opened)->take("one", everything(), nullptr);
  ASSERT_TRUE(one);
  in_small("rm -r w/outputs/d w/outputs/zz; echo x > w/outputs/z; head -c 12M /dev/urandom > w/outputs/a");
  expect_no_room_for(**opened, *one);
  EXPECT_FALSE(there_is(small() / "w/.restore"));
  in_small("rm w/outputs/a");
  auto again = (*opened)->restore(one->id.text(), {}, false, {nullptr, everything(), nullptr}, nullptr);
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(read(small() / "w/outputs/d/1"), "1\n");
  EXPECT_EQ(stat_of(small() / "w/outputs/z").st_size, 30 << 20);
  expect_sound_repository();
}

TEST_F(FullDiskTest, NamesThatCameOrWentTakeNoRoom) {
  auto opened = Store::open({repository(), small() / "w", 0, 0});
  ASSERT_TRUE(opened);
  in_small("mkdir -p w/outputs/store; head -c 14M /dev/urandom > w/outputs/store/f");
  auto one = (*opened)->take("one", everything(), nullptr);
  ASSERT_TRUE(one);
  in_small("cp -al w/outputs/store w/outputs/copy");
  const Manifest linked = manifest_of(small() / "w");
  auto restored = (*opened)->restore(one->id.text(), {}, false, {nullptr, everything(), nullptr}, nullptr);
  ASSERT_TRUE(restored) << restored.error().message;
  EXPECT_EQ(stat_of(small() / "w/outputs/store/f").st_nlink, 1u);
  auto undone = (*opened)->undo({nullptr, everything(), nullptr}, nullptr);
  ASSERT_TRUE(undone) << undone.error().message;
  expect_same(linked, manifest_of(small() / "w"));
}

TEST_F(FullDiskTest, AFileThatIsOpenForWritingAndAsItWasNeedsNoRoom) {
  auto opened = Store::open({small() / "s.git", workspace(), 0, 0});
  ASSERT_TRUE(opened);
  make_zones();
  shell("head -c 16000000 /dev/urandom > outputs/large");
  ASSERT_TRUE((*opened)->take("one", everything(), nullptr));
  const FileDescriptor writer(::open(in("outputs/large").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(writer);
  shell("echo small > outputs/small");
  const auto two = (*opened)->take("two", everything(), nullptr);
  ASSERT_TRUE(two) << two.error().message;
  EXPECT_GT(two->stats.bytes_read, 16'000'000u) << "it may have been stored into through a mapping";
  EXPECT_THAT((*opened)->verify("", everything(), nullptr)->live_differences, IsEmpty());
}

/// Its bytes changed, and not its times.
TEST_F(FullDiskTest, AFileThatOnlyLooksAsItWasIsStored) {
  auto opened = Store::open({small() / "s.git", workspace(), 0, 0});
  ASSERT_TRUE(opened);
  make_zones();
  shell("head -c 9000000 /dev/urandom > outputs/large");
  ASSERT_TRUE((*opened)->take("one", everything(), nullptr));
  const FileDescriptor writer(::open(in("outputs/large").c_str(), O_RDWR | O_CLOEXEC));
  shell(
      "touch -r outputs/large times; head -c 9000000 /dev/urandom > outputs/large; touch -r times "
      "outputs/large; rm times");
  const auto two = (*opened)->take("two", everything(), nullptr);
  ASSERT_TRUE(two) << two.error().message;
  const auto live = read(in("outputs/large"));
  shell("rm outputs/large");
  ASSERT_TRUE((*opened)->restore(two->id.text(), {}, false, {nullptr, everything(), nullptr}, nullptr));
  EXPECT_TRUE(read(in("outputs/large")) == live);
}

TEST_F(FullDiskTest, ASnapshotThatFillsItIsNoneAndLeavesTheOthers) {
  const auto repository = small() / "s.git";
  auto opened = Store::open({repository, workspace(), 0, 0});
  ASSERT_TRUE(opened);
  make_zones();
  shell("mkdir outputs/d; for i in $(seq 300); do echo $i > outputs/d/$i; done");
  auto one = (*opened)->take("one", everything(), nullptr);
  ASSERT_TRUE(one);
  // Once many small objects do not fit, once a large one.
  for (const char* more : {"for i in $(seq 400); do head -c 100000 /dev/urandom > outputs/d/$i; done",
                           "rm outputs/d/*; head -c 30000000 /dev/urandom > outputs/large"}) {
    shell(more);
    const Manifest before = manifest();
    auto refused = (*opened)->take("two", everything(), nullptr);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::kNoSpace) << refused.error().message;
    auto not_restored =
        (*opened)->restore(one->id.text(), {}, false, {nullptr, everything(), nullptr}, nullptr);
    ASSERT_FALSE(not_restored) << "what is there could not be kept";
    EXPECT_EQ(not_restored.error().code, Code::kNoSpace) << not_restored.error().message;
    expect_same(before, manifest());
    EXPECT_EQ((*opened)->list(0)->size(), 1u);
    EXPECT_THAT(list(repository / "okcvm/incoming"), IsEmpty());
    const auto checked = run_script("git --git-dir=" + repository.string() + " fsck --strict", "/");
    EXPECT_EQ(checked.exit_code, 0) << checked.output;
  }
  shell("rm outputs/large; echo small > outputs/small");
  auto two = (*opened)->take("two", everything(), nullptr);
  ASSERT_TRUE(two) << two.error().message;
  EXPECT_EQ((*opened)->verify("", everything(), nullptr)->live_differences.size(), 0u);
}

}  // namespace
}  // namespace okcvm::test
