// What was merely renamed since a snapshot is renamed back by a restore: it stays the same file or directory.

#include <sys/stat.h>

#include "tests/snapshots/fixture.h"

namespace okcvm::test {
namespace {

using namespace snapshots;

class RestoreRenamesTest : public SnapshotTest {
 protected:
  ino_t inode(const std::string& path) const { return stat_of(in(path)).st_ino; }

  /// From what one script leaves to what another does and back: the inode at `before` stands at `after` then.
  void expect_kept(const std::string& first, const std::string& second, const std::string& before,
                   const std::string& after) {
    make_zones();
    shell(first);
    const auto one = snapshot("one");
    const Manifest at_one = manifest();
    shell(second);
    const Manifest at_two = manifest();
    const auto known = inode(before);
    restore(one);
    EXPECT_EQ(inode(after), known);
    expect_same(at_one, manifest());
    ASSERT_TRUE(store().undo(hooks(), nullptr));
    EXPECT_EQ(inode(before), known);
    expect_same(at_two, manifest());
  }
};

constexpr const char* kProject =
    "cd outputs; mkdir -p p/src/deep p/empty; for f in 1 2 3; do echo $f > p/src/deep/$f; echo s$f > "
    "p/src/$f;"
    "done; echo r > p/readme; setfattr -n user.a -v 1 p/src; chmod 700 p/src; touch -d 2001-01-01 p/src;";

TEST_F(RestoreRenamesTest, ADirectory) {
  expect_kept(kProject, "mv outputs/p outputs/q", "outputs/q", "outputs/p");
}

TEST_F(RestoreRenamesTest, ADirectoryThatWentToAnotherZone) {
  expect_kept(kProject, "mv outputs/p temp/p", "temp/p/src", "outputs/p/src");
}

TEST_F(RestoreRenamesTest, ADirectoryThatWentElsewhereInWhichWorkWentOn) {
  expect_kept(std::string(kProject) + "mkdir x y; mv p x",
              "cd outputs; mv x/p y/q; echo new > y/q/src/1; rm y/q/readme; mv y/q/src/deep y/q",
              "outputs/y/q", "outputs/x/p");
}

TEST_F(RestoreRenamesTest, ADirectoryThatLostWhatItWasIn) {
  expect_kept(std::string(kProject) + "mkdir -p x/y; mv p x/y", "mv outputs/x/y/p temp; rm -r outputs/x",
              "temp/p/src", "outputs/x/y/p/src");
}

TEST_F(RestoreRenamesTest, ADirectoryInWhichWorkWentOn) {
  expect_kept(kProject,
              "cd outputs; mv p q; echo new > q/src/1; rm q/src/deep/2; mkdir q/more; echo m > q/more/m;"
              "chmod 755 q/src; rmdir q/empty",
              "outputs/q", "outputs/p");
}

TEST_F(RestoreRenamesTest, ADirectoryWithinOneThatWasRenamed) {
  expect_kept(kProject, "cd outputs; mv p q; mv q/src q/source; echo more >> q/source/2", "outputs/q/source",
              "outputs/p/src");
}

TEST_F(RestoreRenamesTest, WhatWasPutIntoANewDirectory) {
  expect_kept(kProject, "cd outputs; mkdir -p old/of/today; mv p old/of/today", "outputs/old/of/today/p",
              "outputs/p");
}

TEST_F(RestoreRenamesTest, WhatWasTakenOutOfADirectoryThatWent) {
  expect_kept(kProject, "cd outputs; mv p/src .; rm -r p", "outputs/src", "outputs/p/src");
}

TEST_F(RestoreRenamesTest, AFile) {
  expect_kept("head -c 100k /dev/urandom > outputs/f; chmod 640 outputs/f",
              "mkdir temp/d; mv outputs/f temp/d/g; chmod 600 temp/d/g; chown 5:6 temp/d/g", "temp/d/g",
              "outputs/f");
}

TEST_F(RestoreRenamesTest, ADirectoryWithItsHardLinks) {
  expect_kept("cd outputs; mkdir a; echo 1 > a/1; ln a/1 a/2; echo 3 > a/3", "mv outputs/a outputs/b",
              "outputs/b", "outputs/a");
}

TEST_F(RestoreRenamesTest, TheParentsHaveTheTimesOfTheSnapshot) {
  expect_kept(
      std::string(kProject) + "mkdir -p x/y; mv p x/y; touch -d 2002-02-02 x/y; touch -d 2003-03-03 x .",
      "cd outputs; mv x/y/p ../temp/p; rmdir ../temp/p/empty; touch -d 2004-04-04 x/y . ../temp; mv "
      "../temp/p x",
      "outputs/x/p/readme", "outputs/x/y/p/readme");
}

TEST_F(RestoreRenamesTest, WithSymbolicLinks) {
  there_and_back("mkdir -p outputs/a/b; ln -s ../../x outputs/a/b/l; echo 1 > outputs/a/b/f",
                 "mv outputs/a/b outputs/c; mv outputs/a outputs/d");
}

TEST_F(RestoreRenamesTest, WhatSnapshotsLeaveOutDoesNotComeAlong) {
  there_and_back("mkdir -p outputs/a; echo 1 > outputs/a/f", "cd outputs; mv a b; echo 2 > b/f");
  shell("cd outputs; mkfifo b/pipe; mv b c");
  const auto one = store().list(0)->back().id.text();
  ASSERT_TRUE(store().restore(one, {}, false, hooks(), nullptr));
  EXPECT_FALSE(there_is(in("outputs/a/pipe")));
  expect_exact(snapshot());
}

TEST_F(RestoreRenamesTest, OfSeveralAlikeEachIsTakenOnce) {
  there_and_back(
      "cd outputs; mkdir a b c; for d in a b c; do echo same > $d/f; touch -d 2001-01-01 $d/f $d; done",
      "cd outputs; mkdir n; mv a n/x; mv c n/b; mv b n/a; cp -a n/a n/d");
}

TEST_F(RestoreRenamesTest, NamesThatChangedPlaces) {
  there_and_back("cd outputs; mkdir -p a/in b/in; echo 1 > a/in/1; echo 2 > b/in/2; echo 3 > f; echo 4 > g",
                 "cd outputs; mv a t; mv b a; mv t b; mv f t; mv g f; mv t g");
}

TEST_F(RestoreRenamesTest, ADirectoryWhoseFormerNameIsAFileNow) {
  there_and_back(kProject, "cd outputs; mv p/src s; mv p q; echo f > p");
}

TEST_F(RestoreRenamesTest, PathsAloneTakeNothingFromElsewhere) {
  make_zones();
  shell(kProject);
  const auto one = snapshot("one");
  const Manifest at_one = manifest();
  shell("mv outputs/p temp/p");
  const auto moved = inode("temp/p");
  restore(one, {"outputs"});
  EXPECT_EQ(inode("temp/p"), moved);
  EXPECT_TRUE(there_is(in("outputs/p/src/deep/3")));
  restore(one, {"outputs", "temp"});
  expect_same(at_one, manifest());
  expect_exact(snapshot());
}

TEST_F(RestoreRenamesTest, NeedsNoReading) {
  make_zones();
  shell("mkdir -p outputs/d; head -c 3M /dev/urandom > outputs/d/large; echo x > outputs/d/x");
  const auto one = snapshot("one");
  move("outputs/d", "outputs/e");
  restore(one);
  move("outputs/d", "outputs/f");
  const auto taken = snapshot();
  EXPECT_EQ(taken.stats.bytes_read, 0u);
  expect_exact(taken);
}

TEST_F(RestoreRenamesTest, TellsWhichNamesGo) {
  make_zones();
  shell(kProject);
  const auto one = snapshot("one");
  shell("cd outputs; mv p q; mv q/src q/source; rm -r q/source/deep; echo x > q/new");
  std::vector<std::string> leaving;
  auto telling = hooks();
  telling.will_replace = [&](const std::vector<RelPath>& paths) {
    for (const auto& path : paths) leaving.push_back(path.text());
  };
  ASSERT_TRUE(store().restore(one.id.text(), {}, false, telling, nullptr));
  EXPECT_THAT(leaving, ::testing::UnorderedElementsAre("outputs/q", "outputs/q/source", "outputs/p/source",
                                                       "outputs/q/new", "outputs/p/new"));
  EXPECT_THAT(invalidated_, ::testing::IsSupersetOf({rel("outputs/q"), rel("outputs/p"),
                                                     rel("outputs/p/source"), rel("outputs/p/src"),
                                                     rel("outputs/p/new"), rel("outputs/p/src/deep")}));
}

TEST_F(RestoreRenamesTest, WhatIsBeingWrittenIsWatchedUnderItsNewName) {
  make_zones();
  shell(std::string(kProject) + "echo l > ../temp/log");
  const auto one = snapshot("one");
  shell("mv outputs/p outputs/q; mv outputs/q/src outputs/q/source; mv temp/log outputs/q/log");
  for (const char* path : {"outputs/q/source/1", "outputs/q/log", "outputs/q/readme"})
    record_.open_for_writing(path);
  restore(one);
  EXPECT_THAT(record_.still_mapped, ::testing::UnorderedElementsAre(rel("outputs/p/src/1"), rel("temp/log"),
                                                                    rel("outputs/p/readme")));
  record_.nothing_is_open();
  for (const char* path : {"outputs/p/src/1", "temp/log", "outputs/p/readme"}) write(in(path), "more");
  expect_exact(snapshot());
}

TEST_F(RestoreRenamesTest, AFailureInTheMiddleIsTakenBack) {
  make_zones();
  shell(std::string(kProject) +
        "mkdir -p x/y same/in; mv p x/y; echo 1 > g; touch -d 2002-02-02 x/y x same .");
  const auto one = snapshot("one");
  shell(
      "cd outputs; mv x/y/p q; mv q/src source; rm -r x; mv same other; echo new > q/new; mv g ../temp/h; "
      "touch -d 2003-03-03 . q source other");
  const auto file = inode("outputs/q/readme"), directory = inode("outputs/other");
  snapshot("two");
  restore_failing_at(
      {"restore.rename", "restore.attributes", "restore.mkdir", "restore.sync"}, one,
      [&] {
        EXPECT_EQ(inode("outputs/x/y/p/readme"), file);
        EXPECT_EQ(inode("outputs/same"), directory);
      },
      [&] {
        EXPECT_EQ(inode("outputs/q/readme"), file);
        EXPECT_EQ(inode("outputs/other"), directory);
      });
  expect_exact(snapshot("three"));
}

}  // namespace
}  // namespace okcvm::test
