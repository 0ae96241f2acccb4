// A file whose other names come or go does not differ itself: a restore leaves its inode, and links the
// others to it.

#include <fcntl.h>
#include <sys/stat.h>

#include <map>

#include "tests/snapshots/fixture.h"

namespace okcvm::test {
namespace {

using namespace snapshots;
using ::testing::ElementsAre;

class RestoreLinksTest : public SnapshotTest {
 protected:
  ino_t inode(const std::string& path) const { return stat_of(in(path)).st_ino; }

  /// By what it is called before the restore: what it is called after it.
  using Names = std::map<std::string, std::string>;
  /// From what one script leaves to what another does, back, forward, and back by undo. These files stay the
  /// same.
  void expect_kept(const std::string& first, const std::string& second, const Names& kept) {
    make_zones();
    shell(first);
    const auto one = snapshot("one");
    const Manifest at_one = manifest();
    shell(second);
    const Manifest at_two = manifest();
    std::map<std::string, ino_t> known;
    for (const auto& [before, after] : kept) known[before] = inode(before);
    const auto expect = [&](const Manifest& all, bool restored) {
      for (const auto& [before, after] : kept)
        EXPECT_EQ(inode(restored ? after : before), known[before]) << before << ' ' << restored;
      expect_same(all, manifest());
    };
    restore(one);
    expect(at_one, true);
    expect_exact(snapshot("restored"));
    ASSERT_TRUE(store().undo(hooks(), nullptr));
    expect(at_two, false);
    ASSERT_TRUE(store().undo(hooks(), nullptr));
    expect(at_one, true);
    expect_exact(snapshot("after all"));
    expect_sound_repository();
  }
  void expect_stays(const std::string& first, const std::string& second, const std::string& path) {
    expect_kept(first, second, {{path, path}});
  }
};

constexpr const char* kLog = "cd outputs; echo start > log; chmod 640 log; setfattr -n user.a -v 1 log;";
/// Two groups of the same bytes and attributes.
constexpr const char* kTwoGroups =
    "cd outputs; echo 1 > a; touch -d 2001-01-01 a; cp -p a c; ln a b; ln c d;";

TEST_F(RestoreLinksTest, ANameCame) {
  expect_stays(kLog, "ln outputs/log outputs/log.bak", "outputs/log");
}

TEST_F(RestoreLinksTest, ANameWent) {
  expect_stays(std::string(kLog) + "ln log ../temp/log.bak", "rm temp/log.bak", "outputs/log");
}

TEST_F(RestoreLinksTest, NamesCameInADirectoryOfTheirOwn) {
  expect_stays("mkdir -p outputs/store/deep; cd outputs/store; echo 1 > 1; echo 2 > deep/2",
               "cp -al outputs/store outputs/copy", "outputs/store/deep/2");
}

TEST_F(RestoreLinksTest, NamesWentWithTheirDirectory) {
  expect_stays(
      "mkdir -p outputs/store/deep; cd outputs; echo 1 > store/1; echo 2 > store/deep/2; cp -al store copy",
      "rm -r outputs/copy", "outputs/store/deep/2");
}

TEST_F(RestoreLinksTest, GroupsWereJoined) {
  expect_kept(kTwoGroups, "cd outputs; ln -f a c; ln -f a d",
              {{"outputs/a", "outputs/a"}, {"outputs/b", "outputs/b"}});
}

TEST_F(RestoreLinksTest, GroupsWereParted) {
  expect_kept("cd outputs; echo 1 > a; touch -d 2001-01-01 a; ln a b; ln a c; ln a d",
              "cd outputs; cp -p a t; mv t c; ln -f c d",
              {{"outputs/a", "outputs/a"}, {"outputs/b", "outputs/b"}});
}

TEST_F(RestoreLinksTest, MembersChangedPlaces) {
  expect_stays(kTwoGroups, "cd outputs; ln -f a t; ln -f c b; mv t d", "outputs/a");
}

TEST_F(RestoreLinksTest, FilesThatWereApartBecameOne) {
  expect_stays("cd outputs; echo 1 > a; touch -d 2001-01-01 a; cp -p a b", "ln -f outputs/a outputs/b",
               "outputs/a");
}

TEST_F(RestoreLinksTest, AllNamesHaveOtherBytes) {
  there_and_back("cd outputs; echo 1 > a; ln a b; ln a ../temp/c", "cd outputs; echo 2 > a; rm b; ln a d");
}

TEST_F(RestoreLinksTest, OneNameHasOtherBytes) {
  expect_kept("cd outputs; echo 1 > a; ln a b; ln a c", "cd outputs; rm a; echo 2 > a",
              {{"outputs/b", "outputs/b"}, {"outputs/c", "outputs/c"}});
}

TEST_F(RestoreLinksTest, AnotherFileOfTheSameBytesTookTheFirstName) {
  expect_kept("cd outputs; echo 1 > a; touch -d 2001-01-01 a; ln a b; ln a c",
              "cd outputs; cp -p a t; mv t a", {{"outputs/b", "outputs/b"}, {"outputs/c", "outputs/c"}});
}

TEST_F(RestoreLinksTest, AttributesAreSetInPlace) {
  expect_stays(std::string(kLog) + "chown 5:6 log",
               "cd outputs; ln log log.bak; chmod 600 log; chown 7:8 log; setfattr -x user.a log; touch -d "
               "2001-01-01 log",
               "outputs/log");
}

TEST_F(RestoreLinksTest, OneThatIsAsItShallBeIsTakenFirst) {
  make_zones();
  shell("cd outputs; echo 1 > a; touch -d 2001-01-01 a; ln a b");
  const auto one = snapshot("one");
  shell("cd outputs; cp -p a t; mv t a; chmod 600 a");
  const auto wanted = inode("outputs/b");
  restore(one);
  EXPECT_EQ(inode("outputs/a"), wanted);
  EXPECT_EQ(inode("outputs/b"), wanted);
  expect_exact(snapshot());
}

TEST_F(RestoreLinksTest, SymbolicLinks) {
  expect_stays("ln -s nowhere outputs/l", "ln outputs/l temp/l", "outputs/l");
  expect_stays("ln outputs/l outputs/m", "rm outputs/m; touch -h -d 2001-01-01 outputs/l", "outputs/l");
}

TEST_F(RestoreLinksTest, ItWasRenamed) {
  expect_kept("cd outputs; echo 1 > a; ln a b", "cd outputs; mv a ../temp/c; rm b",
              {{"temp/c", "outputs/a"}});
}

TEST_F(RestoreLinksTest, TheDirectoryThatItIsInWasRenamed) {
  expect_kept("mkdir -p outputs/d/in; cd outputs/d/in; echo 1 > a; ln a b; ln a ../../c; echo 2 > e",
              "cd outputs; rm c; mv d/in d/inside; mv d ../temp/f; cd ../temp/f/inside; rm b; ln a ../g",
              {{"temp/f/inside/a", "outputs/d/in/a"}, {"temp/f/inside", "outputs/d/in"}});
}

TEST_F(RestoreLinksTest, WhatIsOpenIsGoneOnWith) {
  make_zones();
  shell(kLog);
  const auto one = snapshot("one");
  const auto file = open_file(in("outputs/log"), O_WRONLY | O_APPEND);
  shell("ln outputs/log outputs/log.bak");
  const auto restored = restore(one);
  ASSERT_EQ(restored.applied.size(), 2u) << "that its names differ is told as before";
  EXPECT_EQ(restored.applied[0].kind, DifferenceKind::kMetadata);
  EXPECT_EQ(restored.applied[1].kind, DifferenceKind::kRemoved);
  EXPECT_THAT(invalidated_, ::testing::IsSupersetOf({rel("outputs/log"), rel("outputs/log.bak")}));
  write_all(file, "more\n");
  EXPECT_EQ(read(in("outputs/log")), "start\nmore\n");
}

TEST_F(RestoreLinksTest, TellsOnlyOfNamesThatGo) {
  make_zones();
  shell(kLog);
  const auto one = snapshot("one");
  shell("ln outputs/log outputs/log.bak");
  std::vector<RelPath> leaving;
  auto telling = hooks();
  telling.will_replace = [&](const std::vector<RelPath>& paths) { leaving = paths; };
  ASSERT_TRUE(store().restore(one.id.text(), {}, false, telling, nullptr));
  EXPECT_THAT(leaving, ElementsAre(rel("outputs/log.bak")));
  ASSERT_TRUE(store().undo(telling, nullptr));
  EXPECT_THAT(leaving, ::testing::IsEmpty());
}

TEST_F(RestoreLinksTest, WhatIsBeingWrittenIsWatchedUnderTheNameThatStays) {
  make_zones();
  shell(std::string(kLog) + "echo 2 > other");
  const auto one = snapshot("one");
  shell("cd outputs; ln log log.bak; ln -f log other");
  record_.open_for_writing("outputs/log.bak");
  record_.open_for_writing("outputs/other");
  restore(one);
  EXPECT_THAT(record_.still_mapped, ElementsAre(rel("outputs/log"), rel("outputs/log")));
  record_.nothing_is_open();
  write(in("outputs/log"), "more");
  expect_exact(snapshot());
}

TEST_F(RestoreLinksTest, PathsAloneAreLinkedToWhatStandsOutside) {
  make_zones();
  shell("cd outputs; echo 1 > a; ln a b; ln a ../temp/c");
  const auto one = snapshot("one");
  const Manifest at_one = manifest();
  const auto known = inode("temp/c");
  for (const char* change : {"rm outputs/b", "cd outputs; rm a; echo 2 > a", "cd outputs; cp -p a t; mv t b",
                             "ln outputs/a outputs/e; rm outputs/a"}) {
    shell(change);
    const Manifest before = manifest();
    restore(one, {"outputs"});
    EXPECT_EQ(inode("temp/c"), known) << change;
    expect_same(at_one, manifest());
    expect_exact(snapshot());
    ASSERT_TRUE(store().undo(hooks(), nullptr));
    expect_same(before, manifest());
    restore(one);
    EXPECT_EQ(inode("temp/c"), known) << change;
    expect_same(at_one, manifest());
  }
}

TEST_F(RestoreLinksTest, PathsAloneLeaveLinksThatDidNotChange) {
  make_zones();
  shell("cd outputs; echo 1 > a; ln a b; ln a ../temp/c; echo 1 > d; ln d e; echo 1 > f");
  const auto one = snapshot("one");
  const Manifest at_one = manifest();
  shell("echo 2 > outputs/f");
  restore(one, {"outputs"});
  expect_same(at_one, manifest());
  expect_exact(snapshot());
}

TEST_F(RestoreLinksTest, PathsAlonePartFromWhatStandsOutside) {
  make_zones();
  shell("echo 1 > outputs/a");
  const auto one = snapshot("one");
  shell("ln outputs/a temp/c; ln outputs/a outputs/b");
  const auto known = inode("temp/c");
  const Manifest before = manifest();
  restore(one, {"outputs"});
  EXPECT_EQ(inode("temp/c"), known);
  EXPECT_NE(inode("outputs/a"), known);
  EXPECT_FALSE(there_is(in("outputs/b")));
  EXPECT_EQ(stat_of(in("temp/c")).st_nlink, 1u);
  expect_exact(snapshot());
  ASSERT_TRUE(store().undo(hooks(), nullptr));
  expect_same(before, manifest());
  expect_exact(snapshot());
}

TEST_F(RestoreLinksTest, PathsAloneGoOnWithoutWhatDiffersOutside) {
  make_zones();
  shell("cd outputs; echo 1 > a; ln a b; ln a ../temp/c");
  const auto one = snapshot("one");
  shell("cd temp; rm ../outputs/b c; echo 2 > c");
  const auto known = inode("outputs/a"), outside = inode("temp/c");
  for (int i = 0; i < 2; ++i) {  // they still differ from the snapshot in what they are linked to
    restore(one, {"outputs"});
    EXPECT_EQ(inode("outputs/a"), known);
    EXPECT_EQ(inode("outputs/b"), known);
    EXPECT_EQ(inode("temp/c"), outside);
    EXPECT_EQ(read(in("temp/c")), "2\n");
    expect_exact(snapshot());
  }
}

TEST_F(RestoreLinksTest, OneFileOutsideIsNotGivenToTwo) {
  make_zones();
  shell(
      "cd outputs; echo 1 > a; touch -d 2001-01-01 a; cp -p a b; ln a ../temp/a; ln b ../temp/b; touch -d "
      "2001-01-01 . ../temp");
  const auto one = snapshot("one");
  shell("rm outputs/a outputs/b; ln -f temp/a temp/b");
  restore(one, {"outputs"});
  EXPECT_EQ(inode("outputs/a"), inode("temp/a"));
  EXPECT_NE(inode("outputs/b"), inode("outputs/a"));
  expect_exact(snapshot());
}

TEST_F(RestoreLinksTest, AFailureInTheMiddleIsTakenBack) {
  make_zones();
  shell(
      "mkdir outputs/d temp/e; cd outputs; echo 1 > a; ln a b; ln a ../temp/e/c; echo 2 > d/f; ln d/f g; "
      "touch "
      "-d 2001-01-01 d . ../temp/e");
  const auto one = snapshot("one");
  shell("cd outputs; rm b; ln a h; chmod 600 a; rm -r ../temp/e; mv d i; rm g; ln i/f i/j");
  const auto file = inode("outputs/a"), renamed = inode("outputs/i/f");
  snapshot("two");
  restore_failing_at(
      {"restore.link", "restore.rename", "restore.attributes", "restore.sync"}, one,
      [&] {
        EXPECT_EQ(inode("outputs/a"), file);
        EXPECT_EQ(inode("temp/e/c"), file);
        EXPECT_EQ(inode("outputs/g"), renamed);
      },
      [&] {
        EXPECT_EQ(inode("outputs/a"), file);
        EXPECT_EQ(inode("outputs/i/f"), renamed);
      });
  expect_exact(snapshot("three"));
}

}  // namespace
}  // namespace okcvm::test
