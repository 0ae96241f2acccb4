#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

TEST_F(LostTrack, OnlyTheGapThatWasToldIsRetired) {
  const auto told = cut();
  ChangeSet other = told;
  ++other.lost_at;
  retire(other);
  EXPECT_TRUE(cut().rescan);
  retire(told);
  EXPECT_TRUE(cut().empty());
}

}  // namespace
}  // namespace okcvm::test
