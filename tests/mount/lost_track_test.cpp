#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/fs.h>

#include <algorithm>

#include "tests/support/mounted_session.h"

namespace okcvm::test {
namespace {

namespace fs = std::filesystem;

/// A session whose record of changes was lost, as it is after a stop of the host without warning.
class LostTrack : public MountedSession {
 protected:
  void SetUp() override {
    MountedSession::SetUp();
    if (IsSkipped()) return;
    write(outputs() / "old", "x");
    lose_record();
  }
  void lose_record() {
    session().unmount();
    const auto kept = session().workspace().parent_path().parent_path() / "changes";
    ASSERT_GT(fs::remove_all(kept), 1u) << "there is a record to lose";
    session().remount();
  }
  ChangeSet cut() { return session().driver().cut_changes(); }
  void retire(const ChangeSet& changes) { session().driver().retire_changes(changes); }
  static bool names(const ChangeSet& changes, const char* path) {
    return std::any_of(changes.changes.begin(), changes.changes.end(),
                       [path](const Change& change) { return change.path.text() == path; });
  }
};

TEST_F(LostTrack, IsToldWithEveryCutUntilOneIsRetired) {
  const auto first = cut(), second = cut();
  EXPECT_TRUE(first.rescan);
  EXPECT_TRUE(second.rescan);
  EXPECT_NE(first.lost_at, 0u);
  EXPECT_EQ(first.lost_at, second.lost_at);
  retire(second);
  EXPECT_TRUE(cut().empty());
}

TEST_F(LostTrack, WhatIsChangedMeanwhileIsRecordedAndStays) {
  const auto first = cut();
  write(outputs() / "later", "x");
  fs::rename(outputs() / "old", outputs() / "moved");
  const auto second = cut();
  EXPECT_EQ(second.lost_at, first.lost_at) << "that is no new gap";
  EXPECT_TRUE(names(second, "outputs/later"));
  EXPECT_TRUE(names(second, "outputs/old"));
  retire(first);
  const auto third = cut();
  EXPECT_FALSE(third.rescan);
  EXPECT_EQ(third.lost_at, 0u);
  EXPECT_TRUE(names(third, "outputs/later"));
}

/// Between mounts the record is a file on a disk.
TEST_F(LostTrack, IsToldOfARecordThatIsDamaged) {
  const auto folder = session().workspace().parent_path().parent_path() / "changes";
  const std::string longer(100, 'n');
  constexpr off_t kFirst = 8 + 40 + 8;  // of the records, after the version, what they count from, checksum
  for (const auto& damage : {std::string(16, '\0'), std::string(16, '\xff'), std::string()}) {
    retire(cut());
    for (const char* name : {"one", "two"}) write(outputs() / (name + longer), "x");
    session().unmount();
    const auto record = folder / session().workspace().filename();
    ASSERT_GT(fs::file_size(record), 200u);
    if (damage.empty()) {
      fs::resize_file(record, fs::file_size(record) - 100);
    } else {
      ASSERT_OK(::pwrite(open_file(record, O_RDWR).get(), damage.data(), damage.size(), kFirst));
    }
    session().remount();
    EXPECT_TRUE(cut().rescan);
  }
}

TEST_F(LostTrack, IsToldOfARecordThatNamesAnotherFile) {
  retire(cut());
  write(outputs() / "one", "x");
  session().unmount();
  const auto record =
      session().workspace().parent_path().parent_path() / "changes" / session().workspace().filename();
  auto bytes = read(record);
  const auto name = bytes.find("outputs/one");
  ASSERT_NE(name, bytes.npos);
  write(record, bytes.replace(name, 11, "outputs/ine"));
  session().remount();
  EXPECT_TRUE(cut().rescan);
}

TEST_F(LostTrack, IsToldWhereTheRecordIsAPipe) {
  retire(cut());
  session().unmount();
  const auto record =
      session().workspace().parent_path().parent_path() / "changes" / session().workspace().filename();
  ASSERT_TRUE(fs::remove(record));
  ASSERT_OK(::mkfifo(record.c_str(), 0600));
  session().remount();
  EXPECT_TRUE(cut().rescan);
}

TEST_F(LostTrack, OnlyTheGapThatWasToldIsRetired) {
  const auto told = cut();
  ChangeSet other = told;
  ++other.lost_at;
  retire(other);
  EXPECT_TRUE(cut().rescan);
  retire(told);
  EXPECT_TRUE(cut().empty());
}

/// On a tmpfs a store through a mapping leaves no trace in a file's times.
TEST_F(LostTrack, WhoseContentMayHaveChangedIsNamedInAGap) {
  { const auto file = open_file(outputs() / "old", O_RDWR); }
  EXPECT_TRUE(names(cut(), "outputs/old"));
}

TEST_F(LostTrack, NorIsThatForgottenWhenTheRecordGrowsTooLong) {
  retire(cut());
  { const auto file = open_file(outputs() / "old", O_RDWR); }
  const std::string longer(200, 'n');
  const auto one = outputs() / ("one" + longer), other = outputs() / ("other" + longer);
  write(one, "x");
  while (!session().driver().cut_changes().rescan)
    for (int i = 0; i < 1000; ++i) fs::rename(i % 2 ? other : one, i % 2 ? one : other);
  EXPECT_TRUE(names(cut(), "outputs/old"));
}

/// A file in the state directory, which may be immutable or on a disk that fails.
TEST_F(LostTrack, AnOldRecordThatCannotBeRemovedIsNotBelieved) {
  retire(cut());
  const auto folder = session().workspace().parent_path().parent_path() / "changes";
  session().unmount();
  ASSERT_TRUE(fs::exists(folder / session().workspace().filename()));
  if (!set_flag(folder, FS_IMMUTABLE_FL, true)) GTEST_SKIP() << "directories cannot be made immutable here";
  session().remount();
  write(outputs() / "new", "x");
  session().unmount();
  EXPECT_TRUE(set_flag(folder, FS_IMMUTABLE_FL, false));
  session().remount();
  const auto changes = cut();
  EXPECT_TRUE(changes.rescan || names(changes, "outputs/new"));
}

}  // namespace
}  // namespace okcvm::test
