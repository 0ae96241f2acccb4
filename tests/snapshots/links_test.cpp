// Hard links: a change set names one name of a changed file, and the snapshot has it under all of them. A
// restore of some names leaves the others.

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <zlib.h>

#include <bit>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "snapshots/path_table.h"
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

TEST_F(LinksTest, LargeExtendedAttributesAreStoredOnceAFolder) {
  constexpr std::size_t kSize = 3000;  // ext4 has room for a block
  constexpr int kNames = 200;
  make_zones();
  write(in("outputs/a file"), "bytes");
  std::string value(kSize, '\0');
  for (std::size_t i = 0; i < kSize; ++i) value[i] = static_cast<char>(i * i * 7919 >> 3);
  if (::setxattr(in("outputs/a file").c_str(), "user.large", value.data(), value.size(), 0) != 0)
    GTEST_SKIP() << "no extended attributes on this file system";
  for (int i = 0; i < kNames; ++i) make_link("outputs/a file", "outputs/" + std::to_string(i));
  write(in("outputs/other"), "another file");
  ASSERT_EQ(::setxattr(in("outputs/other").c_str(), "user.large", value.data(), value.size() - 1, 0), 0);
  record_.lose_track();
  const auto taken = snapshot();
  EXPECT_LT(std::stoul(git("cat-file -s " + taken.id.text() + ":metadata/tree/outputs/.okcvm")),
            3 * 3 * kSize + kNames * 100);
  expect_exact(taken);
  const auto before = manifest();
  reopen();
  shell("rm -r outputs/* && echo other > outputs/100");
  restore(taken);
  expect_same(before, manifest());
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

TEST_F(LinksTest, AreReadOnceHoweverManyNamesTheyHave) {
  constexpr std::uint64_t kSize = 3 << 20;
  make_zones();
  shell("head -c 3M /dev/urandom > outputs/m; ln outputs/m outputs/n; ln outputs/m temp/m");
  auto taken = snapshot();
  EXPECT_EQ(taken.stats.bytes_read, kSize);
  expect_exact(taken);
  for (const char* name : {"outputs/a", "outputs/z"}) {  // before and after the others
    record_.note(ChangeKind::kContent, "outputs/m");
    record_.note(ChangeKind::kEntry, name);
    make_link("outputs/m", name);
    taken = snapshot();
    EXPECT_EQ(taken.stats.bytes_read, kSize) << name;
    expect_exact(taken);
  }
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

TEST_F(LinksTest, TheNameThatWasWrittenThroughMayGo) {
  three_names();
  record_.note(ChangeKind::kContent, "outputs/a/one");
  write_through("outputs/a/one", "first");
  record_.note(ChangeKind::kEntry, "outputs/a/one");
  std::filesystem::remove(in("outputs/a/one"));
  write_through("temp/three", "second");  // of the same cut, so not recorded again
  expect_bytes(snapshot(), {"uploads/b/two", "temp/three"}, "second");
}

TEST_F(LinksTest, AnotherFileMayTakeItsPlace) {
  three_names();
  record_.note(ChangeKind::kContent, "outputs/a/one");
  write_through("outputs/a/one", "new");
  record_.note(ChangeKind::kMoved, "outputs/apart", "outputs/a/one");
  std::filesystem::rename(in("outputs/apart"), in("outputs/a/one"));
  const auto taken = snapshot();
  expect_bytes(taken, {"uploads/b/two", "temp/three"}, "new");
  expect_bytes(taken, {"outputs/a/one"}, "apart\n");
}

TEST_F(LinksTest, TheNameWhoseModeWasChangedMayGo) {
  three_names();
  record_.note(ChangeKind::kAttributes, "uploads/b/two");
  ::chmod(in("uploads/b/two").c_str(), 0751);
  record_.note(ChangeKind::kEntry, "uploads/b/two");
  std::filesystem::remove(in("uploads/b/two"));
  expect_exact(snapshot());
}

TEST_F(LinksTest, TheNameThatWasWrittenThroughMayMoveAndGo) {
  three_names();
  record_.note(ChangeKind::kMoved, "outputs/a", "outputs/c");
  std::filesystem::rename(in("outputs/a"), in("outputs/c"));
  record_.note(ChangeKind::kContent, "outputs/c/one");
  write_through("outputs/c/one", "new");
  record_.note(ChangeKind::kMoved, "outputs/c/one", "outputs/d");
  std::filesystem::rename(in("outputs/c/one"), in("outputs/d"));
  record_.note(ChangeKind::kEntry, "outputs/d");
  std::filesystem::remove(in("outputs/d"));
  expect_bytes(snapshot(), {"uploads/b/two", "temp/three"}, "new");
}

TEST_F(LinksTest, AMoveOfItMayBeRefused) {
  three_names();
  shell("mkdir outputs/full; echo in > outputs/full/in");
  snapshot();
  record_.note(ChangeKind::kMoved, "outputs/a", "outputs/full");
  EXPECT_ERRNO(ENOTEMPTY, ::rename(in("outputs/a").c_str(), in("outputs/full").c_str()));
  record_.note(ChangeKind::kContent, "outputs/a/one");
  write_through("outputs/a/one", "new");
  record_.note(ChangeKind::kEntry, "outputs/a/one");
  std::filesystem::remove(in("outputs/a/one"));
  expect_bytes(snapshot(), {"uploads/b/two", "temp/three"}, "new");
}

/// The driver records both ends of an exchange, and then nothing below them.
TEST_F(LinksTest, AFolderThatChangesPlacesMayLoseIt) {
  three_names();
  shell("mkdir outputs/other");
  snapshot();
  record_.note(ChangeKind::kTree, "outputs/a");
  record_.note(ChangeKind::kTree, "outputs/other");
  EXPECT_OK(
      ::renameat2(AT_FDCWD, in("outputs/a").c_str(), AT_FDCWD, in("outputs/other").c_str(), RENAME_EXCHANGE));
  write_through("outputs/other/one", "new");
  std::filesystem::remove(in("outputs/other/one"));
  expect_bytes(snapshot(), {"uploads/b/two", "temp/three"}, "new");
}

TEST_F(LinksTest, OneNameForTheModeAndAnotherForTheBytes) {
  three_names();
  record_.note(ChangeKind::kAttributes, "uploads/b/two");
  ::chmod(in("uploads/b/two").c_str(), 0751);
  record_.note(ChangeKind::kContent, "outputs/a/one");
  write_through("outputs/a/one", "new\n");  // as many bytes as before
  expect_bytes(snapshot(), {"outputs/a/one", "uploads/b/two", "temp/three"}, "new\n");
}

TEST_F(LinksTest, AFileIsReadUnderOneNameOnly) {
  three_names();
  record_.note(ChangeKind::kContent, "temp/three");
  write_through("temp/three", "nine byte");
  EXPECT_EQ(snapshot().stats.bytes_read, 9u);
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

TEST_F(LinksTest, ARestoreOfANamesModeLeavesTheOtherNames) {
  make_zones();
  shell(
      "mkdir outputs/a; echo 1 > outputs/a/f; ln outputs/a/f outputs/a/g; ln outputs/a/f temp/f; ln -s f "
      "outputs/a/l; ln outputs/a/l temp/l");
  const auto one = snapshot("one");
  const Manifest at_one = manifest();
  shell("chmod 755 outputs/a/f; touch -h -d 2001-01-01 outputs/a/l");
  const Manifest at_two = manifest();
  auto planned = store().restore(one.id.text(), {rel("outputs/a")}, true, hooks(), nullptr);
  ASSERT_TRUE(planned);
  ASSERT_EQ(planned->applied.size(), 3u);
  EXPECT_EQ(planned->applied[0].kind, DifferenceKind::kMetadata);

  restore(one, {"outputs/a"});
  EXPECT_EQ(mode_of(in("outputs/a/f")), 0644u);
  EXPECT_EQ(mode_of(in("temp/f")), 0755u);
  EXPECT_EQ(stat_of(in("outputs/a/f")).st_ino, stat_of(in("outputs/a/g")).st_ino);
  const Manifest now = manifest();
  EXPECT_EQ(now.at("outputs/a/l").modified.tv_sec, at_one.at("outputs/a/l").modified.tv_sec);
  EXPECT_EQ(now.at("temp/l").modified.tv_sec, at_two.at("temp/l").modified.tv_sec);
  expect_exact(snapshot("after"));
  ASSERT_TRUE(store().undo(hooks(), nullptr));
  expect_same(at_two, manifest());
  expect_exact(snapshot("after undo"));
}

TEST_F(LinksTest, ATableKnowsWhetherItChanged) {
  auto table = PathTable::parse("1 outputs/a\n1 outputs/b\n");
  ASSERT_TRUE(table);
  const auto changes = [&](const auto& change) {
    table->mark_stored();
    change(*table);
    return table->has_changed();
  };
  EXPECT_FALSE(table->has_changed());
  EXPECT_FALSE(changes([](PathTable& t) { t.set("outputs/a", 1); }));
  EXPECT_TRUE(changes([](PathTable& t) { t.set("outputs/a", 2); }));
  EXPECT_TRUE(changes([](PathTable& t) { t.set("outputs/d/c", 2); }));
  EXPECT_FALSE(changes([](PathTable& t) { t.move_tree("outputs/e", "outputs/f"); }));
  EXPECT_TRUE(changes([](PathTable& t) { t.move_tree("outputs/d", "outputs/e"); }));
  EXPECT_FALSE(changes([](PathTable& t) { t.remove("outputs/d/c"); }));
  EXPECT_TRUE(changes([](PathTable& t) { t.remove("outputs/a"); }));
  EXPECT_FALSE(changes([](PathTable& t) { t.remove_tree("temp"); }));
  EXPECT_TRUE(changes([](PathTable& t) { t.remove_tree("outputs"); }));
}

TEST_F(LinksTest, AGroupKeepsItsNumberWhateverOthersThereAre) {
  const auto lines_of = [](std::string_view text) {
    auto table = PathTable::parse(text);
    table->normalize();
    return table->format();
  };
  const std::string pair = lines_of("7 outputs/m\n7 outputs/n\n");
  EXPECT_TRUE(pair.ends_with(" outputs/n\n")) << pair;
  const auto more =
      lines_of("1 outputs/a\n1 outputs/b\n2 outputs/alone\n3 outputs/m\n3 outputs/n\n4 temp/x\n4 temp/y\n");
  EXPECT_NE(more.find(pair), more.npos) << more;
  EXPECT_EQ(more.find("alone"), more.npos) << more;
  std::string many;
  for (int i = 0; i < 100'000; ++i) {
    const auto number = std::to_string(i + 1), path = " outputs/" + std::to_string(i);
    many.append(number + path + "a\n").append(number + path + "b\n");
  }
  auto table = PathTable::parse(many);
  table->normalize();
  EXPECT_EQ(table->groups().size(), 100'000u);
  EXPECT_FALSE(table->groups().contains(table->unused_number()));
}

/// So many names of one CRC-32, which is linear: which letters can be others together, so that it stays.
std::vector<std::string> names_of_one_checksum(std::size_t power) {
  const std::string plain(52, 'a');
  const auto with = [&plain](std::uint64_t others) {
    std::string name = plain;
    for (std::size_t i = 0; i < name.size(); ++i)
      if (others >> i & 1) name[i] = 'c';
    return name;
  };
  const auto sum = [](const std::string& name) {
    return ::crc32(0, reinterpret_cast<const Bytef*>(name.data()), static_cast<uInt>(name.size()));
  };
  std::map<uLong, std::uint64_t> basis;  // by the highest bit
  std::vector<std::uint64_t> without_effect;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    std::uint64_t others = std::uint64_t{1} << i;
    uLong effect = sum(with(others)) ^ sum(plain);
    while (effect) {
      const auto [known, is_new] = basis.try_emplace(std::bit_floor(effect), others);
      if (is_new) break;
      others ^= known->second;
      effect = sum(with(others)) ^ sum(plain);
    }
    if (!effect) without_effect.push_back(others);
  }
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::size_t{1} << power; ++i) {
    std::uint64_t others = 0;
    for (std::size_t bit = 0; bit < power; ++bit)
      if (i >> bit & 1) others ^= without_effect.at(bit);
    names.push_back(with(others));
    EXPECT_EQ(sum(names.back()), sum(plain));
  }
  return names;
}

/// It would take many minutes to look past all that are taken for each of them.
TEST_F(LinksTest, ManyGroupsCostNoMoreWhateverTheirNames) {
  constexpr std::size_t kPower = 16;
  std::string text;
  std::size_t group = 0;
  for (const auto& name : names_of_one_checksum(kPower)) {
    const auto number = std::to_string(++group);
    text.append(number).append(" outputs/").append(name).append("\n");
    text.append(number).append(" temp/").append(name).append("\n");
  }
  auto table = PathTable::parse(text);
  ASSERT_TRUE(table);
  table->normalize();
  const auto groups = table->groups();
  EXPECT_EQ(groups.size(), std::size_t{1} << kPower);
  EXPECT_EQ(groups.begin()->second.size(), 2u);
  EXPECT_FALSE(groups.contains(table->unused_number()));
}

TEST_F(LinksTest, WhatIsOneFileIsKeptWhateverElseChanges) {
  three_names();
  const auto list_of = [&](const Snapshot& taken) {
    return git("rev-parse " + taken.id.text() + ":metadata/links");
  };
  const auto first = list_of(snapshot("first"));
  for (const bool anew : {false, true}) {
    if (anew) reopen();
    record_.note(ChangeKind::kContent, "outputs/apart");
    write(in("outputs/apart"), anew ? "anew" : "changed");
    const auto taken = snapshot();
    EXPECT_EQ(list_of(taken), first);
    expect_exact(taken);
  }
  shell("rm outputs/a/one uploads/b/two");
  const auto none = snapshot();
  EXPECT_EQ(git("ls-tree --name-only " + none.id.text() + ":metadata").find("links"), std::string::npos);
  expect_exact(none);
}

/// Each of the names would be carried along by each of the renames.
TEST_F(LinksTest, InADirectoryThatIsRenamedToAndFroCostNoMoreThanALookAtThem) {
  make_zones();
  shell("mkdir outputs/a; cd outputs/a; for i in $(seq 2000); do echo $i > $i; ln $i l$i; done");
  snapshot("one");
  for (int i = 0; i < 500; ++i)
    for (const bool there : {true, false})
      record_.note(ChangeKind::kMoved, there ? "outputs/a" : "outputs/b", there ? "outputs/b" : "outputs/a");
  const auto two = store().take("two", record_.source(), nullptr);
  ASSERT_TRUE(two) << two.error().message;
  EXPECT_TRUE(two->stats.rescanned);
  expect_exact(*two);
}

}  // namespace
}  // namespace okcvm::test
