// The process dies at every step of a snapshot and of a restore; the next start puts things right.

#include <csignal>

#include "tests/snapshots/fixture.h"

namespace okcvm::test {
namespace {

using namespace snapshots;
using ::testing::IsEmpty;

class CrashTest : public SnapshotTest {
 protected:
  /// Runs `work` in a process that dies at its Nth step. Answers whether it came to its end.
  bool survives(int n, const std::function<void()>& work) {
    reopen();
    ChildProcess child([&](ChildProcess&) {
      const Fault dies("kill:" + std::to_string(n));
      work();
      return 0;
    });
    const int status = child.join();
    EXPECT_TRUE(status == 0 || status == 128 + SIGKILL) << status;
    return status == 0;
  }

  void expect_nothing_left_over() {
    EXPECT_FALSE(there_is(in(".restore")));
    EXPECT_FALSE(there_is(repository() / "okcvm/journal"));
    EXPECT_THAT(list(repository() / "okcvm/incoming"), IsEmpty());
    for (const auto& name : list(repository() / "objects/pack")) EXPECT_NE(name.substr(0, 4), "tmp_");
    EXPECT_FALSE(there_is(repository() / "refs/heads/main.lock"));
    const auto garbage = git("count-objects -v");
    EXPECT_NE(garbage.find("garbage: 0"), std::string::npos) << garbage;
  }
};

TEST_F(CrashTest, ASnapshotThatDiesAtAnyStepIsThereOrNot) {
  make_zones();
  shell("mkdir outputs/d; for i in $(seq 5); do echo $i > outputs/d/$i; done");
  std::string newest = snapshot("first").id.text();
  std::size_t count = 1;
  for (int n = 1;; ++n) {
    shell("echo " + std::to_string(n) + " > outputs/d/1; head -c 9000000 /dev/urandom > outputs/d/large");
    const std::string answer = scratch_ / "answer";
    std::filesystem::remove(answer);
    const bool done = survives(n, [&] {
      const auto taken = snapshot("next");
      write(answer, taken.id.text());
    });
    const auto all = *store().list(0);
    EXPECT_TRUE(all.size() == count || all.size() == count + 1);
    if (done) {
      EXPECT_EQ(all.size(), count + 1);
      EXPECT_EQ(all.front().id.text(), read(answer));
    }
    if (all.size() == count) {
      EXPECT_EQ(all.front().id.text(), newest);
    }
    expect_nothing_left_over();
    expect_sound_repository();
    const auto after = snapshot("after");  // the record still has everything: the child's copy died with it
    EXPECT_EQ(after.parent, all.front().id);
    count = all.size() + 1;
    newest = after.id.text();
    if (n % 7 == 0) expect_exact(after);
    if (done) {
      EXPECT_GT(n, 8);
      break;
    }
    ASSERT_LT(n, 200);
  }
}

TEST_F(CrashTest, TheVeryFirstSnapshotToo) {
  for (int n = 1;; ++n) {
    std::filesystem::remove_all(repository());
    std::filesystem::remove_all(workspace());
    record_ = {};
    make_zones();
    shell("echo 1 > outputs/1");
    const bool done = survives(n, [&] { snapshot("first"); });
    EXPECT_LE(store().list(0)->size(), 1u);
    expect_exact(snapshot("second"));
    EXPECT_FALSE(there_is(draft_of(repository())));
    expect_sound_repository();
    if (done) break;
    ASSERT_LT(n, 100);
  }
}

class DyingRestore : public CrashTest, public ::testing::WithParamInterface<bool> {
 protected:
  DyingRestore() { writes_ahead_ = GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(CrashTest, DyingRestore, ::testing::Bool(),
                         [](const auto& row) { return row.param ? "WritingAhead" : "UnderTheHold"; });

TEST_P(DyingRestore, IsDoneOrNot) {
  make_zones();
  shell(
      R"(mkdir -p outputs/a/deep outputs/gone; for i in 1 2 3; do echo $i > outputs/a/$i; done; ln outputs/a/1 uploads/one
           echo g > outputs/gone/g; ln -s a outputs/l; echo f > outputs/kind; touch -d 2001-01-01 outputs outputs/a)");
  const auto one = snapshot("one");
  const Manifest at_one = manifest();
  shell(
      R"(echo new > outputs/a/2; rm -r outputs/gone; mkdir outputs/came; echo c > outputs/came/c; ln -sfn b outputs/l; rm outputs/kind
           mkdir outputs/kind; echo k > outputs/kind/k; rm uploads/one; chmod 700 outputs/a; touch -d 2002-02-02 outputs outputs/a outputs/kind)");
  const Manifest at_two = manifest();
  snapshot("two");
  int finished = 0, taken_back = 0;
  for (int n = 1;; ++n) {
    const bool done = survives(n, [&] { restore(one); });
    const auto touched = store().recovered();
    const Manifest now = manifest();
    const auto to_one = differences(at_one, now), to_two = differences(at_two, now);
    const bool is_one = to_one.empty() || (to_one.size() == 1 && to_one[0].starts_with(".:"));
    const bool is_two = to_two.empty() || (to_two.size() == 1 && to_two[0].starts_with(".:"));
    EXPECT_TRUE(is_one || is_two) << "step " << n << "\n"
                                  << ::testing::PrintToString(to_one) << "\n"
                                  << ::testing::PrintToString(to_two);
    if (done) {
      EXPECT_TRUE(is_one);
    }
    if (is_one) ++finished;
    if (is_two) ++taken_back;
    if (!touched.empty()) {
      EXPECT_TRUE(is_one) << "recovery goes forward where it can";
    }
    expect_nothing_left_over();
    expect_sound_repository();
    EXPECT_GE(store().list(0)->size(), 2u);
    if (is_one) {
      ASSERT_TRUE(store().undo(hooks(), nullptr)) << "step " << n;
      Manifest back = manifest();
      expect_same(at_two, back);
    }
    if (n % 10 == 0) {
      expect_exact(snapshot("step " + std::to_string(n)));
    }
    if (done) break;
    ASSERT_LT(n, 300);
  }
  EXPECT_GT(finished, 3);
  EXPECT_GT(taken_back, 10);
}

TEST_F(CrashTest, SoMayTheStartAfterIt) {
  make_zones();
  shell(
      "mkdir -p outputs/a outputs/gone; echo 1 > outputs/a/1; ln outputs/a/1 uploads/one; echo g > "
      "outputs/gone/g; echo f > outputs/kind; touch -d 2001-01-01 outputs outputs/a");
  const auto one = snapshot("one");
  const Manifest at_one = manifest();
  shell(
      "echo new > outputs/a/1; rm -r outputs/gone; mkdir outputs/came; rm outputs/kind; mkdir outputs/kind; "
      "rm uploads/one; chmod 700 outputs/a; touch -d 2002-02-02 outputs outputs/a outputs/kind");
  const Manifest at_two = manifest();
  snapshot("two");
  int starts_that_died = 0;
  for (int n = 1;; ++n) {
    const bool done = survives(n, [&] { restore(one); });
    for (int m = 1; !survives(m, [&] { store(); }); ++m) {
      ++starts_that_died;
      ASSERT_LT(m, 200);
    }
    store();
    const bool is_one = read(in("outputs/a/1")) == "1\n";
    expect_same(is_one ? at_one : at_two, manifest());
    expect_nothing_left_over();
    if (HasFailure()) return;
    if (is_one) {
      ASSERT_TRUE(store().undo(hooks(), nullptr)) << "step " << n;
      expect_same(at_two, manifest());
    }
    if (done) break;
    ASSERT_LT(n, 300);
  }
  expect_sound_repository();
  EXPECT_GT(starts_that_died, 50);
}

TEST_F(CrashTest, MergingPacksLosesNothing) {
  make_zones();
  shell("for i in $(seq 20); do echo $i > outputs/$i; done");
  snapshot("first");
  std::size_t count = 0;
  const auto packs = [&] { return list(repository() / "objects/pack").size() / 2; };
  const auto next = [&] {
    write(in("outputs/1"), "number " + std::to_string(++count));
    record_.note(ChangeKind::kContent, "outputs/1");
  };
  std::size_t most = 0;
  while (packs() >= most) {  // until one more snapshot merges them
    most = packs();
    next();
    snapshot("n");
    ASSERT_LT(count, 200u);
  }
  const auto grow = [&] {
    while (packs() < most) {
      next();
      snapshot("n");
    }
  };
  for (int n = 1;; ++n) {
    grow();
    next();
    const auto known = store().list(0)->size();
    const bool done = survives(n, [&] { snapshot("merges"); });
    const auto now = store().list(0)->size();
    EXPECT_TRUE(now == known || now == known + 1) << n;
    expect_nothing_left_over();
    expect_sound_repository();
    auto report = store().verify("", record_.source(), nullptr);
    ASSERT_TRUE(report);
    EXPECT_THAT(report->problems, IsEmpty());
    if (HasFailure() || done) break;
    ASSERT_LT(n, 300);
  }
  expect_exact(snapshot("after"));
}

TEST_F(CrashTest, APartialRestoreOfPathsToo) {
  make_zones();
  shell(
      "mkdir -p outputs/a/b; echo 1 > outputs/a/b/1; echo 2 > outputs/a/2; touch -d 2001-01-01 outputs "
      "outputs/a");
  const auto one = snapshot("one");
  shell("rm -r outputs/a/b; echo 3 > outputs/a/2; touch -d 2002-02-02 outputs outputs/a");
  const Manifest at_two = manifest();
  snapshot("two");
  Manifest wanted;
  for (int n = 1;; ++n) {
    const bool done = survives(n, [&] { restore(one, {"outputs/a/b"}); });
    store();
    const Manifest now = manifest();
    if (there_is(in("outputs/a/b/1"))) {
      EXPECT_EQ(now.at("outputs/a").modified.tv_sec, at_two.at("outputs/a").modified.tv_sec)
          << "the folder around keeps its time";
      EXPECT_EQ(read(in("outputs/a/2")), "3\n");
      ASSERT_TRUE(store().undo(hooks(), nullptr));
    }
    expect_same(at_two, manifest());
    expect_nothing_left_over();
    if (done) break;
    ASSERT_LT(n, 300);
  }
}

TEST_F(CrashTest, AForkThatDiesLeavesNoHalfWorkspace) {
  make_zones();
  shell("mkdir outputs/d; for i in 1 2 3; do echo $i > outputs/d/$i; done");
  const auto one = snapshot("one");
  const StoreConfig target{scratch_ / "snapshots/f.git", scratch_ / "workspaces/f", 0, 0};
  for (int n = 1;; ++n) {
    const bool done = survives(n, [&] { EXPECT_TRUE(store().fork(one.id.text(), target, nullptr)); });
    if (there_is(target.workspace)) expect_same(manifest(), manifest_of(target.workspace));
    if (done) {
      EXPECT_TRUE(there_is(target.workspace));
      break;
    }
    std::filesystem::remove_all(target.workspace);
    std::filesystem::remove_all(target.repository);
    ASSERT_LT(n, 100);
  }
}

TEST_F(CrashTest, ARecoveryLeavesAnotherSessionsFilesAlone) {
  make_zones();
  const std::filesystem::path theirs = workspace().string() + ".new/outputs";
  std::filesystem::create_directories(theirs);
  write(theirs / "report", "theirs");
  snapshot("one");
  reopen();
  store();
  EXPECT_EQ(read(theirs / "report"), "theirs");
}

TEST_F(CrashTest, ARecoveryLeavesTagsAlone) {
  if (!have_program("git")) GTEST_SKIP() << "git is not installed";
  make_zones();
  const auto one = snapshot("one");
  git("tag v1.new " + one.id.text());
  git("tag tmp_2 " + one.id.text());
  reopen();
  store();
  EXPECT_EQ(git("tag"), "tmp_2\nv1.new\n");
}

}  // namespace
}  // namespace okcvm::test
