// Names that git takes for its own are escaped in what it reads, and nobody else notices.

#include "snapshots/names.h"

#include <unistd.h>

#include "tests/snapshots/fixture.h"

namespace okcvm::test {
namespace {

using namespace snapshots;

class NamesTest : public SnapshotTest {};

/// Bytes after which git reads no further, as they begin no character.
const std::vector<std::string> kNoCharacter{
    "\x80",         "\xbf",     "\xc0\x80",         "\xc1\xbf",         "\xc2",
    "\xc2x",        "\xdf\xc0", "\xe0\x9f\xbf",     "\xe2\x82",         "\xed\xa0\x80",
    "\xed\xbf\xbf", "\xef\xbf", "\xef\xbf\xbe",     "\xef\xbf\xbf",     "\xf0\x8f\xbf\xbf",
    "\xf0\x90\x80", "\xff",     "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xf8\x88\x80\x80\x80",
};
const std::vector<std::string> kCharacters{
    "\xc2\x80",     "\xdf\xbf",     "\xe0\xa0\x80",     "\xed\x9f\xbf",     "\xee\x80\x80",
    "\xef\xbf\xbd", "\xef\xb7\x90", "\xf0\x90\x80\x80", "\xf0\x9f\xbf\xbe", "\xf4\x8f\xbf\xbf",
};

TEST_F(NamesTest, ThatEndForGitInAByteThatIsNoCharacter) {
  make_zones();
  std::filesystem::create_directories(in("temp/folders"));
  for (const auto& end : kNoCharacter)
    for (const std::string rest : {"", "x"})
      for (const std::string name : {".git", ".GiT", ".g\xe2\x80\x8cit", ".gitmodules", ".gitattributes"}) {
        const std::string full = name + end + rest;
        EXPECT_NE(to_git_name(full, false), full);
        EXPECT_EQ(from_git_name(to_git_name(full, false)), full);
        write(in("outputs/" + full), "[bad");
        std::filesystem::create_directories(in("temp/folders/" + full + "/in"));
      }
  for (const auto& end : kNoCharacter)
    for (const std::string name : {".gitignore", ".mailmap"})
      std::filesystem::create_symlink("nowhere", in("uploads/" + name + end));
  const auto taken = snapshot();
  expect_exact(taken);
  expect_sound_repository();
  const Manifest before = manifest();
  shell("rm -r outputs/.g* outputs/.G* temp/folders uploads/.gitignore*");
  restore(taken);
  expect_same(before, manifest());
}

TEST_F(NamesTest, ThatGitReadsToTheEndAreTheirOwn) {
  make_zones();
  for (const auto& end : kCharacters)
    for (const std::string name : {".git", ".gitmodules", ".gitattributes"}) {
      EXPECT_EQ(to_git_name(name + end, false), name + end);
      write(in("outputs/" + name + end), "[bad");
    }
  expect_exact(snapshot());
  expect_sound_repository();
}

/// Before such names were escaped, they stood in git's trees as they are.
TEST_F(NamesTest, OfOlderSnapshotsAreFoundAsTheyWereStored) {
  const std::string longest = ".git" + std::string(251, '\xff');
  make_zones();
  std::filesystem::create_directories(in("outputs/.git\xfe"));
  write(in("outputs/.git\xfe/in"), "in a folder");
  write(in("outputs/.git\xff%41"), "file");
  write(in("outputs/" + longest), "long");
  snapshot();
  const Manifest before = manifest();
  const auto stored_anew = run_script(
      "export LC_ALL=C GIT_DIR=" + repository().string() + " escaped=" + to_git_name(longest, false) + R"(
      longest=.git$(printf '\377%.0s' $(seq 251))
      as_they_are() { sed -z "s/\t%2egit/\t.git/; s/\t$escaped/\t$longest/"; }
      with() { sed -z "s/ $(git rev-parse main:$1)\t/ $2\t/"; }
      inner=$(git ls-tree -z main:workspace/outputs | as_they_are | git mktree -z)
      shown=$(git ls-tree -z main:workspace | with workspace/outputs $inner | git mktree -z)
      inner=$(git ls-tree -z main:metadata/tree/outputs | as_they_are | git mktree -z)
      inner=$(git ls-tree -z main:metadata/tree | with metadata/tree/outputs $inner | git mktree -z)
      meta=$(git ls-tree -z main:metadata | with metadata/tree $inner | git mktree -z)
      tree=$(git ls-tree -z main: | with workspace $shown | with metadata $meta | git mktree -z)
      commit=$(git cat-file commit main | sed "s/^tree .*/tree $tree/" | git hash-object -t commit -w --stdin)
      git update-ref refs/heads/main $commit)",
      scratch_.path());
  ASSERT_EQ(stored_anew.exit_code, 0) << stored_anew.output;
  const std::string names = git("ls-tree --name-only main:workspace/outputs");
  EXPECT_EQ(names.find("%2e"), names.npos) << names;
  EXPECT_EQ(names.find("%00"), names.npos) << names;

  reopen();
  const auto older = store().list(1)->front();
  expect_exact(older);
  shell("rm -r outputs/.git*");
  restore(older);
  expect_same(before, manifest());
  write(in("outputs/new"), "new");
  record_.note(ChangeKind::kEntry, "outputs/new");
  expect_exact(snapshot());
  EXPECT_NE(git("ls-tree --name-only main:workspace/outputs").find("%2e"), std::string::npos);
}

}  // namespace
}  // namespace okcvm::test
