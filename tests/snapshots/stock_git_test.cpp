// What users do to a repository with git while the store has it open.

#include "tests/snapshots/fixture.h"

namespace okcvm::test {
namespace {

using snapshots::Snapshot;

class StockGit : public SnapshotTest {
 protected:
  void SetUp() override {
    if (!have_program("git")) GTEST_SKIP() << "git is not installed";
    make_zones();
  }
};

TEST_F(StockGit, WhatItPrunedIsStoredAgain) {
  shell("echo a > outputs/one; echo a > outputs/two");
  const Snapshot a = snapshot("a");
  shell("echo b > outputs/one; echo b > outputs/two");
  const Snapshot b = snapshot("b");
  // The folder with both is stored, but once it changed again no ref leads there.
  restore(a, {"outputs/one"});
  shell("echo x > outputs/three");
  snapshot("x");
  restore(b);
  git("gc -q --prune=now");
  expect_sound_repository();
  shell("rm outputs/three; echo a > outputs/one; echo b > outputs/two");
  const Snapshot both = snapshot("both");
  expect_sound_repository();
  EXPECT_EQ(git("show " + both.id.text() + ":workspace/outputs/two"), "b\n");
  reopen();
  expect_exact(both);
}

TEST_F(StockGit, WhatItTookAwayIsMissedByVerify) {
  shell("echo a > outputs/one");
  const Snapshot a = snapshot("a");
  ASSERT_THAT(value_of(store().verify("", record_.source(), {})).problems, ::testing::IsEmpty());
  std::filesystem::remove_all(repository() / "objects/pack");
  const auto found = store().verify(a.id.text(), record_.source(), {});
  if (found) EXPECT_THAT(found->problems, ::testing::Not(::testing::IsEmpty()));
  if (!found) EXPECT_EQ(found.error().code, Code::kCorrupt);
}

}  // namespace
}  // namespace okcvm::test
