#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <climits>
#include <fstream>
#include <future>
#include <mutex>
#include <thread>

#include "tests/support/mounted_session.h"
#include "tests/support/unserved_mount.h"

namespace okcvm::test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

class Traversal : public MountedSession {
 protected:
  void SetUp() override {
    MountedSession::SetUp();
    if (IsSkipped()) return;
    std::ofstream(session().scratch() / "secret") << "host";
  }

  /// Puts a link into the workspace behind the session's back, before the kernel knows the name.
  void plant(const std::string& text, const fs::path& where) {
    EXPECT_OK(::symlink(text.c_str(), (session().workspace() / where).c_str()));
  }

  void expect_blocked(const fs::path& link) {
    std::array<char, PATH_MAX> text;
    EXPECT_ERRNO(EPERM, ::readlink(link.c_str(), text.data(), text.size()));
    EXPECT_ERRNO(EPERM, ::open(link.c_str(), O_RDONLY));
    struct stat found {};
    EXPECT_ERRNO(EPERM, ::stat(link.c_str(), &found));
    EXPECT_OK(::lstat(link.c_str(), &found));
    EXPECT_TRUE(S_ISLNK(found.st_mode));
  }
};

TEST_F(Traversal, ContainedLinksCanBeMadeAndFollowed) {
  fs::create_directories(outputs() / "a/b");
  write(outputs() / "target", "here");
  write(uploads() / "in", "upload");
  struct Row {
    const char* text;
    const char* where;
    const char* bytes;
  };
  for (const auto& row :
       {Row{"target", "outputs/l1", "here"}, Row{"./target", "outputs/l2", "here"},
        Row{"../target", "outputs/a/l3", "here"}, Row{"../../target", "outputs/a/b/l4", "here"},
        Row{"../uploads/in", "outputs/l5", "upload"}, Row{"../../../uploads/in", "outputs/a/b/l6", "upload"},
        Row{"..//.././../uploads//in", "outputs/a/b/l7", "upload"}}) {
    EXPECT_OK(::symlink(row.text, (mount() / row.where).c_str())) << row.text;
    EXPECT_EQ(link_text(mount() / row.where), row.text);
    EXPECT_EQ(read(mount() / row.where), row.bytes);
  }
  EXPECT_OK(::symlink("nowhere/at/all", (outputs() / "dangling").c_str()));
  EXPECT_OK(::symlink("..", (outputs() / "up").c_str()));
  EXPECT_THAT(list(outputs() / "up"), ElementsAre(".metadata.json", "outputs", "skills", "temp", "uploads"));
}

TEST_F(Traversal, EscapingLinksCannotBeMade) {
  fs::create_directories(outputs() / "a");
  for (const char* text :
       {"/", "/etc/passwd", "/proc/self/root", "../..", "../../secret", "../../../etc", "a/../b",
        "a/../../../secret", "./../../x", "../uploads/..", "../uploads/../..", "a/.."})
    EXPECT_ERRNO(EPERM, ::symlink(text, (outputs() / "link").c_str())) << text;
  EXPECT_ERRNO(EPERM, ::symlink("../../../secret", (outputs() / "a/link").c_str()));
  EXPECT_OK(::symlink("../../temp", (outputs() / "a/link").c_str()));
  EXPECT_THAT(list(outputs()), ElementsAre("a"));
}

TEST_F(Traversal, AbsoluteLinksBelowTheOwnMountPointAreContained) {
  write(temp() / "file", "own");
  EXPECT_OK(::symlink((temp() / "file").c_str(), (outputs() / "absolute").c_str()));
  EXPECT_EQ(read(outputs() / "absolute"), "own");
  EXPECT_OK(::symlink(mount().c_str(), (outputs() / "root").c_str()));
  EXPECT_ERRNO(EPERM, ::symlink((mount() / "../x").c_str(), (outputs() / "up").c_str()));
  EXPECT_ERRNO(EPERM, ::symlink((mount().string() + "x").c_str(), (outputs() / "neighbour").c_str()));
  EXPECT_ERRNO(EPERM, ::symlink((mount() / "outputs/..").c_str(), (outputs() / "dots").c_str()));
}

TEST_F(Traversal, ARenamedLinkIsJudgedWhereItIsNow) {
  fs::create_directories(outputs() / "a/b");
  EXPECT_OK(::symlink("../../../uploads", (outputs() / "a/b/link").c_str()));
  EXPECT_EQ(link_text(outputs() / "a/b/link"), "../../../uploads");

  EXPECT_OK(::rename((outputs() / "a/b/link").c_str(), (outputs() / "link").c_str()));
  expect_blocked(outputs() / "link");
  EXPECT_THAT(list(outputs()), ElementsAre("a", "link"));

  EXPECT_OK(::rename((outputs() / "link").c_str(), (outputs() / "a/b/link").c_str()));
  EXPECT_EQ(link_text(outputs() / "a/b/link"), "../../../uploads");
  EXPECT_OK(::unlink((outputs() / "a/b/link").c_str()));
}

TEST_F(Traversal, ALinkIsJudgedAgainWhenItsDirectoryMoves) {
  fs::create_directories(outputs() / "a/b/c");
  EXPECT_OK(::symlink("../../../../uploads", (outputs() / "a/b/c/link").c_str()));
  EXPECT_EQ(link_text(outputs() / "a/b/c/link"), "../../../../uploads");

  EXPECT_OK(::rename((outputs() / "a/b").c_str(), (outputs() / "b").c_str()));
  expect_blocked(outputs() / "b/c/link");
  EXPECT_OK(::rename((outputs() / "b/c").c_str(), (temp() / "c").c_str()));
  expect_blocked(temp() / "c/link");
  EXPECT_OK(::unlink((temp() / "c/link").c_str()));
}

TEST_F(Traversal, ALinkIsJudgedAgainAfterAnExchange) {
  fs::create_directories(outputs() / "deep/er");
  EXPECT_OK(::symlink("../../../uploads", (outputs() / "deep/er/link").c_str()));
  EXPECT_EQ(link_text(outputs() / "deep/er/link"), "../../../uploads");
  write(outputs() / "file", "file");
  EXPECT_OK(::renameat2(AT_FDCWD, (outputs() / "deep/er/link").c_str(), AT_FDCWD,
                        (outputs() / "file").c_str(), RENAME_EXCHANGE));
  expect_blocked(outputs() / "file");
  EXPECT_EQ(read(outputs() / "deep/er/link"), "file");
}

// The kernel drops a text only once it has the answers to the requests for it.
TEST_F(Traversal, ALinkThatIsBeingReadKeepsNobodyWaitingButWhoMovesIt) {
  std::promise<void> asked;
  std::promise<void> may_answer;
  std::once_flag first;
  start_with([&](fusefs::MountConfig& config) {
    config.on_denial = [&](std::string_view, const RelPath&, int) {
      std::call_once(first, [&] {
        asked.set_value();
        may_answer.get_future().wait();
      });
    };
  });
  fs::create_directories(outputs() / "a/b");
  plant("/etc/passwd", "outputs/a/b/link");
  const auto link = outputs() / "a/b/link";
  std::array<char, PATH_MAX> text;
  const auto reader = std::async(
      std::launch::async, [&] { EXPECT_ERRNO(EPERM, ::readlink(link.c_str(), text.data(), text.size())); });
  asked.get_future().wait();
  const auto mover = std::async(std::launch::async, [&] {
    EXPECT_OK(::rename((outputs() / "a/b").c_str(), (outputs() / "b").c_str()));
  });
  while (!there_is(session().workspace() / "outputs/b")) std::this_thread::yield();
  const auto others = std::async(std::launch::async, [&] {
    session().driver().cut_changes();
    EXPECT_OK(::mkdir((temp() / "made").c_str(), 0755));
  });
  EXPECT_EQ(others.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  EXPECT_EQ(mover.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  may_answer.set_value();
  mover.wait();
  expect_blocked(outputs() / "b/link");
}

TEST_F(Traversal, AHardLinkOfALinkIsJudgedByEachOfItsNames) {
  fs::create_directories(outputs() / "a/b");
  EXPECT_OK(::symlink("../../../uploads", (outputs() / "a/b/link").c_str()));
  const int error = ERRNO_OF(::link((outputs() / "a/b/link").c_str(), (outputs() / "shallow").c_str()));
  EXPECT_TRUE(error == 0 || error == EPERM) << errno_name(error);
  if (error != 0) return;
  // One inode, two places: text that leads out of one of them must not be given to it.
  std::array<char, PATH_MAX> text;
  EXPECT_ERRNO(EPERM, ::readlink((outputs() / "shallow").c_str(), text.data(), text.size()));
  EXPECT_ERRNO(EPERM, ::open((outputs() / "shallow/x").c_str(), O_RDONLY));
}

// The kernel keeps one text for all names of a link: read at a deep one, it would be followed at a shallow
// one.
TEST_F(Traversal, ASecondNameCannotBeCarriedToWhereTheTextLeadsOut) {
  fs::create_directories(outputs() / "a/b");
  EXPECT_OK(::symlink("../../../uploads", (outputs() / "a/b/far").c_str()));
  EXPECT_ERRNO(EPERM, ::link((outputs() / "a/b/far").c_str(), (outputs() / "a/b/far too").c_str()));
  EXPECT_OK(::symlink("../near", (outputs() / "a/b/near").c_str()));
  EXPECT_OK(::link((outputs() / "a/b/near").c_str(), (outputs() / "a/b/near too").c_str()));
  EXPECT_OK(::rename((outputs() / "a/b/near too").c_str(), (outputs() / "near too").c_str()));
  EXPECT_EQ(link_text(outputs() / "near too"), "../near");
}

TEST_F(Traversal, LinksMadeByTheHostAreListedAndRemovedButNotFollowed) {
  fs::create_directories(outputs() / "made");
  plant("/etc/passwd", "outputs/made/absolute");
  plant("../../../../secret", "outputs/made/relative");
  plant("x/../../../../secret", "outputs/made/winding");
  EXPECT_THAT(list(outputs() / "made"), ElementsAre("absolute", "relative", "winding"));
  for (const char* name : {"absolute", "relative", "winding"}) {
    expect_blocked(outputs() / "made" / name);
    EXPECT_ERRNO(EPERM, ::open((outputs() / "made" / name / "below").c_str(), O_RDONLY));
    EXPECT_OK(::unlink((outputs() / "made" / name).c_str()));
  }
}

TEST_F(Traversal, ADirectoryReplacedByALinkBehindTheDriverLeadsNowhere) {
  fs::create_directories(outputs() / "d");
  write(outputs() / "d/secret", "own");
  const auto backing = session().workspace() / "outputs/d";
  fs::rename(backing, session().workspace() / "outputs/old");
  fs::create_symlink(session().scratch(), backing);

  const FileDescriptor file(::open((outputs() / "d/secret").c_str(), O_RDONLY));
  if (file) {
    EXPECT_EQ(read(file), "own");
  }
  const int error = ERRNO_OF(::open((outputs() / "d/made").c_str(), O_CREAT | O_WRONLY, 0644));
  EXPECT_FALSE(there_is(session().scratch() / "made")) << errno_name(error);
}

TEST_F(Traversal, HostRootsMayBeLinkedTo) {
  start_with([](fusefs::MountConfig& config) { config.symlink_host_roots = {"/usr"}; });
  EXPECT_OK(::symlink("/usr/bin/env", (outputs() / "env").c_str()));
  EXPECT_EQ(link_text(outputs() / "env"), "/usr/bin/env");
  EXPECT_OK(::access((outputs() / "env").c_str(), X_OK));
  EXPECT_ERRNO(EPERM, ::symlink("/usr/../etc", (outputs() / "up").c_str()));
  EXPECT_ERRNO(EPERM, ::symlink("/usrlocal", (outputs() / "near").c_str()));
  EXPECT_ERRNO(EPERM, ::symlink("/etc", (outputs() / "etc").c_str()));
}

TEST_F(Traversal, AHostRootThatTheNextDaemonDoesNotAllowIsNotLinkedToAnyMore) {
  start_with([](fusefs::MountConfig& config) { config.symlink_host_roots = {"/usr"}; });
  ASSERT_OK(::symlink("/usr/bin/env", (outputs() / "env").c_str()));
  EXPECT_EQ(link_text(outputs() / "env"), "/usr/bin/env");
  session().hand_over();
  expect_blocked(outputs() / "env");
}

TEST_F(Traversal, LinksInASkillMayLeadToOthersButNotOutOfTheSession) {
  const auto top = session().add_skill("pdf", {{"SKILL.md", "how to"}, {"lib/code.py", "code"}});
  session().add_skill("other", {{"SKILL.md", "other"}});
  fs::create_symlink("../SKILL.md", top / "lib/inside");
  fs::create_symlink("../../other/SKILL.md", top / "lib/other");
  fs::create_symlink("../../../../" + session().workspace().filename().string(), top / "lib/outside");
  fs::create_symlink("/etc/passwd", top / "absolute");
  fs::create_symlink("../../outputs", top / "zone");
  fs::create_symlink("../../..", top / "up");
  session().load_skill("pdf");
  session().load_skill("other");
  write(outputs() / "warm", "x");

  EXPECT_EQ(read(skills() / "pdf/lib/inside"), "how to");
  EXPECT_EQ(read(skills() / "pdf/lib/other"), "other");
  EXPECT_EQ(read(skills() / "pdf/zone/warm"), "x");
  expect_blocked(skills() / "pdf/lib/outside");
  expect_blocked(skills() / "pdf/absolute");
  expect_blocked(skills() / "pdf/up");
  EXPECT_THAT(list(skills() / "pdf"), ElementsAre("SKILL.md", "absolute", "lib", "up", "zone"));
}

TEST_F(Traversal, ALinkThatMovesInASkillIsJudgedWhereItIsNow) {
  const auto top = session().add_skill("pdf", {{"SKILL.md", "how to"}, {"lib/x/code.py", "code"}});
  fs::create_symlink("../../../../outputs/file", top / "lib/x/link");
  session().load_skill("pdf");
  write(outputs() / "file", "how to");
  EXPECT_EQ(read(skills() / "pdf/lib/x/link"), "how to");
  fs::rename(top / "lib/x/link", top / "lib/link");
  expect_blocked(skills() / "pdf/lib/link");
}

/// Where names move without the kernel's doing.
/// More than the kernel is told of in one message.
TEST_F(Traversal, HundredsOfLinksInADirectoryThatMovesUpAreJudgedAgain) {
  constexpr int kLinks = 1000;
  const auto name = [](int i) { return "link" + std::to_string(i); };
  fs::create_directories(outputs() / "a/b/c/d");
  for (int i = 0; i < kLinks; ++i) {
    const auto link = outputs() / "a/b/c" / (i % 2 ? "d" : "") / name(i);
    fs::create_symlink("../../../../temp", link);
    EXPECT_EQ(link_text(link), "../../../../temp");
  }
  fs::rename(outputs() / "a/b/c", outputs() / "c");
  for (int i = 0; i < kLinks; ++i) {
    std::array<char, PATH_MAX> text;
    EXPECT_ERRNO(EPERM, ::readlink((outputs() / "c" / (i % 2 ? "d" : "") / name(i)).c_str(), text.data(),
                                   text.size()));
  }
  fs::rename(outputs() / "c", outputs() / "a/b/c");
  for (int i = 0; i < kLinks; ++i)
    EXPECT_EQ(link_text(outputs() / "a/b/c" / (i % 2 ? "d" : "") / name(i)), "../../../../temp");
}

TEST_F(Traversal, ALinkThatStaysInWhereverItStandsIsReadOnceHoweverItMoves) {
  fs::create_directories(outputs() / "a/b/c");
  fs::create_symlink("../file", outputs() / "a/b/c/link");
  EXPECT_EQ(link_text(outputs() / "a/b/c/link"), "../file");
  const auto before = count_of("READLINK");
  fs::rename(outputs() / "a/b", outputs() / "b");
  EXPECT_EQ(link_text(outputs() / "b/c/link"), "../file");
  fs::rename(outputs() / "b/c/link", outputs() / "link");
  EXPECT_EQ(link_text(outputs() / "link"), "../file");
  EXPECT_EQ(count_of("READLINK"), before);
}

class WorkdirTraversal : public Traversal {
 protected:
  void SetUp() override {
    Traversal::SetUp();
    if (IsSkipped()) return;
    start_with([&](fusefs::MountConfig& config) {
      config.workdir = open_file(host_.path(), O_RDONLY | O_DIRECTORY);
    });
    fs::create_directories(host_ / "d/e/f");
    write(host_ / "d/e/f/file", "bytes");
    fs::create_symlink("../../../../temp", host_ / "d/e/f/link");
    EXPECT_EQ(link_text(workdir() / "d/e/f/link"), "../../../../temp");
  }
  fs::path workdir() const { return mount() / "workdir"; }
  void move_on_the_host(const char* from, const char* to) { fs::rename(host_ / from, host_ / to); }

  ScratchDirectory host_{"workdir"};
};

TEST_F(WorkdirTraversal, ALinkThatTheHostMovesIsJudgedWhereItIsNow) {
  move_on_the_host("d/e/f/link", "d/link");
  expect_blocked(workdir() / "d/link");
  move_on_the_host("d/link", "link");
  expect_blocked(workdir() / "link");
  fs::create_directories(host_ / "x/y/z");
  move_on_the_host("link", "x/y/z/link");
  EXPECT_EQ(link_text(workdir() / "x/y/z/link"), "../../../../temp");
}

TEST_F(WorkdirTraversal, ALinkIsJudgedAgainWhenTheHostMovesADirectoryAbove) {
  move_on_the_host("d/e/f", "d/f");
  expect_blocked(workdir() / "d/f/link");
  move_on_the_host("d/f", "d/e/f");
  EXPECT_EQ(link_text(workdir() / "d/e/f/link"), "../../../../temp");
  move_on_the_host("d/e", "e");
  expect_blocked(workdir() / "e/f/link");
}

TEST_F(WorkdirTraversal, ALinkIsJudgedAgainWhenTheHostGivesItAnotherName) {
  EXPECT_OK(::link((host_ / "d/e/f/link").c_str(), (host_ / "link").c_str()));
  expect_blocked(workdir() / "link");
  EXPECT_EQ(stat_of(workdir() / "link").st_nlink, 2u);
}

// A rename of one name of a file to another leaves both, but not for a kernel that takes them for two files.
TEST_F(WorkdirTraversal, ALinkWithTwoNamesIsJudgedAgainWhenOneIsRenamedToTheOther) {
  EXPECT_OK(::link((host_ / "d/e/f/link").c_str(), (host_ / "link").c_str()));
  EXPECT_OK(::rename((workdir() / "d/e/f/link").c_str(), (workdir() / "link").c_str()));
  expect_blocked(workdir() / "link");
  EXPECT_TRUE(there_is(workdir() / "d/e/f/link"));
}

// The kernel has not looked again by then where it was first.
TEST_F(WorkdirTraversal, ALinkIsJudgedAgainWhenItsDirectoryMovesAfterTheHostMovedItAndBack) {
  fs::create_directory(host_ / "x");
  move_on_the_host("d/e/f", "x/f");
  list(workdir() / "x/f");
  move_on_the_host("x/f", "d/e/f");
  EXPECT_OK(::rename((workdir() / "d/e/f").c_str(), (workdir() / "f").c_str()));
  expect_blocked(workdir() / "f/link");
}

TEST_F(WorkdirTraversal, ADirectoryThatTheHostMovesStaysInUse) {
  const auto directory = open_file(workdir() / "d/e/f", O_RDONLY | O_DIRECTORY);
  const auto file = open_file(workdir() / "d/e/f/file", O_RDONLY);
  const auto links = stat_of(directory).st_nlink;
  move_on_the_host("d/e", "e");
  EXPECT_EQ(read(workdir() / "e/f/file"), "bytes");
  EXPECT_EQ(read(file), "bytes");
  struct stat found {};
  EXPECT_OK(::fstatat(directory.get(), "file", &found, 0));
  EXPECT_OK(::mkdirat(directory.get(), "made", 0755));
  EXPECT_TRUE(there_is(host_ / "e/f/made"));
  EXPECT_OK(::unlinkat(directory.get(), "made", AT_REMOVEDIR));
  EXPECT_EQ(stat_of(directory).st_nlink, links);
  EXPECT_EQ(stat_of(directory).st_ino, stat_of(workdir() / "e/f").st_ino);
}

TEST_F(WorkdirTraversal, ALinkThatTheHostMovedIsMovedOn) {
  move_on_the_host("d/e", "e");
  list(workdir() / "e/f");
  EXPECT_OK(::rename((workdir() / "e/f").c_str(), (workdir() / "f").c_str()));
  expect_blocked(workdir() / "f/link");
  EXPECT_OK(::rename((workdir() / "f").c_str(), (workdir() / "d/f").c_str()));
  expect_blocked(workdir() / "d/f/link");
  EXPECT_OK(::mkdir((workdir() / "d/e").c_str(), 0755));
  EXPECT_OK(::rename((workdir() / "d/f").c_str(), (workdir() / "d/e/f").c_str()));
  EXPECT_EQ(link_text(workdir() / "d/e/f/link"), "../../../../temp");
}

/// The session moves on what it takes for another file, or another directory.
TEST_F(WorkdirTraversal, ALinkThatTheHostPutsUnderAKnownNameIsJudgedWhereItIs) {
  const auto exchange_on_the_host = [this](const char* one, const char* other) {
    EXPECT_OK(
        ::renameat2(AT_FDCWD, (host_ / one).c_str(), AT_FDCWD, (host_ / other).c_str(), RENAME_EXCHANGE));
  };
  write(host_ / "known", "x");
  EXPECT_EQ(stat_of(workdir() / "known").st_size, 1);
  exchange_on_the_host("d/e/f/link", "known");
  EXPECT_OK(::rename((workdir() / "known").c_str(), (workdir() / "other").c_str()));
  list(workdir());
  expect_blocked(workdir() / "other");

  fs::create_directories(host_ / "g/h/i");
  fs::create_symlink("../../../../temp", host_ / "g/h/i/link");
  EXPECT_EQ(link_text(workdir() / "g/h/i/link"), "../../../../temp");
  fs::create_directory(host_ / "empty");
  EXPECT_EQ(list(workdir() / "empty").size(), 0u);
  exchange_on_the_host("g/h/i", "empty");
  EXPECT_OK(::rename((workdir() / "empty").c_str(), (workdir() / "full").c_str()));
  list(workdir());
  expect_blocked(workdir() / "full/link");
}

// The kernel remembers for a moment whose file stood there.
TEST_F(WorkdirTraversal, AFileThatTheHostPutsIntoAStickyDirectoryIsNotTheFormerOnes) {
  const auto here = host_ / "sticky";
  fs::create_directory(here);
  EXPECT_OK(::chmod(here.c_str(), 01777));
  const auto put = [&](const std::string& name, const User& owner) {
    write(here / "draft", std::to_string(owner.uid));
    EXPECT_OK(::chown((here / "draft").c_str(), owner.uid, owner.gid));
    fs::rename(here / "draft", here / name);
  };
  const auto refuse = [&](const std::string& name, const auto& call) {
    const auto seen = workdir() / "sticky" / name;
    const auto mine = workdir() / "sticky" / ("alices-" + name);
    put(name, kAlice);
    put(mine.filename(), kAlice);
    EXPECT_EQ(stat_of(seen).st_uid, kAlice.uid);
    put(name, kBob);
    as_user(kAlice, [&] { EXPECT_ERRNO(EPERM, call(seen.c_str(), mine.c_str())) << name; });
    EXPECT_EQ(read(here / name), std::to_string(kBob.uid)) << name;
    as_user(kBob, [&] { EXPECT_OK(::unlink(seen.c_str())); });
  };
  refuse("unlinked", [](const char* seen, const char*) { return ::unlink(seen); });
  refuse("renamed", [](const char* seen, const char* mine) {
    return ::rename(seen, (std::string(mine) + "-new").c_str());
  });
  refuse("replaced", [](const char* seen, const char* mine) { return ::rename(mine, seen); });
  refuse("exchanged", [](const char* seen, const char* mine) {
    return ::renameat2(AT_FDCWD, mine, AT_FDCWD, seen, RENAME_EXCHANGE);
  });
}

TEST_F(WorkdirTraversal, WhatIsMountedInItIsNotTouched) {
  fs::create_directory(host_ / "unserved");
  fs::create_directory(host_ / "bound");
  const UnservedMount unserved(host_ / "unserved");
  EXPECT_OK(::mount((host_ / "d").c_str(), (host_ / "bound").c_str(), nullptr, MS_BIND, nullptr));
  for (const char* name : {"unserved", "bound"}) {
    EXPECT_ERRNO(EXDEV, ::access((workdir() / name).c_str(), F_OK));
    EXPECT_ERRNO(EXDEV, ::rename((workdir() / name).c_str(), (workdir() / "moved").c_str()));
    EXPECT_ERRNO(EXDEV, ::rename((workdir() / "d").c_str(), (workdir() / name).c_str()));
    EXPECT_ERRNO(EXDEV, ::rmdir((workdir() / name).c_str()));
  }
  EXPECT_THAT(list(workdir()), ElementsAre("bound", "d", "unserved"));
  EXPECT_OK(::umount2((host_ / "bound").c_str(), MNT_DETACH));
}

TEST_F(WorkdirTraversal, WhatIsMountedOnANameThatIsKnownIsNotTouched) {
  fs::create_directory(host_ / "x");
  list(workdir());
  const UnservedMount unserved(host_ / "x");
  const auto answer_soon = [&](const auto& call) {
    const int error = ERRNO_OF(call());
    EXPECT_TRUE(error == EXDEV || error == EBUSY) << errno_name(error);
  };
  answer_soon([&] { return ::rmdir((workdir() / "x").c_str()); });
  answer_soon([&] { return ::rename((workdir() / "x").c_str(), (workdir() / "y").c_str()); });
  answer_soon([&] { return ::rename((workdir() / "d").c_str(), (workdir() / "x").c_str()); });
  session().driver().hold();
}

TEST_F(Traversal, NoPathLeadsAboveTheMount) {
  // ".." is the kernel's, but the driver must not answer for it either.
  struct stat above {
  }, direct{};
  EXPECT_OK(::stat((mount() / "..").c_str(), &above));
  EXPECT_OK(::stat(mount().parent_path().c_str(), &direct));
  EXPECT_EQ(above.st_ino, direct.st_ino);
  struct stat root {
  }, by_zone{};
  EXPECT_OK(::stat(mount().c_str(), &root));
  EXPECT_OK(::stat((outputs() / "..").c_str(), &by_zone));
  EXPECT_EQ(root.st_ino, by_zone.st_ino);
}

// The name that it was made under last went, with its directory; the one that is left must not depend on it.
TEST_F(Traversal, ALinkOutlivesTheDirectoryOfItsOtherName) {
  EXPECT_OK(::symlink("target", (outputs() / "link").c_str()));
  EXPECT_OK(::mkdir((outputs() / "d").c_str(), 0755));
  EXPECT_OK(::link((outputs() / "link").c_str(), (outputs() / "d/other").c_str()));
  EXPECT_OK(::unlink((outputs() / "d/other").c_str()));
  EXPECT_OK(::rmdir((outputs() / "d").c_str()));
  EXPECT_EQ(fs::read_symlink(outputs() / "link"), "target");
}

}  // namespace
}  // namespace okcvm::test
