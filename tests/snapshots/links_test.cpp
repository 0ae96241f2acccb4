// Hard links: a change set names one name of a changed file, and the snapshot has it under all of them.

#include <sys/stat.h>
#include <unistd.h>

#include "tests/snapshots/fixture.h"

namespace okcvm::test {
namespace {

using namespace snapshots;

class LinksTest : public SnapshotTest {
 protected:
  /// outputs/a/one, uploads/b/two and temp/three are one file.
  void three_names() {
    make_zones();
    shell(
        "mkdir outputs/a uploads/b; echo old > outputs/a/one; ln outputs/a/one uploads/b/two; ln "
        "outputs/a/one "
        "temp/three; echo apart > outputs/apart");
    snapshot("three names");
  }
  void write_through(const std::string& path, const std::string& bytes) {
    const auto file = open_file(in(path), O_WRONLY | O_TRUNC);
    write_all(file, bytes);
  }
  void make_link(const std::string& from, const std::string& to) {
    ASSERT_EQ(::link(in(from).c_str(), in(to).c_str()), 0) << from << " " << to;
  }
  void expect_bytes(const Snapshot& taken, const std::vector<std::string>& paths, const std::string& bytes) {
    for (const auto& path : paths)
      EXPECT_EQ(git("show " + taken.id.text() + ":workspace/" + path), bytes) << path;
    expect_exact(taken);
  }
};

TEST_F(LinksTest, WhatIsWrittenThroughOneNameIsThereUnderAll) {
  three_names();
  for (const char* path : {"outputs/a/one", "uploads/b/two", "temp/three"}) {
    write_through(path, path);
    record_.note(ChangeKind::kContent, path);
    expect_bytes(snapshot(path), {"outputs/a/one", "uploads/b/two", "temp/three"}, path);
  }
}

TEST_F(LinksTest, ANameThatIsNotTheOneWrittenThroughIsEnough) {
  three_names();
  write_through("temp/three", "through three");
  record_.note(ChangeKind::kContent, "uploads/b/two");
  expect_bytes(snapshot(), {"outputs/a/one", "uploads/b/two", "temp/three"}, "through three");
}

TEST_F(LinksTest, ModesAreOfAllNames) {
  three_names();
  ::chmod(in("temp/three").c_str(), 0751);
  record_.note(ChangeKind::kAttributes, "temp/three");
  expect_exact(snapshot());
}

TEST_F(LinksTest, ALinkMadeSinceTheLastSnapshotJoins) {
  three_names();
  record_.note(ChangeKind::kContent, "outputs/apart");
  record_.note(ChangeKind::kEntry, "uploads/b/apart");
  make_link("outputs/apart", "uploads/b/apart");
  write_through("uploads/b/apart", "joined");
  expect_bytes(snapshot(), {"outputs/apart", "uploads/b/apart"}, "joined");
  record_.note(ChangeKind::kContent, "outputs/apart");
  write_through("uploads/b/apart", "and again");
  expect_bytes(snapshot(), {"outputs/apart", "uploads/b/apart"}, "and again");
}

TEST_F(LinksTest, AlsoInAFolderMadeSinceThen) {
  three_names();
  record_.note(ChangeKind::kTree, "outputs/new");
  std::filesystem::create_directories(in("outputs/new/deep"));
  make_link("uploads/b/two", "outputs/new/deep/four");
  write_through("outputs/new/deep/four", "four names");
  expect_bytes(snapshot(), {"outputs/a/one", "uploads/b/two", "temp/three", "outputs/new/deep/four"},
               "four names");
}

TEST_F(LinksTest, TheFoldersOfOtherNamesMayMoveMeanwhile) {
  three_names();
  record_.note(ChangeKind::kMoved, "uploads/b", "outputs/c");
  std::filesystem::rename(in("uploads/b"), in("outputs/c"));
  record_.note(ChangeKind::kContent, "outputs/a/one");
  write_through("outputs/a/one", "moved");
  expect_bytes(snapshot(), {"outputs/a/one", "outputs/c/two", "temp/three"}, "moved");
}

TEST_F(LinksTest, ANameThatGoesLeavesTheOthersTogether) {
  three_names();
  record_.note(ChangeKind::kEntry, "outputs/a/one");
  std::filesystem::remove(in("outputs/a/one"));
  write(in("outputs/a/one"), "its own");
  expect_bytes(snapshot(), {"uploads/b/two", "temp/three"}, "old\n");
  record_.note(ChangeKind::kContent, "temp/three");
  write_through("temp/three", "two");
  const auto taken = snapshot();
  expect_bytes(taken, {"uploads/b/two", "temp/three"}, "two");
  expect_bytes(taken, {"outputs/a/one"}, "its own");
}

TEST_F(LinksTest, NamesThatPartAndJoinAnotherFile) {
  three_names();
  record_.note(ChangeKind::kEntry, "temp/three");
  std::filesystem::remove(in("temp/three"));
  make_link("outputs/apart", "temp/three");
  record_.note(ChangeKind::kContent, "outputs/a/one");
  write_through("outputs/a/one", "first");
  record_.note(ChangeKind::kContent, "outputs/apart");
  write_through("outputs/apart", "second");
  const auto taken = snapshot();
  expect_bytes(taken, {"outputs/a/one", "uploads/b/two"}, "first");
  expect_bytes(taken, {"outputs/apart", "temp/three"}, "second");
}

}  // namespace
}  // namespace okcvm::test
