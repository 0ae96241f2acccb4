// Somebody puts another repository, or other refs, in the place of those that changes were recorded for.

#include <string>
#include <tuple>

#include "tests/snapshots/fixture.h"

namespace okcvm::test {
namespace {

using snapshots::Snapshot;

struct Act {
  const char* name;
  const char* script;  // $git is the repository; $kept and $kept.work are copies after the first snapshot
};

void PrintTo(const Act& act, std::ostream* out) {
  *out << act.name;
}

class OthersAtWork : public SnapshotTest {
 protected:
  void SetUp() override {
    if (!have_program("git")) GTEST_SKIP() << "git is not installed";
    make_zones();
  }
  void act(const std::string& script) const {
    const auto ran = run_script("set -e; git=" + repository().string() + "; work=" + workspace().string() +
                                    "; kept=" + (scratch_ / "kept").string() + "; " + script,
                                "/");
    ASSERT_EQ(ran.exit_code, 0) << ran.output;
  }
  /// A change that the record tells of.
  void change(const std::string& name, const std::string& text) {
    const std::string path = "outputs/" + name;
    record_.note(ChangeKind::kEntry, path);
    write(in(path), text);
  }
};

/// With an act of others, and whether the daemon starts anew before it.
class OtherState : public OthersAtWork, public ::testing::WithParamInterface<std::tuple<Act, bool>> {};

TEST_P(OtherState, IsNotCountedFrom) {
  const auto& [how, is_restarted] = GetParam();
  for (const char* name : {"a", "b", "c"}) {
    change(name, "first");
    change("same", name);
    snapshot(name);
    if (name == std::string("a")) act("cp -a $git $kept; cp -a $work $kept.work");
  }
  const Snapshot back = store().list(0)->back();
  // So that what is there is on top of the newest, with a state of its own.
  restore(back);
  change("d", "after the restore");
  if (is_restarted) reopen();
  act(how.script);
  change("e", "after that");
  const auto before = manifest();
  const Snapshot next = snapshot("next");
  EXPECT_TRUE(next.stats.rescanned);
  expect_exact(next);
  change("e", "later");
  const Snapshot later = snapshot("later");
  EXPECT_FALSE(later.stats.rescanned) << "once is enough";
  std::filesystem::remove_all(in("outputs"));
  record_.note(ChangeKind::kTree, "outputs");
  restore(next);
  expect_same(before, manifest());
}

INSTANTIATE_TEST_SUITE_P(
    By, OtherState,
    ::testing::Combine(
        ::testing::Values(Act{"ANewestThatWentBack", "git --git-dir=$git update-ref refs/heads/main main~1"},
                          Act{"ABaseThatIsGone", "git --git-dir=$git update-ref -d refs/okcvm/base"},
                          Act{"AClone",
                              "git clone -q --bare $git $git.clone; rm -r $git; mv $git.clone $git"},
                          Act{"ACopyOfBefore", "rm -r $git; mv $kept $git"},
                          Act{"AnOlderWorkspace", "rm -r $work; mv $kept.work $work"}),
        ::testing::Bool()),
    [](const auto& param) {
      return std::string(std::get<0>(param.param).name) + (std::get<1>(param.param) ? "AfterARestart" : "");
    });

TEST_F(OthersAtWork, RemoveTheRepository) {
  change("a", "first");
  snapshot("lost");
  act("rm -r $git");
  EXPECT_TRUE(store().list(0)->empty());
  change("b", "second");
  const Snapshot next = snapshot("anew");
  EXPECT_FALSE(next.parent);
  expect_exact(next);
  expect_sound_repository();
}

/// Of a git that was killed.
TEST_F(OthersAtWork, LeaveALock) {
  change("a", "first");
  snapshot("one");
  act("touch $git/refs/heads/main.lock");
  change("a", "second");
  EXPECT_EQ(store().take("two", record_.source(), nullptr).error().code, Code::kBusy) << "it may be in use";
  act("touch -d '2 minutes ago' $git/refs/heads/main.lock");
  expect_exact(snapshot("two"));
  EXPECT_FALSE(there_is(repository() / "refs/heads/main.lock"));
}

/// What it had brought in is removed, but still stands in what is open.
TEST_F(OthersAtWork, ASnapshotIsWholeThoughTheOneBeforeItFailedAndNothingCouldBeOpenedThen) {
  change("a", "first");
  snapshot("one");
  change("a", "second");
  act("touch $git/refs/heads/main.lock");
  {
    const Fault fails("errno:repository.reopen:1:EMFILE");
    EXPECT_FALSE(store().take("two", record_.source(), nullptr));
  }
  act("rm $git/refs/heads/main.lock");
  expect_exact(snapshot("three"));
  expect_sound_repository();
}

}  // namespace
}  // namespace okcvm::test
