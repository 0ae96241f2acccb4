// Snapshots of files with several names that go through new directories.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "tests/tools/daemon_fixture.h"

namespace okcvm::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class SnapshotsOfLinks : public DaemonWithSession {
 protected:
  fs::path in(const std::string& name) const { return mount("s1") / "outputs" / name; }
  void link(const std::string& from, const std::string& to) { fs::create_hard_link(in(from), in(to)); }
  void move(const std::string& from, const std::string& to) { fs::rename(in(from), in(to)); }
  void exchange(const std::string& one, const std::string& other) {
    ASSERT_EQ(::renameat2(AT_FDCWD, in(one).c_str(), AT_FDCWD, in(other).c_str(), RENAME_EXCHANGE), 0);
  }
  void snapshot() {
    const auto answer = ask("POST", "/v1/sessions/s1/snapshots", R"({"label": "one"})");
    ASSERT_EQ(answer.status, 201) << answer.body;
  }
  /// The next snapshot is what is there, byte for byte.
  void expect_exact_snapshot() {
    snapshot();
    const auto verified = ask("GET", "/v1/sessions/s1/verify").json();
    EXPECT_EQ(verified["problems"], json::array()) << verified;
    EXPECT_EQ(verified["live_differences"], json::array()) << verified;
  }
};

TEST_F(SnapshotsOfLinks, SeeAWriteThroughTheOtherNameAfterOneCameAndWent) {
  write(in("x"), "old");
  link("x", "y");
  snapshot();
  fs::create_directory(in("new"));
  move("y", "new/y");
  move("new/y", "z");
  write(in("x"), "changed");
  fs::remove(in("z"));
  fs::remove(in("new"));
  expect_exact_snapshot();
}

TEST_F(SnapshotsOfLinks, SeeAWriteThroughANameThatMovedWithinANewDirectory) {
  write(in("x"), "old");
  link("x", "y");
  snapshot();
  fs::create_directory(in("new"));
  move("y", "new/y");
  move("new/y", "new/w");
  write(in("new/w"), "changed");
  fs::remove_all(in("new"));
  expect_exact_snapshot();
}

TEST_F(SnapshotsOfLinks, SeeAWriteBelowADirectoryThatWasMovedWithItsNewParent) {
  fs::create_directory(in("d"));
  write(in("x"), "old");
  link("x", "d/y");
  snapshot();
  fs::create_directory(in("new"));
  move("d", "new/d");
  move("new", "newer");
  write(in("newer/d/y"), "changed");
  fs::remove_all(in("newer"));
  expect_exact_snapshot();
}

TEST_F(SnapshotsOfLinks, SeeAWriteBelowADirectoryThatChangedPlacesInANewOne) {
  fs::create_directory(in("d"));
  write(in("x"), "old");
  link("x", "d/y");
  snapshot();
  fs::create_directories(in("new/q"));
  move("d", "new/d");
  exchange("new/d", "new/q");
  write(in("new/q/y"), "changed");
  fs::remove_all(in("new"));
  expect_exact_snapshot();
}

TEST_F(SnapshotsOfLinks, SeeAWriteThroughANameThatChangedPlacesInANewDirectory) {
  write(in("x"), "old");
  link("x", "y");
  snapshot();
  fs::create_directory(in("new"));
  write(in("new/other"), "other");
  move("y", "new/y");
  exchange("new/y", "new/other");
  write(in("new/other"), "changed");
  fs::remove_all(in("new"));
  expect_exact_snapshot();
}

TEST_F(SnapshotsOfLinks, SeeAWriteBelowADirectoryThatMovedIntoOneWhichWasExchangedTwice) {
  for (const char* name : {"early", "late", "p", "q"}) fs::create_directory(in(name));
  write(in("early/x"), "old");
  write(in("late/x"), "old");
  snapshot();
  move("early", "p/early");
  move("late", "p/late");
  exchange("p", "q");
  write(in("q/early/x"), "changed");
  exchange("p", "q");
  write(in("p/late/x"), "changed");
  expect_exact_snapshot();
}

TEST_F(SnapshotsOfLinks, BearDirectoriesThatMoveInAndOutOfEachOtherManyTimes) {
  for (const char* name : {"p", "q", "r"}) fs::create_directory(in(name));
  write(in("p/x"), "old");
  link("p/x", "p/y");
  snapshot();
  const std::vector<std::string> names{"p", "q", "r"};
  for (int round = 0; round < 20; ++round)
    for (const auto& one : names)
      for (const auto& other : names)
        if (one != other) {
          move(one, other + "/" + one);
          move(other + "/" + one, one);
        }
  write(in("p/y"), "changed");
  fs::remove(in("p/y"));
  expect_exact_snapshot();
}

}  // namespace
}  // namespace okcvm::test
