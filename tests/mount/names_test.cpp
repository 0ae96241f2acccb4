#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>

#include "tests/support/manifest.h"
#include "tests/support/mounted_session.h"

namespace okcvm::test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class Names : public MountedSession {
 protected:
  /// Counts what was changed as saved.
  void retire() { session().driver().retire_changes(session().driver().cut_changes()); }
};

TEST_F(Names, AnyBytesMakeAName) {
  const auto here = shared_in_session();
  std::vector<std::string> names;
  for (const std::string& name :
       {std::string("\xff\xfe"), std::string("new\nline"), std::string("sp ace"), std::string("\x01"),
        std::string("-rf"), std::string("~"), std::string(".git"), std::string("git~1"), std::string("...."),
        std::string("\\back"), std::string(255, 'n'), std::string(255, '\xe9'),
        std::string(".fuse_hidden0001"), std::string("CON")}) {
    write(here / name, name);
    EXPECT_EQ(read(here / name), name);
    names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(list(here), names);
  EXPECT_EQ(list(session().workspace() / "outputs/shared"), names);
}

TEST_F(Names, OverlongNamesAnswerAsNative) {
  expect_as_native([](const fs::path& here, std::ostream& log) {
    for (const std::size_t size : {255U, 256U, 1000U, 1100U, 4000U, 5000U}) {
      const auto name = here / std::string(size, 'n');
      struct stat found {};
      log << size << ": " << ANSWER_OF(::stat(name.c_str(), &found)) << ANSWER_OF(::mkdir(name.c_str(), 0755))
          << ANSWER_OF(::open(name.c_str(), O_CREAT | O_WRONLY, 0644)) << ANSWER_OF(::unlink(name.c_str()))
          << ANSWER_OF(::symlink("a", name.c_str())) << ANSWER_OF(::rename(here.c_str(), name.c_str()))
          << ANSWER_OF(::rmdir(name.c_str())) << "\n";
    }
    const std::string long_text(4095, 't');  // more than some file systems take
    std::array<char, 5000> text{};
    log << ANSWER_OF(::symlink(long_text.c_str(), (here / "long").c_str()))
        << ::readlink((here / "long").c_str(), text.data(), text.size());
  });
}

// The record of changes names the file. To find its name among all names of its directory would take long
// where those are many, and moves the directory's access time.
TEST_F(Names, AChangeOfAFileWithALongNameReadsNoDirectory) {
  expect_as_native([this](const fs::path& here, std::ostream& log) {
    const auto name = std::string(200, 'n');
    const auto directory = open_file(here, O_RDONLY | O_DIRECTORY);
    write(here / name, "x");
    retire();
    const timespec old[2] = {{1'000'000'000, 0}, {0, UTIME_OMIT}};
    EXPECT_OK(::utimensat(directory.get(), ".", old, 0));
    EXPECT_OK(::chmod((here / name).c_str(), 0600));
    append(here / name, "y");
    struct statx status {};
    EXPECT_OK(::statx(directory.get(), "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_ATIME, &status));
    log << status.stx_atime.tv_sec;
  });
  EXPECT_THAT(session().driver().cut_changes().rescan_reason, IsEmpty());
}

TEST_F(Names, PathsMayBeDeeperThanPathMax) {
  const auto top = shared_in_session();
  auto here = open_file(top, O_RDONLY | O_DIRECTORY);
  const std::string name(200, 'd');
  constexpr int kDepth = 40;  // 8,000 bytes
  for (int i = 0; i < kDepth; ++i) {
    ASSERT_OK(::mkdirat(here.get(), name.c_str(), 0755));
    here = FileDescriptor(::openat(here.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    ASSERT_TRUE(here) << i << " " << errno_name(errno);
  }
  const FileDescriptor file(::openat(here.get(), "leaf", O_CREAT | O_RDWR | O_CLOEXEC, 0644));
  ASSERT_TRUE(file) << errno_name(errno);
  write_all(file, "deep");
  EXPECT_EQ(read(file), "deep");
  EXPECT_OK(::renameat(here.get(), "leaf", here.get(), "leaf2"));
  EXPECT_OK(::symlinkat("leaf2", here.get(), "link"));
  EXPECT_OK(::linkat(here.get(), "leaf2", here.get(), "hard", 0));
  EXPECT_EQ(run_script("rm -rf shared && ! test -e shared", outputs()).exit_code, 0);
}

TEST_F(Names, HardLinksAreOneFile) {
  const auto here = shared_in_session();
  write(here / "a", "one");
  fs::create_directory(here / "d");
  EXPECT_OK(::link((here / "a").c_str(), (here / "d/b").c_str()));
  EXPECT_OK(::link((here / "d/b").c_str(), (temp() / "c").c_str()));
  EXPECT_EQ(stat_of(here / "a").st_nlink, 3u);
  EXPECT_EQ(stat_of(here / "a").st_ino, stat_of(temp() / "c").st_ino);
  write(here / "d/b", "changed");
  EXPECT_EQ(read(temp() / "c"), "changed");
  EXPECT_OK(::unlink((here / "a").c_str()));
  EXPECT_EQ(stat_of(temp() / "c").st_nlink, 2u);
  EXPECT_ERRNO(EEXIST, ::link((temp() / "c").c_str(), (here / "d/b").c_str()));
  EXPECT_ERRNO(EPERM, ::link((here / "d").c_str(), (here / "dd").c_str()));
  EXPECT_OK(::rename((temp() / "c").c_str(), (here / "d/b").c_str()));  // both are one file: nothing happens
  EXPECT_EQ(stat_of(here / "d/b").st_nlink, 2u);
}

TEST_F(Names, AFileIsLinkedByItsDescriptor) {
  write(outputs() / "f", "x");
  const auto file = open_file(outputs() / "f", O_RDONLY);
  const auto by_proc = "/proc/self/fd/" + std::to_string(file.get());
  EXPECT_OK(::linkat(AT_FDCWD, by_proc.c_str(), AT_FDCWD, (outputs() / "g").c_str(), AT_SYMLINK_FOLLOW));
  EXPECT_EQ(stat_of(outputs() / "f").st_nlink, 2u);
}

TEST_F(Names, RenamesAnswerAsNative) {
  expect_as_native([](const fs::path& here, std::ostream& log) {
    const auto rename = [&](const char* from, const char* to, unsigned int flags = 0) {
      log << from << " " << to << " " << flags << ": "
          << ANSWER_OF(::renameat2(AT_FDCWD, (here / from).c_str(), AT_FDCWD, (here / to).c_str(), flags))
          << "\n";
    };
    for (const char* directory : {"empty", "full", "full/sub", "other"})
      fs::create_directory(here / directory);
    write(here / "full/file", "in full");
    write(here / "a", "a");
    write(here / "b", "b");
    fs::create_symlink("a", here / "link");
    rename("a", "a");
    rename("a", "empty");
    rename("empty", "a");
    rename("empty", "full");
    rename("full", "full/sub/inside");
    rename("full", "full");
    rename("missing", "x");
    rename("a", "missing/x");
    rename("a", "b/x");
    rename("a", "b", RENAME_NOREPLACE);
    rename("a", "c", RENAME_NOREPLACE);
    rename("c", "b", RENAME_EXCHANGE);
    rename("c", "missing", RENAME_EXCHANGE);
    rename("full", "b", RENAME_EXCHANGE);
    rename("full/sub", "full", RENAME_EXCHANGE);
    rename("b", "b/sub", RENAME_EXCHANGE);
    rename("c", "b", RENAME_EXCHANGE | RENAME_NOREPLACE);
    rename("c", "b", 64);
    rename("link", "c");
    rename("full", "empty");
    rename("b/", "other/");
    rename(".", "x");
    for (const auto& [path, entry] : manifest_of(here))
      log << path << " " << std::oct << entry.mode << std::dec << " " << entry.size << " " << entry.target
          << "\n";
  });
}

TEST_F(Names, ExchangedDirectoriesKeepTheirContents) {
  const auto here = shared_in_session();
  fs::create_directories(here / "one/deep");
  fs::create_directories(here / "two");
  write(here / "one/deep/file", "1");
  write(here / "two/file", "2");
  const auto inside = open_file(here / "one/deep", O_RDONLY | O_DIRECTORY);
  EXPECT_OK(::renameat2(AT_FDCWD, (here / "one").c_str(), AT_FDCWD, (here / "two").c_str(), RENAME_EXCHANGE));
  EXPECT_EQ(read(here / "two/deep/file"), "1");
  EXPECT_EQ(read(here / "one/file"), "2");
  const FileDescriptor made(::openat(inside.get(), "made", O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
  ASSERT_TRUE(made) << errno_name(errno);
  EXPECT_THAT(list(here / "two/deep"), ElementsAre("file", "made"));
}

TEST_F(Names, AWhiteoutIsADeviceAndIsRefused) {
  write(outputs() / "a", "a");
  EXPECT_ERRNO(EINVAL, ::renameat2(AT_FDCWD, (outputs() / "a").c_str(), AT_FDCWD, (outputs() / "b").c_str(),
                                   RENAME_WHITEOUT));
  EXPECT_THAT(list(outputs()), ElementsAre("a"));
}

TEST_F(Names, AWorkingDirectoryFollowsItsRename) {
  fs::create_directories(outputs() / "a/b/c");
  write(outputs() / "a/b/c/file", "x");
  const auto result = run_script(
      "cd a/b/c; mv ../../../a ../../../moved; cat file; echo new > made; cat made; ls; cd -P ..; ls; "
      "test \"$(readlink /proc/self/cwd)\" = \"$(cd -P ../../moved/b && pwd -P)\"",
      outputs());
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(result.output, "xnew\nfile\nmade\nc\n");
}

TEST_F(Names, SpecialNamesAnswerAsNative) {
  expect_as_native([](const fs::path& here, std::ostream& log) {
    fs::create_directory(here / "d");
    write(here / "f", "x");
    for (const char* name : {"d/.", "d/..", "", "f/", "d/", "new/", ".", ".."}) {
      const auto path = here.string() + "/" + name;
      log << name << ": " << ANSWER_OF(::rmdir(path.c_str())) << ANSWER_OF(::unlink(path.c_str()))
          << ANSWER_OF(::mknod(path.c_str(), S_IFREG | 0644, 0)) << ANSWER_OF(::symlink("x", path.c_str()))
          << ANSWER_OF(::rename(path.c_str(), (here / "g").c_str())) << "\n";
    }
  });
}

TEST_F(Names, LoopsOfLinksEnd) {
  EXPECT_OK(::symlink("b", (outputs() / "a").c_str()));
  EXPECT_OK(::symlink("a", (outputs() / "b").c_str()));
  EXPECT_ERRNO(ELOOP, ::open((outputs() / "a").c_str(), O_RDONLY));
  EXPECT_OK(::symlink(".", (outputs() / "self").c_str()));
  EXPECT_OK(::access((outputs() / "self/self/self").c_str(), F_OK));
}

}  // namespace
}  // namespace okcvm::test
