// What others do to a repository while the store has it open.

#include <cstdint>
#include <fstream>
#include <optional>
#include <set>

#include "tests/snapshots/fixture.h"

namespace okcvm::test {
namespace {

using snapshots::Snapshot;
using ::testing::IsEmpty;

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
  shell("rm -f outputs/three; echo a > outputs/one; echo b > outputs/two");
  const Snapshot both = snapshot("both");
  expect_sound_repository();
  EXPECT_EQ(git("show " + both.id.text() + ":workspace/outputs/two"), "b\n");
  reopen();
  expect_exact(both);
}

TEST_F(StockGit, PacksWithDeltasStayAndTheOthersAreMerged) {
  std::string text;
  for (int i = 0; i < 2000; ++i) text += std::to_string(i * i) + "\n";
  for (int i = 0; i < 4; ++i) {
    write(in("outputs/text"), text + std::to_string(i));
    record_.note(ChangeKind::kContent, "outputs/text");
    snapshot("like the last");
  }
  git("-c pack.writeBitmaps=false repack -q -a -d");
  const auto packs = [this] { return list(repository() / "objects/pack").size() / 2; };
  for (int i = 0; i < 60; ++i) {
    write(in("outputs/number"), std::to_string(i));
    record_.note(ChangeKind::kContent, "outputs/number");
    snapshot("number");
  }
  EXPECT_LT(packs(), 45u);
  reopen();
  expect_sound_repository();
}

/// Else a snapshot would cost ever more, the more there were before.
TEST_F(StockGit, ALargePackIsNotReadToMergeSmallOnes) {
  constexpr int kFiles = 8000;
  for (int i = 0; i < kFiles; ++i) write(in("outputs/" + std::to_string(i)), std::to_string(i));
  record_.note(ChangeKind::kTree, "outputs");
  snapshot("many files");
  const auto calls = [] {  // of read(2) and its like, proc_pid_io(5)
    std::ifstream rows("/proc/self/io");
    std::string name;
    std::uint64_t count = 0;
    while (rows >> name >> count && name != "syscr:") continue;
    return count;
  };
  const auto before = calls();
  for (int i = 0; i < 45; ++i) {
    write(in("temp/number"), std::to_string(i));
    record_.note(ChangeKind::kContent, "temp/number");
    snapshot("number");
  }
  EXPECT_LT(list(repository() / "objects/pack").size() / 2, 40u);
  EXPECT_LT(calls() - before, std::uint64_t{kFiles});
}

TEST_F(StockGit, ItsIndexOfSeveralPacksGoesBeforeTheyDo) {
  for (int i = 0; i < 60; ++i) {
    write(in("outputs/number"), std::to_string(i));
    record_.note(ChangeKind::kContent, "outputs/number");
    snapshot("number");
    if (i == 20) git("multi-pack-index write");
  }
  EXPECT_FALSE(std::filesystem::exists(repository() / "objects/pack/multi-pack-index"));
  expect_sound_repository();
  reopen();
  expect_sound_repository();
}

TEST_F(StockGit, AForkHasNothingThatItMadeToBeQuicker) {
  shell("echo a > outputs/one");
  const Snapshot a = snapshot("a");
  git("commit-graph write --reachable");
  git("commit-graph write --reachable --split");
  git("multi-pack-index write");
  const snapshots::StoreConfig target{scratch_ / "snapshots/f.git", scratch_ / "workspaces/f"};
  ASSERT_TRUE(store().fork(a.id.text(), target, nullptr));
  for (const char* file : {"info/commit-graph", "info/commit-graphs", "pack/multi-pack-index"})
    EXPECT_FALSE(there_is(target.repository / "objects" / file)) << file;
  EXPECT_EQ(run_script("git --git-dir=" + target.repository.string() + " fsck --strict", "/").exit_code, 0);
}

TEST_F(StockGit, WhatItTookAwayIsMissedByVerify) {
  shell("echo a > outputs/one");
  snapshot("a");
  ASSERT_THAT(store().verify("", record_.source(), nullptr)->problems, IsEmpty());
  for (const auto& file : std::filesystem::directory_iterator(repository() / "objects/pack"))
    std::filesystem::remove(file.path());
  const auto found = store().verify("", record_.source(), nullptr);
  EXPECT_TRUE(!found || !found->problems.empty());
}

TEST_F(StockGit, VerifySaysSoWhereItCannotReadHeadOrConfig) {
  shell("echo a > outputs/one");
  snapshot("a");
  reopen();
  const auto git_can = [this] {
    return run_script("git --git-dir=" + repository().string() + " log -1", "/").exit_code == 0;
  };
  const auto is_well = [this] {
    const auto found = store().verify("", record_.source(), nullptr);
    return found && found->problems.empty();
  };
  for (const char* name : {"HEAD", "config"}) {
    const auto whole = read(repository() / name);
    for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
      auto damaged = whole;
      damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
      write(repository() / name, damaged);
      EXPECT_TRUE(!is_well() || git_can()) << name << ", byte " << bit / 8 << ", bit " << bit % 8;
    }
    write(repository() / name, whole);
  }
  EXPECT_TRUE(is_well());
}

TEST_F(StockGit, VerifyHasNothingToSayOfABranchOfAUsers) {
  shell("echo a > outputs/one");
  const auto id = snapshot("a").id.text();
  git("branch mine");
  git("symbolic-ref HEAD refs/heads/mine");
  git("config user.name 'A \"user\"'");
  EXPECT_THAT(store().verify("", record_.source(), nullptr)->problems, IsEmpty());
  write(repository() / "HEAD", id + "\n");
  EXPECT_THAT(store().verify("", record_.source(), nullptr)->problems, IsEmpty());
}

/// libgit2 has it mapped: to read beyond its new end is SIGBUS.
TEST_F(StockGit, APackThatBecameShorterIsDamagedUntilItIsRepaired) {
  shell("head -c 300000 /dev/urandom > outputs/one");
  const Snapshot a = snapshot("a");
  const auto problems = [this] {
    const auto found = store().verify("", record_.source(), nullptr);
    return found ? found->problems.size() : 1;
  };
  ASSERT_EQ(problems(), 0u);
  std::filesystem::path pack;
  for (const auto& file : std::filesystem::directory_iterator(repository() / "objects/pack"))
    if (file.path().extension() == ".pack") pack = file.path();
  const auto bytes = read(pack);
  std::filesystem::resize_file(pack, 4096);
  shell("rm outputs/one");
  EXPECT_EQ(store().restore(a.id.text(), {}, false, hooks(), nullptr).error().code, Code::kCorrupt);
  EXPECT_NE(problems(), 0u);
  write(pack, bytes);
  EXPECT_EQ(problems(), 0u);
  restore(a);
  expect_exact(a);
}

/// Of a pack that the store has open.
class DamagedPack : public SnapshotTest, public ::testing::WithParamInterface<bool> {};

TEST_P(DamagedPack, IsNothingThatTheNextOneStandsOn) {
  make_zones();
  shell(
      "for d in 1 2 3; do mkdir outputs/$d; for f in $(seq 20); do seq $f$d 1000 > outputs/$d/$f; done; "
      "done");
  const Snapshot one = snapshot("one");
  shell("echo 2 > outputs/1/1");
  const Snapshot two = snapshot("two");
  restore(one);
  for (const auto& file : std::filesystem::directory_iterator(repository() / "objects/pack")) {
    if (file.path().extension() != ".pack") continue;
    auto bytes = read(file.path());
    if (GetParam())
      bytes.resize(bytes.size() / 2);
    else
      for (auto at = bytes.size() / 2; at < bytes.size() - 40; at += 100) bytes[at] ^= 1;
    write(file.path(), bytes);
  }
  shell("echo 3 > outputs/1/1");
  const Snapshot three = snapshot("three");
  EXPECT_TRUE(three.stats.rescanned);
  const auto before = manifest();
  shell("rm -r outputs/*");
  restore(three);
  expect_same(before, manifest());
  EXPECT_THAT(store().verify(three.id.text(), record_.source(), nullptr)->live_differences, IsEmpty());
  shell("echo 4 > outputs/1/1");
  EXPECT_FALSE(snapshot("four").stats.rescanned);
}

INSTANTIATE_TEST_SUITE_P(By, DamagedPack, ::testing::Bool(),
                         [](const auto& param) { return param.param ? "Truncation" : "FlippedBits"; });

/// The pack of the newest of two snapshots is lost: of `b`, but not of `a`.
class LostSnapshot : public SnapshotTest, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    make_zones();
    shell("mkdir outputs/d; echo one > outputs/a; echo two > outputs/d/b");
    a_ = snapshot("a");
    const auto before = packs();
    shell("echo three > outputs/a");
    b_ = snapshot("b");
    for (const auto& pack : packs())
      if (!before.contains(pack)) std::filesystem::remove(pack);
    if (GetParam()) reopen();
  }
  std::set<std::filesystem::path> packs() const {
    std::set<std::filesystem::path> files;
    for (const auto& file : std::filesystem::directory_iterator(repository() / "objects/pack"))
      files.insert(file.path());
    return files;
  }
  std::optional<Snapshot> a_, b_;
};

TEST_P(LostSnapshot, DoesNotHideThoseBeforeIt) {
  const auto list = store().list(0);
  ASSERT_TRUE(list) << list.error().message;
  ASSERT_EQ(list->size(), 2u);
  EXPECT_EQ(list->front().id, b_->id);
  EXPECT_TRUE(list->front().damaged);
  EXPECT_EQ(list->back().label, "a");
  EXPECT_EQ(store().find(b_->id.text()).error().code, Code::kCorrupt);
  EXPECT_NE(store().verify("", record_.source(), nullptr)->problems.size(), 0u);
  restore(*a_);
  EXPECT_EQ(read(in("outputs/a")), "one\n");
}

TEST_P(LostSnapshot, IsNothingThatTheNextOneStandsOn) {
  shell("echo four > outputs/d/b");
  const Snapshot c = snapshot("c");
  EXPECT_TRUE(c.stats.rescanned);
  EXPECT_EQ(c.parent, a_->id);
  expect_sound_repository();
  shell("rm -r outputs/*");
  restore(c);
  EXPECT_EQ(read(in("outputs/a")), "three\n");
  EXPECT_EQ(read(in("outputs/d/b")), "four\n");
  EXPECT_NE(store().verify("", record_.source(), nullptr)->problems.size(), 0u) << "one is lost";
}

/// Nobody had to do with them since.
TEST_F(StockGit, BlobsThatVerifyMissedAreStoredAgain) {
  shell("for f in $(seq 20); do seq $f 2000 > outputs/$f; done");
  snapshot("one");
  for (const auto& file : std::filesystem::directory_iterator(repository() / "objects/pack"))
    if (file.path().extension() == ".pack") {
      auto bytes = read(file.path());
      for (std::size_t at = 100; at < bytes.size() / 2; at += 100) bytes[at] ^= 1;
      write(file.path(), bytes);
    }
  reopen();
  record_.note(ChangeKind::kContent, "outputs/1");
  write(in("outputs/1"), "changed");
  EXPECT_NE(store().verify("", record_.source(), nullptr)->problems.size(), 0u);
  const auto two = store().take("two", record_.source(), nullptr);
  ASSERT_TRUE(two) << two.error().message;
  EXPECT_TRUE(two->stats.rescanned);
  const auto before = manifest();
  shell("rm -r outputs/*");
  restore(*two);
  expect_same(before, manifest());
}

INSTANTIATE_TEST_SUITE_P(Noticed, LostSnapshot, ::testing::Bool(),
                         [](const auto& param) { return param.param ? "AfterARestart" : "WhileRunning"; });

/// A ref that cannot be read says nothing, least of all that there are no snapshots.
class DamagedRef : public SnapshotTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    make_zones();
    shell("echo a > outputs/one");
    const Snapshot a = snapshot("a");
    shell("echo b > outputs/one");
    newest_ = snapshot("b").id.text();
    restore(a);
  }
  std::string newest_;
  void damage(const char* ref) { write(repository() / ref, GetParam()); }
};

TEST_P(DamagedRef, OfTheNewestSnapshot) {
  for (const bool anew : {false, true}) {
    damage("refs/heads/main");
    if (anew) reopen();
    const auto list = store().list(0);
    ASSERT_FALSE(list);
    EXPECT_EQ(list.error().code, Code::kCorrupt);
    shell("echo c > outputs/two");
    const auto taken = store().take("c", record_.source(), nullptr);
    ASSERT_FALSE(taken);
    EXPECT_EQ(taken.error().code, Code::kCorrupt);
    EXPECT_NE(taken.error().message.find(newest_), std::string::npos) << taken.error().message;
  }
}

TEST_P(DamagedRef, OfTheRestoredState) {
  damage("refs/okcvm/base");
  EXPECT_EQ(store().verify("", record_.source(), nullptr)->problems.size(), 1u);
  record_.note(ChangeKind::kEntry, "outputs/two");
  write(in("outputs/two"), "x");
  expect_exact(snapshot("c"));  // and does not count from what was there before the restore
  expect_sound_repository();
}

TEST_P(DamagedRef, OfTheStateToUndoTo) {
  damage("refs/okcvm/undo");
  const auto undone = store().undo(hooks(), nullptr);
  ASSERT_FALSE(undone);
  EXPECT_EQ(undone.error().code, Code::kCorrupt);
  const auto before = manifest();
  ASSERT_TRUE(store().restore(newest_, {}, false, hooks(), nullptr)) << "it is written anew";
  ASSERT_TRUE(store().undo(hooks(), nullptr));
  expect_same(before, manifest());
}

TEST_F(SnapshotTest, AreNotForgottenWhenTheRefToTheNewestIsLost) {
  make_zones();
  const auto first = snapshot("one"), second = snapshot("two");
  std::filesystem::remove(repository() / "refs/heads/main");
  for (const bool anew : {false, true}) {
    if (anew) reopen();
    const auto list = store().list(0);
    ASSERT_FALSE(list);
    EXPECT_EQ(list.error().code, Code::kCorrupt);
    const auto taken = store().take("three", record_.source(), nullptr);
    ASSERT_FALSE(taken) << "it would be the first";
    EXPECT_THAT(taken.error().message, ::testing::HasSubstr(second.id.text()));
  }
  write(repository() / "refs/heads/main", second.id.text() + "\n");
  EXPECT_EQ(store().list(0)->size(), 2u);
  EXPECT_EQ(store().find(first.id.text())->label, "one");
}

TEST_F(StockGit, TreesThatAreDeeperThanAnyPathAreDamaged) {
  const auto sound = snapshot("sound");
  shell("deep=$(printf 'd/%.0s' $(seq 3000)); git -C " + repository().string() + R"( fast-import --quiet <<EOF
commit refs/heads/main
committer okcvm <okcvm@localhost> 1700000000 +0000
data 5
deep

from refs/heads/main^0
M 100644 inline metadata/tree/outputs/${deep}.okcvm
data 32
. 755 0:0 1700000000.000000000

EOF)");
  reopen();
  const auto list = store().list(0);
  ASSERT_TRUE(list) << list.error().message;
  ASSERT_EQ(list->size(), 2u);
  const auto deep = list->front().id.text();
  const auto report = store().verify(deep, record_.source(), nullptr);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_THAT(report->problems, ::testing::Contains(::testing::HasSubstr("deeper than any path")));
  const auto restored = store().restore(deep, {}, false, hooks(), nullptr);
  ASSERT_FALSE(restored);
  EXPECT_EQ(restored.error().code, Code::kCorrupt);
  restore(sound);
}

TEST_F(SnapshotTest, AreAllListedThoughADigitOfTheLedgerIsAnother) {
  make_zones();
  std::vector<Snapshot> taken;
  for (const char* label : {"one", "two", "three", "four"}) {
    shell(std::string("echo ") + label + " > outputs/f");
    taken.insert(taken.begin(), snapshot(label));
  }
  const auto ledger = repository() / "okcvm/ledger";
  const auto sound = read(ledger);
  const auto digit = sound.find(taken[2].id.text()) + 30;
  for (const char other : {sound[digit] == '0' ? '1' : '0', 'x', '\n'}) {
    auto damaged = sound;
    damaged[digit] = other;
    write(ledger, damaged);
    reopen();
    const auto list = store().list(0);
    ASSERT_TRUE(list) << list.error().message;
    ASSERT_EQ(list->size(), taken.size());
    for (std::size_t i = 0; i < taken.size(); ++i) {
      EXPECT_EQ((*list)[i].id, taken[i].id);
      EXPECT_FALSE((*list)[i].damaged);
    }
    EXPECT_EQ(read(ledger), sound) << "it is written anew";
  }
  restore(taken[2]);
  EXPECT_EQ(read(in("outputs/f")), "two\n");
}

TEST_F(SnapshotTest, AreListedAgainOnceWhatWasDamagedIsMended) {
  make_zones();
  shell("echo 1 > outputs/one");
  const auto first = snapshot("one");
  shell("echo 2 > outputs/two");
  const auto second = snapshot("two");
  const auto aside = scratch_ / "objects";
  std::filesystem::rename(repository() / "objects", aside);
  for (const char* part : {"objects", "objects/pack", "objects/info"})
    std::filesystem::create_directory(repository() / part);
  reopen();
  shell("echo 3 > outputs/three");
  const auto third = snapshot("three");
  const auto list = store().list(0);
  ASSERT_TRUE(list) << list.error().message;
  ASSERT_EQ(list->size(), 3u);
  EXPECT_TRUE((*list)[1].damaged && (*list)[2].damaged);
  const auto copied = run_script("cp -an " + aside.string() + "/. objects/", repository());
  ASSERT_EQ(copied.exit_code, 0) << copied.output;
  reopen();
  EXPECT_EQ(store().list(0)->at(1).label, "two");
  restore(first);
  EXPECT_FALSE(there_is(in("outputs/two")));
  restore(third);
  EXPECT_TRUE(there_is(in("outputs/two")) && there_is(in("outputs/three")));
}

/// libgit2 follows them.
TEST_F(SnapshotTest, AreDamagedWhereAnIndexLeadsOutOfItsPack) {
  make_zones();
  shell("echo 1 > outputs/one");
  const auto first = snapshot("one");
  const auto before = manifest();
  reopen();
  std::filesystem::path index;
  for (const auto& entry : std::filesystem::directory_iterator(repository() / "objects/pack"))
    if (entry.path().extension() == ".idx") index = entry.path();
  ASSERT_FALSE(index.empty());
  const auto sound = read(index);
  const auto count = static_cast<unsigned char>(sound[8 + 255 * 4 + 3]);
  auto damaged = sound;
  for (std::size_t i = 0; i < count; ++i)
    damaged.replace(8 + 256 * 4 + count * 24u + i * 4, 4, std::string("\x1f\xff\xf0\0", 4));
  std::filesystem::permissions(index, std::filesystem::perms(0600));
  write(index, damaged);
  EXPECT_TRUE(store().list(0)->at(0).damaged);
  const auto second = snapshot("two");
  EXPECT_TRUE(there_is(repository() / "okcvm" / ("damaged-" + index.filename().string())));
  EXPECT_THAT(
      store().verify("", record_.source(), nullptr)->problems,
      ::testing::Contains(::testing::HasSubstr("git index-pack objects/pack/" + index.stem().string())));
  const auto made =
      run_script("git index-pack objects/pack/" + index.stem().string() + ".pack", repository());
  EXPECT_EQ(made.exit_code, 0) << made.output;
  reopen();
  EXPECT_EQ(store().find(first.id.text())->label, "one");
  expect_exact(second);
  restore(first);
  expect_same(before, manifest());
}

TEST_F(SnapshotTest, SayWhatToDoAboutADamagedIndex) {
  make_zones();
  shell("for i in $(seq 120); do echo $i > outputs/$i; done");
  const auto first = snapshot("one");
  const auto before = manifest();
  reopen();
  const auto packs = run_script("ls objects/pack/*.idx", repository()).output;
  const auto index = packs.substr(0, packs.find('\n'));
  auto bytes = read(repository() / index);
  std::filesystem::permissions(repository() / index, std::filesystem::perms(0600));
  write(repository() / index, bytes.replace(1500, 64, 64, '\0'));
  EXPECT_THAT(
      store().verify("", record_.source(), nullptr)->problems,
      ::testing::Contains(::testing::HasSubstr(index + " is damaged: remove it, then `git index-pack")));
  std::filesystem::remove(repository() / index);
  const auto made = run_script("git index-pack " + packs.substr(0, packs.find('.')) + ".pack", repository());
  EXPECT_EQ(made.exit_code, 0) << made.output;
  reopen();
  EXPECT_THAT(store().verify("", record_.source(), nullptr)->problems, IsEmpty());
  shell("rm outputs/*");
  restore(first);
  expect_same(before, manifest());
}

TEST_F(SnapshotTest, TouchNothingBehindALinkThatAnOperatorMade) {
  make_zones();
  snapshot("one");
  const auto elsewhere = scratch_ / "elsewhere";
  std::filesystem::rename(repository() / "objects", elsewhere);
  std::filesystem::create_directory_symlink(elsewhere, repository() / "objects");
  write(elsewhere / "apt.lock", "another program's");
  reopen();
  EXPECT_EQ(store().list(0)->size(), 1u);
  EXPECT_TRUE(there_is(elsewhere / "apt.lock"));
}

INSTANTIATE_TEST_SUITE_P(StockGit, DamagedRef, ::testing::Values("", "no ref\n"));

}  // namespace
}  // namespace okcvm::test
