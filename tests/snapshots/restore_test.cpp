#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include "tests/snapshots/fixture.h"
#include "tests/support/loop_disk.h"

namespace okcvm::test {
namespace {

using namespace snapshots;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> paths_of(const std::vector<Difference>& rows) {
  std::vector<std::string> paths;
  for (const auto& row : rows) paths.push_back(row.path.text());
  return paths;
}

class RestoreTest : public SnapshotTest {};

TEST_F(RestoreTest, BringsBackWhatWasChangedRemovedAndAdded) {
  there_and_back(
      "mkdir -p outputs/a/b outputs/gone/deep; echo 1 > outputs/a/b/1; echo 2 > outputs/gone/deep/2; ln -s a "
      "outputs/l",
      "echo more >> outputs/a/b/1; rm -r outputs/gone; mkdir -p uploads/new/x; echo n > uploads/new/x/n; ln "
      "-sfn b outputs/l;"
      "chmod 700 outputs/a; touch -d 2001-01-01 outputs/a/b");
}

TEST_F(RestoreTest, FilesBecomeDirectoriesAndLinksAndBack) {
  there_and_back(
      "echo f > outputs/x; mkdir -p outputs/d/e; echo 1 > outputs/d/e/1; ln -s d outputs/l; ln -s nowhere "
      "outputs/m",
      "rm outputs/x; mkdir outputs/x; echo in > outputs/x/in; rm -r outputs/d; ln -s x outputs/d; rm "
      "outputs/l; echo l > outputs/l;"
      "rm outputs/m; mkdir outputs/m");
}

TEST_F(RestoreTest, HardLinksAcrossDirectories) {
  there_and_back(
      "mkdir outputs/a uploads/b; echo 1 > outputs/a/1; ln outputs/a/1 uploads/b/2; ln outputs/a/1 temp/3; "
      "echo s > outputs/s; ln outputs/s outputs/t",
      "echo changed > uploads/b/2; rm temp/3; rm outputs/t; cp -p outputs/s outputs/t; echo o > outputs/o; "
      "ln outputs/o outputs/a/p");
}

TEST_F(RestoreTest, HardLinksMadeAndPartedWithoutAnyOtherTrace) {
  there_and_back(
      "echo same > outputs/a; touch -d 2001-01-01 outputs/a; cp -p outputs/a outputs/b; touch -d 2002-02-02 "
      "outputs",
      "rm outputs/b; ln outputs/a outputs/b; touch -d 2002-02-02 outputs");
}

TEST_F(RestoreTest, ModesOwnersTimesAndXattrsAlone) {
  there_and_back(
      "echo 1 > outputs/f; mkdir outputs/d; ln -s f outputs/l; setfattr -n user.a -v 1 outputs/f; setfattr "
      "-n user.d -v 1 outputs/d; chmod 4755 outputs/f",
      "chmod 0 outputs/f; chown 77:88 outputs/f outputs/d; chown -h 5:6 outputs/l; touch -h -d 1980-01-01 "
      "outputs/l; setfattr -x user.a outputs/f; setfattr -n user.b -v '' outputs/f; chmod 1777 outputs/d");
}

TEST_F(RestoreTest, MetadataAloneKeepsTheInode) {
  make_zones();
  shell("echo 1 > outputs/f");
  const auto one = snapshot("one");
  const auto inode = stat_of(in("outputs/f")).st_ino;
  ::chmod(in("outputs/f").c_str(), 0600);
  record_.note(ChangeKind::kAttributes, "outputs/f");
  const auto restored = restore(one);
  EXPECT_EQ(stat_of(in("outputs/f")).st_ino, inode);
  EXPECT_EQ(mode_of(in("outputs/f")), 0644u);
  ASSERT_EQ(restored.applied.size(), 1u);
  EXPECT_EQ(restored.applied[0].kind, DifferenceKind::kMetadata);
}

TEST_F(RestoreTest, NestedRepositoriesAndSubmodules) {
  if (!have_program("git")) GTEST_SKIP() << "git is not installed";
  there_and_back(R"(
      export HOME=/nonexistent GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
      cd outputs; git init -q r; cd r; echo 1 > f; git add f; git commit -qm one
      git init -q ../lib; cd ../lib; echo l > l; git add l; git commit -qm lib; cd ../r
      git -c protocol.file.allow=always submodule add -q ../lib sub; git commit -qm sub
      printf '*.log\nbuild/\n' > .gitignore; mkdir build; echo x > build/x; echo y > y.log
      printf '* text eol=crlf\n*.dat filter=nope export-ignore\n' > .gitattributes; printf 'a\nb\n' > t.txt; echo d > d.dat)",
                 "cd outputs/r; git checkout -q -b other; echo 2 > f; git -c user.name=a -c user.email=a@b "
                 "commit -qam two; rm -rf build .git/modules; mv .gitattributes x");
  const auto plain =
      run_script("git clone -q " + repository().string() + " clone && cat clone/workspace/outputs/r/t.txt",
                 scratch_.path());
  EXPECT_EQ(plain.exit_code, 0) << plain.output;
}

TEST_F(RestoreTest, NamesOfEveryKind) {
  there_and_back(
      R"sh(
      cd outputs; mkdir .git .GIT 'git~1' .git. '.git ' .okcvm d; echo 1 > .git/config; echo 2 > .GIT/x; echo 3 > 'git~1/x'; echo 4 > .git./x; echo 5 > .okcvm/.okcvm
      echo a > "$(printf 'new\nline')"; echo b > "$(printf 'not\377utf8')"; echo c > "$(head -c 255 /dev/zero | tr '\0' n)"
      echo d > '%2egit'; echo e > '100%'; echo f > '%41'; echo g > .gitmodules; echo '[bad' >> .gitmodules; ln -s x d/.gitmodules; ln -s x .gitignore; ln -s y d/.mailmap
      echo h > 'a\.git'; echo i > "$(printf '.g\342\200\214it')"; echo j > '.git:stream'; echo k > ' leading'; echo l > 'tab	x'; echo m > '.gitattributes'
      mkdir "$(printf '.git%0251d' 0 | tr 0 '.')"; echo n > "$(printf '%%41%0252d' 7)"; echo o > "$(printf '\001\177')"; mkdir -- -f; echo p > GI7EBA~1)sh",
      "cd outputs; rm -rf .git .GIT; echo 9 > 'git~1/x'; mv '.git ' moved; rm '%2egit'; echo x > .git");
}

TEST_F(RestoreTest, ModeZeroFilesAndFolders) {
  there_and_back(
      "echo s > outputs/secret; mkdir outputs/closed; echo 1 > outputs/closed/1; chmod 0 outputs/secret "
      "outputs/closed",
      "rm -r outputs/closed; chmod 600 outputs/secret; echo t > outputs/secret; chmod 0 outputs/secret");
}

TEST_F(RestoreTest, AClosedFolderInTheWay) {
  there_and_back("echo f > outputs/x; mkdir -p outputs/d/e; echo 1 > outputs/d/e/1",
                 "rm outputs/x; mkdir -p outputs/x/y; echo in > outputs/x/y/in; chmod 0 outputs/x/y "
                 "outputs/x; chmod 0 outputs/d/e "
                 "outputs/d; touch -d 2001-01-01 outputs/x");
}

TEST_F(RestoreTest, ASparseFileOfTwoGigabytes) {
  make_zones();
  shell(
      "truncate -s 2G outputs/sparse; printf start | dd of=outputs/sparse conv=notrunc status=none;"
      "printf end | dd of=outputs/sparse bs=1 seek=1500000000 conv=notrunc status=none");
  const Manifest before = manifest();
  const auto one = snapshot("one");
  shell("rm outputs/sparse");
  restore(one);
  expect_same(before, manifest());
  const auto status = stat_of(in("outputs/sparse"));
  EXPECT_EQ(status.st_size, 2LL << 30);
  EXPECT_LT(status.st_blocks * 512, 1 << 20);
  EXPECT_EQ(
      run_script("head -c 5 sparse; dd if=sparse bs=1 skip=1500000000 count=3 status=none", in("outputs"))
          .output,
      "startend");
}

TEST_F(RestoreTest, OpenFilesAndWorkingDirectoriesStayValid) {
  make_zones();
  shell("mkdir -p outputs/d; echo old > outputs/d/f");
  const auto one = snapshot("one");
  const auto directory_inode = stat_of(in("outputs/d")).st_ino;
  shell("echo new > outputs/d/f; mkdir outputs/later");
  const auto file = open_file(in("outputs/d/f"), O_RDONLY);
  const auto directory = open_file(in("outputs/d"), O_RDONLY | O_DIRECTORY);
  const auto later = open_file(in("outputs/later"), O_RDONLY | O_DIRECTORY);
  restore(one);
  EXPECT_EQ(read(file), "new\n");
  EXPECT_EQ(stat_of(in("outputs/d")).st_ino, directory_inode);
  const FileDescriptor through(::openat(directory.get(), "f", O_RDONLY));
  EXPECT_EQ(read(through), "old\n");
  EXPECT_EQ(stat_of(later).st_nlink, 0u);
}

TEST_F(RestoreTest, PathsAloneLeaveTheRest) {
  make_zones();
  shell(
      "mkdir -p outputs/a/b uploads/c; echo 1 > outputs/a/b/1; echo 2 > outputs/a/2; echo 3 > uploads/c/3; "
      "ln outputs/a/2 uploads/c/two");
  const auto one = snapshot("one");
  const Manifest at_one = manifest();
  shell("rm -r outputs/a; echo 4 > uploads/c/3; echo 5 > uploads/c/5; touch -d 2003-03-03 outputs");
  Manifest expected = manifest();
  restore(one, {"outputs/a/b"});
  expected["outputs/a"] = at_one.at("outputs/a");
  expected["outputs/a/b"] = at_one.at("outputs/a/b");
  expected["outputs/a/b/1"] = at_one.at("outputs/a/b/1");
  expected["outputs"].links = at_one.at("outputs").links;
  expect_same(expected, manifest());
  expect_exact(snapshot("in between"));
  restore(one, {"uploads/c/5", "outputs/a/2"});
  EXPECT_FALSE(there_is(in("uploads/c/5")));
  EXPECT_EQ(stat_of(in("outputs/a/2")).st_ino, stat_of(in("uploads/c/two")).st_ino)
      << "joined to the link that stayed";
  EXPECT_EQ(read(in("uploads/c/3")), "4\n");
  expect_exact(snapshot("and after"));
  EXPECT_EQ(store().restore(one.id.text(), {rel("outputs/never")}, false, hooks(), nullptr).error().code,
            Code::kNotFound);
  EXPECT_EQ(store().restore(one.id.text(), {rel("skills/x")}, false, hooks(), nullptr).error().code,
            Code::kInvalidRequest);
  EXPECT_EQ(store().restore(one.id.text(), {rel(".restore")}, true, hooks(), nullptr).error().code,
            Code::kInvalidRequest);
}

/// A directory that is there keeps its mode: it may let more people in than the one whose file comes into it.
TEST_F(RestoreTest, PathsInClosedDirectoriesAreForWhoMaySearchThem) {
  make_zones();
  shell("mkdir -m 755 outputs/box; echo 1 > outputs/box/open");
  const auto open = snapshot("open");
  shell(
      "chmod 700 outputs/box; echo secret > outputs/box/secret; mkdir outputs/box/in; echo 2 > "
      "outputs/box/in/f");
  const auto closed = snapshot("closed");
  auto by_user = hooks();
  by_user.caller = {1000, 1000, {}};
  const auto asked = [&](const Snapshot& target, const char* path, bool dry_run = false) {
    const auto done = store().restore(target.id.text(), {rel(path)}, dry_run, by_user, nullptr);
    return done ? std::nullopt : std::optional(done.error().code);
  };
  const auto expect_refused = [&](const Snapshot& target) {
    const auto before = manifest();
    for (const char* path : {"outputs/box/secret", "outputs/box/in/f", "outputs/box/in", "outputs/box/none"})
      for (const bool dry_run : {true, false})
        EXPECT_EQ(asked(target, path, dry_run), Code::kForbidden) << path;
    expect_same(before, manifest());
  };
  expect_refused(open);    // as it is
  expect_refused(closed);  // both
  shell("mv outputs/box outputs/aside; mkdir -m 777 outputs/box");
  expect_refused(closed);  // as it was
  ASSERT_EQ(asked(closed, "outputs/box"), std::nullopt);
  EXPECT_EQ(mode_of(in("outputs/box")), 0700u);
  EXPECT_EQ(read(in("outputs/box/secret")), "secret\n");
  shell("rm outputs/box/secret");
  restore(closed, {"outputs/box/secret"});
  EXPECT_EQ(read(in("outputs/box/secret")), "secret\n");
  shell("chmod 711 outputs/box");
  const auto searched = snapshot("searched");
  shell("rm outputs/box/open");
  EXPECT_EQ(asked(searched, "outputs/box/open"), std::nullopt);
  EXPECT_EQ(read(in("outputs/box/open")), "1\n");
}

TEST_F(RestoreTest, ADryRunSaysExactlyWhatWouldBeDone) {
  make_zones();
  shell("mkdir -p outputs/a/b; echo 1 > outputs/a/b/1; echo 2 > outputs/2");
  const auto one = snapshot("one");
  shell("rm -r outputs/a; echo changed > outputs/2; echo x > uploads/x");
  const Manifest before = manifest();
  auto planned = store().restore(one.id.text(), {}, true, hooks(), nullptr);
  ASSERT_TRUE(planned);
  EXPECT_FALSE(planned->before);
  expect_same(before, manifest());
  EXPECT_EQ(store().list(0)->size(), 1u);
  const auto done = restore(one);
  EXPECT_EQ(paths_of(planned->applied), paths_of(done.applied));
  EXPECT_THAT(paths_of(done.applied),
              ElementsAre("outputs/2", "outputs/a", "outputs/a/b", "outputs/a/b/1", "uploads/x"));
  EXPECT_THAT(invalidated_, Contains(rel("outputs/2")));
}

TEST_F(RestoreTest, OfADirectoryThatComesAsAWholeOnlyWhatHasNamesElsewhereIsTold) {
  make_zones();
  shell(
      "mkdir -p outputs/a/b uploads/c; echo 1 > outputs/a/b/1; echo 2 > outputs/2; ln outputs/2 "
      "outputs/a/b/2");
  const auto one = snapshot("one");
  shell("rm -r outputs/a; echo 3 > uploads/c/3; ln uploads/c/3 outputs/3; echo 4 > uploads/c/4");
  const auto two = snapshot("two");
  restore(one);
  EXPECT_THAT(invalidated_,
              ::testing::IsSupersetOf({rel("outputs/a"), rel("outputs/2"), rel("outputs/a/b/2"),
                                       rel("outputs/3"), rel("uploads/c/3"), rel("uploads/c/4")}));
  EXPECT_THAT(invalidated_, ::testing::Not(Contains(rel("outputs/a/b/1"))));
  restore(two);
  EXPECT_THAT(invalidated_,
              ::testing::IsSupersetOf({rel("outputs/a"), rel("outputs/2"), rel("uploads/c/4")}));
  EXPECT_THAT(invalidated_, ::testing::Not(Contains(rel("outputs/a/b/1"))));
}

TEST_F(RestoreTest, LinksInTheWayAreNotFollowed) {
  make_zones();
  shell("mkdir -p outputs/d/e; echo 1 > outputs/d/e/1; echo 2 > outputs/f");
  const auto one = snapshot("one");
  std::filesystem::create_directories(scratch_ / "outside/e");
  write(scratch_ / "outside/e/1", "precious");
  shell("rm -r outputs/d outputs/f; ln -s " + (scratch_ / "outside").string() + " outputs/d; ln -s " +
        (scratch_ / "outside/e/1").string() + " outputs/f");
  restore(one);
  EXPECT_EQ(read(scratch_ / "outside/e/1"), "precious");
  EXPECT_EQ(read(in("outputs/d/e/1")), "1\n");
  EXPECT_EQ(read(in("outputs/f")), "2\n");
}

TEST_F(RestoreTest, ALinkInTheWayOfAParentGivesWayAndIsNotFollowed) {
  make_zones();
  shell(
      "mkdir -p outputs/d/e/deep; echo 1 > outputs/d/e/deep/1; echo 2 > outputs/d/2; chmod 700 outputs/d/e");
  const auto one = snapshot("one");
  const Manifest at_one = manifest();
  std::filesystem::create_directories(scratch_ / "outside/e/deep");
  write(scratch_ / "outside/e/deep/1", "precious");
  const Manifest outside = manifest_of(scratch_ / "outside");
  shell("rm -r outputs/d; ln -s " + (scratch_ / "outside").string() + " outputs/d");
  const Manifest at_two = manifest();
  restore(one, {"outputs/d/e/deep/1"});
  EXPECT_THAT(differences(outside, manifest_of(scratch_ / "outside")), IsEmpty());
  const Manifest now = manifest();
  for (const char* path : {"outputs/d/e", "outputs/d/e/deep", "outputs/d/e/deep/1"}) {
    ASSERT_TRUE(now.contains(path)) << path;
    EXPECT_THAT(differences({{path, at_one.at(path)}}, {{path, now.at(path)}}), IsEmpty());
  }
  EXPECT_FALSE(now.contains("outputs/d/2")) << "only what was asked for, and what it needs to stand in";
  expect_exact(snapshot("after"));
  ASSERT_TRUE(store().undo(hooks(), nullptr));
  expect_same(at_two, manifest());
  EXPECT_THAT(differences(outside, manifest_of(scratch_ / "outside")), IsEmpty());
}

TEST_F(RestoreTest, ToBeforeTheZonesExistedAndBack) {
  const auto nothing = snapshot("nothing");
  make_zones();
  shell("echo 1 > outputs/1; mkdir temp/t");
  const Manifest full = manifest();
  const auto restored = restore(nothing);
  EXPECT_THAT(list(in("outputs")), IsEmpty());
  EXPECT_THAT(list(in("temp")), IsEmpty());
  const auto differences =
      store().diff(nothing.id.text(), std::nullopt, record_.source(), std::nullopt, nullptr);
  ASSERT_TRUE(differences) << differences.error().message;
  EXPECT_THAT(*differences, IsEmpty());
  ASSERT_TRUE(store().undo(hooks(), nullptr));
  expect_same(full, manifest());
  std::filesystem::remove_all(workspace());
  for (const char* zone : {"uploads", "outputs", "temp"}) record_.note(ChangeKind::kTree, zone);
  restore(*restored.before);
  expect_same(full, manifest());
}

TEST_F(RestoreTest, AZoneIsAsBeforeItsFirstChange) {
  const auto nothing = snapshot("nothing");
  make_zones();
  shell(
      "chmod 1700 outputs; chown 5:6 outputs; setfattr -n user.a -v 1 outputs; touch -d 2001-01-01 outputs");
  const Manifest full = manifest();
  const auto differences =
      store().diff(nothing.id.text(), std::nullopt, record_.source(), std::nullopt, nullptr);
  ASSERT_TRUE(differences) << differences.error().message;
  ASSERT_EQ(differences->size(), 1u);
  EXPECT_EQ(differences->front().path.text(), "outputs");
  restore(nothing);
  EXPECT_EQ(run_script("stat -c %a:%u:%g:%Y outputs; getfattr outputs", workspace()).output,
            "755:0:0:1000000000\n");
  ASSERT_TRUE(store().undo(hooks(), nullptr));
  expect_same(full, manifest());
}

TEST_F(RestoreTest, OneThatChangesNothingCanStillBeUndone) {
  make_zones();
  shell("echo 1 > outputs/f");
  const auto one = snapshot("one");
  shell("echo 22 > outputs/f");
  restore(one);
  restore(one);
  ASSERT_TRUE(store().undo(hooks(), nullptr));
  EXPECT_EQ(read(in("outputs/f")), "22\n");
}

TEST_F(RestoreTest, AFifoInTheWayGivesWay) {
  make_zones();
  shell("echo 1 > outputs/x; mkdir outputs/d; echo 2 > outputs/d/2");
  const auto one = snapshot("one");
  shell("rm outputs/x; mkfifo outputs/x; rm -r outputs/d; mkfifo outputs/other");
  restore(one);
  EXPECT_EQ(read(in("outputs/x")), "1\n");
  EXPECT_TRUE(there_is(in("outputs/other"))) << "nothing could bring it back";
}

TEST_F(RestoreTest, AnUnknownSnapshotChangesNothing) {
  make_zones();
  shell("echo 1 > outputs/1");
  EXPECT_EQ(store().undo(hooks(), nullptr).error().code, Code::kUnknownSnapshot);
  EXPECT_EQ(store().restore(std::string(40, 'a'), {}, false, hooks(), nullptr).error().code,
            Code::kUnknownSnapshot);
  EXPECT_FALSE(there_is(repository()));
  snapshot("one");
  EXPECT_EQ(store().restore("", {}, false, hooks(), nullptr).error().code, Code::kUnknownSnapshot);
  EXPECT_EQ(store().list(0)->size(), 1u);
}

TEST_F(RestoreTest, ADamagedObjectIsNamedAndNothingIsTouched) {
  make_zones();
  shell("head -c 9000000 /dev/urandom > outputs/big; for i in $(seq 20); do echo $i > outputs/$i; done");
  const auto one = snapshot("one");
  const std::string blob = git("rev-parse " + one.id.text() + ":workspace/outputs/big").substr(0, 40);
  shell("for i in $(seq 20); do echo changed > outputs/$i; done; rm outputs/big");
  const Manifest before = manifest();
  const auto object = repository() / "objects" / blob.substr(0, 2) / blob.substr(2);
  ASSERT_TRUE(there_is(object));
  ::chmod(object.c_str(), 0600);
  std::string bytes = read(object);
  bytes[bytes.size() / 2] ^= 1;
  write(object, bytes);
  auto restored = store().restore(one.id.text(), {}, false, hooks(), nullptr);
  ASSERT_FALSE(restored);
  EXPECT_EQ(restored.error().code, Code::kCorrupt);
  EXPECT_NE(restored.error().message.find(blob), std::string::npos);
  EXPECT_EQ(restored.error().path, "outputs/big");
  expect_same(before, manifest());
  EXPECT_FALSE(there_is(in(".restore")));
  auto report = store().verify(one.id.text(), record_.source(), nullptr);
  ASSERT_TRUE(report);
  ASSERT_EQ(report->problems.size(), 1u);
  EXPECT_NE(report->problems[0].find(blob), std::string::npos);
  EXPECT_NE(report->problems[0].find("outputs/big"), std::string::npos);
}

TEST_F(RestoreTest, AFailureInTheMiddleIsTakenBack) {
  make_zones();
  shell(
      "mkdir -p outputs/a outputs/gone; for i in $(seq 6); do echo $i > outputs/a/$i; done; echo g > "
      "outputs/gone/g");
  const auto one = snapshot("one");
  shell(
      "for i in $(seq 6); do echo new $i > outputs/a/$i; done; rm -r outputs/gone; mkdir outputs/n; chmod "
      "700 outputs/a; touch -d 2004-04-04 outputs outputs/a");
  const Manifest before = manifest();
  snapshot("two");
  auto inode = stat_of(in("outputs/a/1")).st_ino;
  for (const char* point :
       {"restore.rename", "restore.attributes", "restore.create", "restore.write", "restore.staging",
        "restore.mkdir", "restore.sync", "repository.move_ref", "io.replace", "pack.write", "batch.pack"})
    for (int hit = 1; hit < 12; ++hit) {
      auto restored = under_fault("errno:" + std::string(point) + ":" + std::to_string(hit) + ":ENOSPC", [&] {
        return store().restore(one.id.text(), {}, false, hooks(), nullptr);
      });
      if (restored) {
        ASSERT_TRUE(store().undo(hooks(), nullptr));
        expect_same(before, manifest());
        inode = stat_of(in("outputs/a/1")).st_ino;
        break;
      }
      EXPECT_EQ(restored.error().code, Code::kNoSpace) << point << hit << restored.error().message;
      expect_same(before, manifest());
      reopen();  // nothing is left to be recovered that would take back what is written from here on
      store();
      expect_same(before, manifest());
      EXPECT_FALSE(there_is(in(".restore")));
      EXPECT_FALSE(there_is(repository() / "okcvm/journal"));
      EXPECT_EQ(stat_of(in("outputs/a/1")).st_ino, inode);
    }
  expect_sound_repository();
  expect_exact(snapshot("three"));
}

TEST_F(RestoreTest, AFailureLeavesWhatIsInTheWayOfAParentAsItIs) {
  make_zones();
  shell("mkdir -p outputs/p/q; echo f > outputs/p/q/f; echo g > outputs/p/g");
  const auto one = snapshot("one");
  shell("rm -r outputs/p; echo way > outputs/p; chmod 4600 outputs/p; touch -d 2001-01-01 outputs/p outputs");
  const Manifest before = manifest();
  snapshot("two");
  bool is_done = false;
  for (int hit = 1; hit < 20 && !is_done; ++hit) {
    is_done = under_fault("errno:restore.rename:" + std::to_string(hit) + ":ENOSPC", [&] {
      return store().restore(one.id.text(), {rel("outputs/p/q/f")}, false, hooks(), nullptr).has_value();
    });
    if (!is_done) expect_same(before, manifest());
  }
  EXPECT_TRUE(is_done);
  EXPECT_EQ(read(in("outputs/p/q/f")), "f\n");
  EXPECT_FALSE(there_is(in("outputs/p/g")));
}

class RestoreOnXfs : public SnapshotTest {
 protected:
  void SetUp() override {
    if (const auto why = disk_.mount_at(scratch_ / "workspaces"); !why.empty()) GTEST_SKIP() << why;
  }

 private:
  LoopDisk disk_{"xfs", "512M"};
};

/// That counts as a change of it there.
TEST_F(RestoreOnXfs, ADirectoryThatChangesPlacesWithSomethingElseHasItsTime) {
  there_and_back(
      "cd outputs; mkdir -p a/in b c; echo f > f; ln -s a l; touch -d 2001-01-01 a/in; touch -d 2002-02-02 a "
      "b c",
      "cd outputs; rm -r a b c; ln -s f a; echo b > b; rm f l; mkdir -p f/in l/in; touch -d 2003-03-03 f l");
  const auto one = store().list(0)->back();
  shell("cd outputs; rm -r f; echo f > f; mkfifo c");
  const Manifest before = manifest();
  const auto restored = under_fault("errno:restore.sync:1:ENOSPC", [&] {
    return store().restore(one.id.text(), {}, false, hooks(), nullptr);
  });
  EXPECT_FALSE(restored);
  expect_same(before, manifest());
  restore(one);
  expect_exact(one);
}

TEST_F(RestoreTest, TwoAtOnceWaitForEachOther) {
  make_zones();
  shell("for i in $(seq 300); do echo $i > outputs/$i; done");
  const auto one = snapshot("one");
  shell("for i in $(seq 300); do echo new > outputs/$i; done");
  const auto two = snapshot("two");
  auto other = Store::open(config());  // as another process would
  ASSERT_TRUE(other);
  const Store::RestoreHooks quiet{nullptr,
                                  {[] {
                                     return ChangeSet{true, "test", {}, {}, 0};
                                   },
                                   nullptr},
                                  nullptr};
  std::thread thread([&] {
    for (int i = 0; i < 3; ++i) EXPECT_TRUE((*other)->restore(one.id.text(), {}, false, quiet, nullptr));
  });
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(store().restore(two.id.text(), {}, false, quiet, nullptr));
  thread.join();
  record_.lose_track();
  expect_exact(snapshot("after"));
  expect_sound_repository();
}

TEST_F(RestoreTest, HistoryGoesOnInALine) {
  make_zones();
  shell("echo 1 > outputs/1");
  const auto one = snapshot("one");
  shell("echo 2 > outputs/1");
  const auto two = snapshot("two");
  restore(one);
  EXPECT_EQ(store().list(0)->size(), 2u) << "nothing had changed since two, which is what undo goes back to";
  shell("echo 3 > outputs/3");
  const auto three = snapshot("three");
  EXPECT_EQ(three.parent, two.id);
  EXPECT_EQ(git("show " + three.id.text() + ":workspace/outputs/1"), "1\n");
  expect_exact(three);
  const std::string log = git("log --format=%s main");
  EXPECT_EQ(log, "three\ntwo\none\n");
}

TEST_F(SnapshotTest, MuchIsReadBeforeProgramsHaveToWait) {
  make_zones();
  shell("echo 1 > outputs/f");
  const auto first = snapshot("first");
  const auto restore_and_see = [&](std::string_view read_before) {
    auto with_hold = hooks();
    std::string newest;
    with_hold.hold = [&]() -> std::shared_ptr<void> {
      newest = git("log -1 --format=%s main");
      return nullptr;
    };
    const auto restored = store().restore(first.id.text(), {}, false, with_hold, nullptr);
    EXPECT_THAT(newest, ::testing::HasSubstr(read_before));
    return restored.value().before->id.text();
  };
  for (const int megabytes : {1, 40}) {
    run_script("truncate -s " + std::to_string(megabytes) + "M outputs/big", workspace());
    record_.note(ChangeKind::kEntry, "outputs/big");
    const auto before = restore_and_see(megabytes == 1 ? "first" : "Before the restore");
    EXPECT_EQ(git("cat-file -s " + before + ":workspace/outputs/big"),
              std::to_string(megabytes << 20) + "\n");
  }
  run_script("for i in $(seq 2100); do echo $i > outputs/$i; done", workspace());
  for (int i = 1; i <= 2100; ++i) record_.note(ChangeKind::kEntry, "outputs/" + std::to_string(i));
  const auto before = restore_and_see("Before the restore");
  EXPECT_EQ(git("show " + before + ":workspace/outputs/2100"), "2100\n");
}

}  // namespace
}  // namespace okcvm::test
