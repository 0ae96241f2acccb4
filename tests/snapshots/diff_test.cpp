// What `show` and `diff` say, and what stock git says of the same history.

#include <sys/stat.h>

#include <algorithm>
#include <map>

#include "snapshots/difference.h"
#include "tests/snapshots/fixture.h"

namespace okcvm::test {
namespace {

using namespace snapshots;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::optional<Caller> kRoot = Caller{};

class DiffTest : public SnapshotTest {
 protected:
  using Rows = std::map<std::string, Difference>;

  static Rows by_path(const Result<std::vector<Difference>>& rows) {
    Rows found;
    if (!rows) {
      ADD_FAILURE() << rows.error().message;
      return found;
    }
    for (const auto& row : *rows) EXPECT_TRUE(found.emplace(row.path.text(), row).second) << row.path.text();
    return found;
  }

  void two_states() {
    make_zones();
    shell(R"(cd outputs; printf 'one\ntwo\nthree\n' > text; echo gone > removed; echo run > mode; mkdir d
             for i in $(seq 100); do echo "line $i"; done > old; printf 'a\0b' > binary; echo same > same)");
    one_ = snapshot("one");
    shell(R"(cd outputs; printf 'one\n2\nthree\n' > text; rm removed; chmod 700 mode; mv old d/new
             printf 'a\0c' > binary; printf 'fresh\n' > added)");
  }

  static void expect_rows(const Rows& rows) {
    ASSERT_TRUE(rows.contains("outputs/text"));
    const auto& text = rows.at("outputs/text");
    EXPECT_EQ(text.kind, DifferenceKind::kChanged);
    EXPECT_EQ(text.old_size, 14u);
    EXPECT_EQ(text.new_size, 12u);
    EXPECT_THAT(text.unified, HasSubstr("@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"));
    EXPECT_FALSE(text.binary);

    EXPECT_EQ(rows.at("outputs/removed").kind, DifferenceKind::kRemoved);
    EXPECT_EQ(rows.at("outputs/removed").old_size, 5u);
    EXPECT_FALSE(rows.at("outputs/removed").new_size);
    EXPECT_EQ(rows.at("outputs/added").kind, DifferenceKind::kAdded);
    EXPECT_FALSE(rows.at("outputs/added").old_size);
    EXPECT_THAT(rows.at("outputs/added").unified, HasSubstr("+fresh\n"));

    EXPECT_EQ(rows.at("outputs/mode").kind, DifferenceKind::kMetadata);
    EXPECT_EQ(*rows.at("outputs/mode").old_mode & 07777, 0644u);
    EXPECT_EQ(*rows.at("outputs/mode").new_mode & 07777, 0700u);

    EXPECT_EQ(rows.at("outputs/d/new").kind, DifferenceKind::kRenamed);
    EXPECT_EQ(rows.at("outputs/d/new").renamed_from, rel("outputs/old"));
    EXPECT_FALSE(rows.contains("outputs/old"));

    EXPECT_EQ(rows.at("outputs/binary").kind, DifferenceKind::kChanged);
    EXPECT_TRUE(rows.at("outputs/binary").binary);
    EXPECT_THAT(rows.at("outputs/binary").unified,
                HasSubstr("\nBinary files a/outputs/binary and b/outputs/binary differ\n"));
    EXPECT_FALSE(rows.contains("outputs/same"));
  }

  std::optional<Snapshot> one_;
};

TEST_F(DiffTest, BetweenSnapshotsAndToTheLiveWorkspaceAlike) {
  two_states();
  const std::string one = one_->id.text();
  expect_rows(by_path(store().diff(one, std::nullopt, record_.source(), kRoot, nullptr)));
  EXPECT_EQ(store().list(0)->size(), 1u) << "a comparison stores nothing";
  const std::string two = snapshot("two").id.text();
  expect_rows(by_path(store().diff(one, two, {}, kRoot, nullptr)));
  expect_rows(by_path(store().show(two, kRoot, {})));
  EXPECT_THAT(by_path(store().diff(two, std::nullopt, record_.source(), kRoot, nullptr)), IsEmpty());
  EXPECT_THAT(by_path(store().diff(two, two, {}, kRoot, nullptr)), IsEmpty());
}

TEST_F(DiffTest, BackwardsItIsTheOtherWayRound) {
  two_states();
  const auto rows = by_path(store().diff(snapshot("two").id.text(), one_->id.text(), {}, kRoot, nullptr));
  EXPECT_EQ(rows.at("outputs/removed").kind, DifferenceKind::kAdded);
  EXPECT_EQ(rows.at("outputs/added").kind, DifferenceKind::kRemoved);
  EXPECT_EQ(rows.at("outputs/old").renamed_from, rel("outputs/d/new"));
  EXPECT_THAT(rows.at("outputs/text").unified, HasSubstr("-2\n+two\n"));
}

TEST_F(DiffTest, TextIsAPatchThatGitApplies) {
  make_zones();
  shell(
      R"sh(cd outputs; printf 'a\nb\n' > text; echo x > removed; echo run > mode; echo both > 'we "ird'; ln -s old link
           mkdir d; echo moved 100644 > old; echo file > to_link; ln -s text to_file; touch empty_gone; printf 'no end' > end
           echo file > becomes_folder; mkdir becomes_file; echo x > becomes_file/x; printf '#!/bin/sh\n' > run; chmod 755 run
           echo run > run_gone; chmod 755 run_gone)sh");
  const std::string one = snapshot("one").id.text();
  shell(
      R"sh(cd outputs; printf 'a\nB\n' > text; rm removed empty_gone run_gone; chmod 755 mode; printf 'other\n' > 'we "ird'
           ln -sfn new link; mv old 'd/new name'; chmod 755 'd/new name'; ln -sf text to_link; rm to_file; echo file > to_file
           touch empty; printf 'an end\n' > end; rm becomes_folder; mkdir becomes_folder; echo in > becomes_folder/in
           rm -r becomes_file; echo now > becomes_file; chmod 755 we*; echo more >> run; echo new > added; chmod 755 added
           ln -s x new_link; printf 'x' > "$(printf 'tab\tand\303\251')")sh");
  const std::string two = snapshot("two").id.text();
  const auto apply = [&](const std::string& from, const std::string& to) {
    std::string patch;
    for (const auto& [path, row] : by_path(store().diff(from, to, {}, kRoot, nullptr))) patch += row.unified;
    const auto folder = scratch_ / ("applied-" + from.substr(0, 8));
    std::filesystem::create_directory(folder);
    write(folder / "patch", patch);
    const auto tree = [&](const std::string& id) {
      return "git --git-dir=" + repository().string() + " archive " + id + ":workspace outputs | tar -x -C ";
    };
    const std::string programs = "; find . -type f -perm -100 | sort) > ../programs-";
    const auto applied =
        run_script("mkdir a b; git init -q a; " + tree(from) + "a; " + tree(to) +
                       "b; cd a; git apply --whitespace=nowarn ../patch; "
                       "diff -r --no-dereference outputs ../b/outputs; (cd outputs" +
                       programs + "a; (cd ../b/outputs" + programs + "b; cmp ../programs-a ../programs-b",
                   folder);
    EXPECT_EQ(applied.output, "") << patch;
    EXPECT_EQ(applied.exit_code, 0);
  };
  apply(one, two);
  apply(two, one);
}

TEST_F(DiffTest, APatchThatCannotSayAllIsRefusedByGit) {
  make_zones();
  shell("echo small > outputs/changed");
  const std::string one = snapshot("one").id.text();
  std::filesystem::create_directories(scratch_ / "applied/outputs");
  write(scratch_ / "applied/outputs/changed", "small\n");
  run_script("git init -q applied", scratch_.path());
  const auto expect_refused = [&](const std::string& name, const std::string& bytes) {
    write(in("outputs/" + name), bytes);
    record_.note(ChangeKind::kContent, "outputs/" + name);
    const auto rows = by_path(store().diff(one, std::nullopt, record_.source(), kRoot, nullptr));
    write(scratch_ / "patch", rows.at("outputs/" + name).unified);
    const auto applied = run_script("git -C applied apply ../patch", scratch_.path());
    EXPECT_NE(applied.exit_code, 0) << name;
    EXPECT_THAT(applied.output, HasSubstr("cannot apply binary patch")) << name;
  };
  expect_refused("latin1", "caf\xe9\n");
  expect_refused("zero", std::string("a\0b", 3));
  expect_refused("large", std::string(kMaxText + 1, 'x'));
  expect_refused("changed", "caf\xe9\n");
}

TEST_F(DiffTest, WithoutTextThereIsNone) {
  two_states();
  for (const auto& [path, row] : by_path(store().show(snapshot("two").id.text(), std::nullopt, {})))
    EXPECT_THAT(row.unified, IsEmpty()) << path;
}

TEST_F(DiffTest, TextIsForThoseAloneWhoMayReadIt) {
  make_zones();
  shell(
      R"(cd outputs; echo one > open; echo one > closed; echo one > group; echo one > was_open; echo one > now_open
           mkdir folder; echo one > folder/file; ln -s one folder/link
           chmod 600 closed now_open; chgrp 4321 group; chmod 640 group; chmod 700 folder)");
  const std::string one = snapshot("one").id.text();
  shell(R"(cd outputs; for f in open closed group was_open now_open folder/file; do echo two > $f; done
           ln -sfn two folder/link; chmod 600 was_open; chmod 644 now_open)");
  const Caller stranger{1234, 1234, {}};
  const Caller member{1234, 1234, {4321}};
  const auto told_to = [](const Rows& rows) {
    std::vector<std::string> paths;
    for (const auto& [path, row] : rows)
      if (!row.unified.empty()) paths.push_back(path.substr(std::string("outputs/").size()));
    return paths;
  };
  const auto check = [&](auto compare) {
    EXPECT_THAT(told_to(by_path(compare(stranger))), ElementsAre("open"));
    EXPECT_THAT(told_to(by_path(compare(member))), ElementsAre("group", "open"));
    EXPECT_THAT(told_to(by_path(compare(Caller{}))),
                ElementsAre("closed", "folder/file", "folder/link", "group", "now_open", "open", "was_open"));
  };
  check([&](const Caller& reader) {
    return store().diff(one, std::nullopt, record_.source(), reader, nullptr);
  });
  const std::string two = snapshot("two").id.text();
  check([&](const Caller& reader) { return store().diff(one, two, {}, reader, nullptr); });
  check([&](const Caller& reader) { return store().show(two, reader, {}); });
}

TEST_F(DiffTest, TheFirstSnapshotIsAllAdded) {
  two_states();
  for (const auto& [path, row] : by_path(store().show(one_->id.text(), std::nullopt, {})))
    EXPECT_EQ(row.kind, DifferenceKind::kAdded) << path;
}

TEST_F(DiffTest, ManyFilesOfTheSameBytesAreRenamedTogether) {
  constexpr int kCount = 50'000;
  Node file;
  file.type = NodeType::kFile;
  file.size = 4;
  std::vector<Delta> deltas;
  const auto name = [](const char* directory, int i) { return directory + std::to_string(100'000 + i); };
  for (int i = 0; i < kCount; ++i) deltas.push_back({name("outputs/new/", i), nullptr, &file});
  deltas.push_back({"outputs/other", nullptr, &file});
  for (int i = 0; i <= kCount; ++i) deltas.push_back({name("outputs/old/", i), &file, nullptr});
  const auto rows = by_path(to_differences(deltas));
  EXPECT_EQ(rows.size(), kCount + 1u);
  for (int i = 0; i < kCount; ++i)
    EXPECT_EQ(rows.at(name("outputs/new/", i)).renamed_from, rel(name("outputs/old/", i)));
  EXPECT_EQ(rows.at("outputs/other").renamed_from, rel(name("outputs/old/", kCount)));
}

TEST_F(DiffTest, TextIsGivenAsLongAsItFitsIntoAnAnswer) {
  make_zones();
  one_ = snapshot("one");
  std::string text;
  while (text.size() + 64 < kMaxText) text += std::string(63, 'x') + "\n";
  for (int i = 10; i < 40; ++i) write(in("outputs/f" + std::to_string(i)), text);
  record_.note(ChangeKind::kTree, "outputs");
  std::size_t bytes = 0;
  const auto rows = by_path(store().diff(one_->id.text(), std::nullopt, record_.source(), kRoot, nullptr));
  for (const auto& [path, row] : rows) bytes += row.unified.size();
  EXPECT_EQ(rows.size(), 30u);
  EXPECT_THAT(rows.at("outputs/f10").unified, HasSubstr("+xxx"));
  EXPECT_GE(bytes, kMaxTextOfAll);
  EXPECT_LT(bytes, kMaxTextOfAll + 2 * kMaxText);
  EXPECT_THAT(rows.at("outputs/f39").unified,
              HasSubstr("\nBinary files /dev/null and b/outputs/f39 differ\n"));
  EXPECT_EQ(rows.at("outputs/f39").new_size, text.size());
}

TEST_F(DiffTest, TextIsNotGivenOfMoreLinesThanCanBeComparedSoon) {
  make_zones();
  const auto lines = [](char letter) {
    std::string text;
    for (std::size_t i = 0; i < kMostLines * 2 / 3; ++i) text.append(1, letter).append("\n");
    return text;
  };
  write(in("outputs/one_line"), lines('a') + "old\n" + lines('b'));
  write(in("outputs/all_lines"), lines('a'));
  one_ = snapshot("one");
  write(in("outputs/one_line"), lines('a') + "new\n" + lines('b'));
  write(in("outputs/all_lines"), lines('b'));
  for (const char* path : {"outputs/one_line", "outputs/all_lines"}) record_.note(ChangeKind::kContent, path);
  const auto rows = by_path(store().diff(one_->id.text(), std::nullopt, record_.source(), kRoot, nullptr));
  EXPECT_THAT(rows.at("outputs/one_line").unified, HasSubstr("-old\n+new\n"));
  EXPECT_THAT(rows.at("outputs/all_lines").unified,
              HasSubstr("\nBinary files a/outputs/all_lines and b/outputs/all_lines differ\n"));
}

TEST_F(DiffTest, ATextDiffCanBeGivenUp) {
  two_states();
  record_.note(ChangeKind::kTree, "outputs");
  const std::string one = one_->id.text(), two = snapshot("two").id.text();
  const Progress stop = [](std::string_view, std::uint64_t, std::uint64_t) { return false; };
  EXPECT_EQ(store().diff(one, two, {}, kRoot, stop).error().code, Code::kBusy);
  EXPECT_EQ(store().show(two, kRoot, stop).error().code, Code::kBusy);
}

TEST_F(SnapshotTest, StockGitReadsTwoHundredSnapshots) {
  if (!have_program("git")) GTEST_SKIP() << "git is not installed";
  constexpr int kCount = 200;
  make_zones();
  shell("mkdir -p outputs/r/.git uploads/empty; echo ref > outputs/r/.git/HEAD; echo 0 > outputs/report.md");
  std::vector<std::string> ids;
  for (int i = 0; i < kCount; ++i) {
    write(in("outputs/report.md"), "report " + std::to_string(i) + "\n");
    record_.note(ChangeKind::kContent, "outputs/report.md");
    write(in("uploads/f" + std::to_string(i % 17)), std::to_string(i) + "\n");
    record_.note(ChangeKind::kEntry, "uploads/f" + std::to_string(i % 17));
    ids.push_back(snapshot("number " + std::to_string(i)).id.text());
  }
  expect_sound_repository();
  for (int i = 0; i < kCount; i += 33)
    EXPECT_EQ(git("show " + ids[static_cast<std::size_t>(i)] + ":workspace/outputs/report.md"),
              "report " + std::to_string(i) + "\n");

  const auto patches = git("log -p -- workspace/outputs/report.md");
  EXPECT_THAT(patches, HasSubstr("-report 100\n+report 101\n"));
  EXPECT_THAT(git("show " + ids[100]), HasSubstr("-report 99\n+report 100\n"));
  EXPECT_EQ(git("show " + ids[100] + ":workspace/outputs/r/%2egit/HEAD"), "ref\n");
  const auto cloned = run_script("git clone -q " + repository().string() + " clone", scratch_.path());
  ASSERT_EQ(cloned.exit_code, 0) << cloned.output;
  EXPECT_EQ(read(scratch_ / "clone/workspace/outputs/report.md"), "report 199\n");
  EXPECT_EQ(run_script("git -C clone rev-list --count HEAD", scratch_.path()).output, "200\n");
  EXPECT_EQ(run_script("git -C clone status --porcelain", scratch_.path()).output, "");
  const auto log = run_script("git -C clone log -p -- workspace/outputs/report.md", scratch_.path());
  EXPECT_EQ(log.exit_code, 0);
  EXPECT_THAT(log.output, HasSubstr("-report 100\n+report 101\n"));
  EXPECT_THAT(log.output, HasSubstr("    number 57\n"));
  EXPECT_EQ(run_script("git -C clone fsck --strict --full", scratch_.path()).exit_code, 0);
  EXPECT_LE(list(repository() / "objects/pack").size(), 2u * 41u) << "packs are merged";
  expect_exact(snapshot("last"));
}

}  // namespace
}  // namespace okcvm::test
