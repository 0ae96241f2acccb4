// Versions of a folder as deltas of each other.

#include "snapshots/pack_deltas.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "snapshots/delta.h"
#include "tests/snapshots/fixture.h"

namespace okcvm::test {
namespace {

using snapshots::Snapshot;
using snapshots::Units;

/// What a reader of gitformat-pack(5) makes of a delta.
std::string applied(std::string_view base, std::string_view delta) {
  const auto byte = [&delta] {
    const auto first = static_cast<unsigned char>(delta.at(0));
    delta.remove_prefix(1);
    return std::size_t{first};
  };
  const auto size = [&byte] {
    std::size_t value = 0, next = 0x80;
    for (int shift = 0; next & 0x80; shift += 7) value |= ((next = byte()) & 0x7f) << shift;
    return value;
  };
  EXPECT_EQ(size(), base.size());
  const std::size_t target_size = size();
  std::string target;
  while (!delta.empty()) {
    const auto instruction = byte();
    if (instruction & 0x80) {
      std::size_t from = 0, count = 0;
      for (int i = 0; i < 4; ++i)
        if (instruction & (1u << i)) from |= byte() << 8 * i;
      for (int i = 0; i < 3; ++i)
        if (instruction & (0x10u << i)) count |= byte() << 8 * i;
      target += base.substr(from, count ? count : 0x10000);
    } else {
      EXPECT_NE(instruction, 0u);
      target += delta.substr(0, instruction);
      delta.remove_prefix(instruction);
    }
  }
  EXPECT_EQ(target.size(), target_size);
  return target;
}

TEST(DeltaTest, MakesOneTextOutOfTheOther) {
  std::mt19937 random(20);
  const auto number = [&random](unsigned most) { return random() % (most + 1); };
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> lines;
    const auto some_line = [&] { return std::string(number(200), 'a') + std::to_string(random()) + "\n"; };
    for (auto count = number(round % 10 ? 30 : 3000); count > 0; --count) lines.push_back(some_line());
    const auto joined = [&lines] {
      std::string text;
      for (const auto& line : lines) text += line;
      return text;
    };
    const std::string base = joined();
    for (auto changes = number(6); changes > 0; --changes) {
      const auto at = static_cast<std::ptrdiff_t>(number(static_cast<unsigned>(lines.size())));
      if (number(2) == 0)
        lines.insert(lines.begin() + at, some_line());
      else if (number(1) == 0 && at < static_cast<std::ptrdiff_t>(lines.size()))
        lines[static_cast<std::size_t>(at)] = some_line();
      else if (number(3) == 0)
        std::rotate(lines.begin(), lines.begin() + at, lines.end());
      else
        lines.erase(lines.begin(), lines.begin() + at);
    }
    const std::string target = joined() + (number(1) ? "" : "no end");
    const auto delta = snapshots::delta_between(snapshots::line_units(base), snapshots::line_units(target));
    ASSERT_EQ(applied(base, delta), target) << "round " << round;
    if (base.size() > 10'000 && target.size() > 10'000) {
      EXPECT_LT(delta.size(), target.size() / 2);
    }
  }
}

TEST(DeltaTest, CutsATreeIntoEntries) {
  std::string tree;
  for (const char* name : {"100644 a", "40000 b", "120000 c c"})
    tree.append(name).append(1, '\0').append(20, '\0');
  const Units units = snapshots::tree_units(tree);
  ASSERT_EQ(units.size(), 3u);
  EXPECT_EQ(units[2].substr(0, 10), "120000 c c");
  EXPECT_TRUE(snapshots::tree_units(tree.substr(0, tree.size() - 1)).empty());
}

class PackDeltasTest : public ::testing::Test {
 protected:
  /// The head of what is written for a blob; it has a base if it became a delta.
  snapshots::PackEntryHead written(const std::string& text, std::size_t deltas = 0) {
    const auto oid = snapshots::hash_object(snapshots::ObjectKind::kBlob, text);
    const auto whole = snapshots::make_pack_entry(oid, snapshots::ObjectKind::kBlob, text);
    return *snapshots::head_of(deltas_.shortened(*whole, deltas).bytes);
  }
  static std::string record(int changed) {
    std::string text = ". 755 0:0 1700000000.000000000\n";
    for (int i = 0; i < 100; ++i)
      text += "f 644 0:0 " + std::to_string((i == changed ? 1800000000 : 1700000000) + i * i) + ".0 1 - f" +
              std::to_string(i) + "\n";
    return text;
  }
  snapshots::PackDeltas deltas_;
};

TEST_F(PackDeltasTest, NoObjectIsNeededByMoreThanForty) {
  std::map<std::string, int> of;
  for (int i = 0; i < 100; ++i)
    if (const auto head = written(record(i)); head.base) ++of[head.base->hex()];
  ASSERT_FALSE(of.empty());
  for (const auto& [base, count] : of) EXPECT_LE(count, 40) << base;
  EXPECT_FALSE(written(record(200), 1).base) << "what others are made of stays whole";
}

TEST_F(PackDeltasTest, VersionsOfAnyFileAreToldByWhatChanged) {
  std::mt19937 random(5);
  std::string log, database, digits;
  for (int i = 0; i < 1000; ++i) log += std::to_string(random()) + " something happened\n";
  for (int i = 0; i < 200'000; ++i) database += static_cast<char>(random());
  for (int i = 0; i < 20'000; ++i) digits += std::to_string(random() % 1000) + "\n";
  for (std::string* text : {&log, &database, &digits}) {
    EXPECT_FALSE(written(*text).base);
    auto next = *text;
    next.replace(9000, 3, "new");
    EXPECT_TRUE(written(next).base);
    EXPECT_TRUE(written(next + "and more\n").base);
  }
  std::reverse(database.begin(), database.end());
  EXPECT_FALSE(written(database).base);
}

class VersionsOfAFolder : public SnapshotTest {
 protected:
  void SetUp() override {
    if (!have_program("git")) GTEST_SKIP() << "git is not installed";
    make_zones();
  }
  void change(int which, const std::string& text) {
    const std::string path = "outputs/" + std::to_string(which);
    write(in(path), text);
    record_.note(ChangeKind::kContent, path);
  }
  static std::string output(const std::string& script) { return run_script(script, "/").output; }
  std::uintmax_t size_of_packs() const {
    std::uintmax_t size = 0;
    for (const auto& file : std::filesystem::directory_iterator(repository() / "objects/pack"))
      size += file.file_size();
    return size;
  }
};

TEST_F(VersionsOfAFolder, TakeTheRoomOfWhatChanged) {
  constexpr int kFiles = 2000, kSnapshots = 200;
  for (int i = 0; i < kFiles; ++i) write(in("outputs/" + std::to_string(i)), std::to_string(i));
  record_.note(ChangeKind::kTree, "outputs");
  snapshot("many files");
  const auto before = size_of_packs();
  change(0, "one");
  const Snapshot early = snapshot("one more");
  const auto of_one = size_of_packs() - before;
  for (int i = 0; i < kSnapshots; ++i) {
    change(7 * i % kFiles, "changed " + std::to_string(i));
    if (i == 100) {
      write(in("outputs/a new name"), "new");
      record_.note(ChangeKind::kTree, "outputs/a new name");
    }
    snapshot("n");
  }
  // Those that were not merged yet are whole, and one of each merge.
  EXPECT_LT(size_of_packs(), before + 55 * of_one);
  expect_sound_repository();
  EXPECT_EQ(git("show " + early.id.text() + ":workspace/outputs/0"), "one");
  const Snapshot last = snapshot("last");
  reopen();
  restore(early);
  expect_exact(early);
  restore(last);
  expect_exact(last);
}

TEST_F(VersionsOfAFolder, DoSoWithHardLinksToo) {
  shell(
      "mkdir outputs/a outputs/b; for i in $(seq 3000); do echo $i > outputs/a/$i; done; ln outputs/a/* "
      "outputs/b");
  snapshot("many links");
  const auto before = size_of_packs();
  const auto join = [this](int number) {
    const std::string name = std::to_string(number);
    write(in("outputs/" + name), "new");
    std::filesystem::create_hard_link(in("outputs/" + name), in("temp/" + name));
    record_.note(ChangeKind::kEntry, "outputs/" + name);
    record_.note(ChangeKind::kEntry, "temp/" + name);
    return snapshot("one more");
  };
  join(0);
  const auto of_one = size_of_packs() - before;
  for (int i = 1; i < 120; ++i) join(i);
  EXPECT_LT(size_of_packs(), before + 55 * of_one);
  expect_sound_repository();
  const Snapshot last = join(120);
  shell("rm -r outputs/a");
  reopen();
  restore(last);
  expect_exact(last);
}

TEST_F(VersionsOfAFolder, DoSoWithAFileThatGrows) {
  std::mt19937 random(7);
  std::string log;
  for (int i = 0; i < 2000; ++i) log += std::to_string(random()) + " something happened\n";
  change(0, log);
  const Snapshot early = snapshot("long already");
  const auto before = size_of_packs();
  const auto grow = [&] {
    change(0, log += std::to_string(random()) + " something else\n");
    return snapshot("longer");
  };
  grow();
  const auto of_one = size_of_packs() - before;
  for (int i = 1; i < 200; ++i) grow();
  EXPECT_LT(size_of_packs(), before + 55 * of_one);
  expect_sound_repository();
  const Snapshot last = grow();
  reopen();
  restore(early);
  expect_exact(early);
  restore(last);
  expect_exact(last);
}

/// A damaged object takes those with it that are told by it, and no others.
TEST_F(VersionsOfAFolder, AreLostWithWhatTheyAreDeltasOf) {
  for (int i = 0; i < 300; ++i) write(in("outputs/" + std::to_string(i)), std::to_string(i));
  record_.note(ChangeKind::kTree, "outputs");
  for (int i = 0; i < 60; ++i) {
    change(i, "changed");
    snapshot("n");
  }
  const Snapshot last = snapshot("not merged yet");
  std::string base;
  for (const auto& file : std::filesystem::directory_iterator(repository() / "objects/pack")) {
    if (file.path().extension() != ".pack" || !base.empty()) continue;
    const auto listed = "git --git-dir=" + repository().string() + " verify-pack -v " +
                        std::filesystem::path(file.path()).replace_extension(".idx").string();
    // Of a delta: name, kind, size, size in the pack, offset, depth, base.
    base = output(listed + " | awk 'NF == 7 && $2 == \"tree\" { print $7; exit }'").substr(0, 40);
    if (base.empty()) continue;
    const auto offset = std::stoul(output(listed + " | awk '$1 == \"" + base + "\" { print $5; exit }'"));
    auto bytes = read(file.path());
    bytes[offset + 100] ^= 1;
    write(file.path(), bytes);
  }
  ASSERT_FALSE(base.empty()) << "there are no deltas";
  const auto lost = [this] { return store().verify("", record_.source(), nullptr)->problems.size(); };
  reopen();
  EXPECT_GT(lost(), 10u);
  EXPECT_LE(lost(), 40u);
  // What is written next stands on nothing of that, and what can still be read stays.
  change(299, "after the damage");
  const Snapshot next = snapshot("next");
  const auto now = manifest();
  EXPECT_LE(lost(), 40u);
  restore(last);
  EXPECT_EQ(read(in("outputs/299")), "299");
  restore(next);
  expect_same(now, manifest());
}

}  // namespace
}  // namespace okcvm::test
