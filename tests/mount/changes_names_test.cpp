// Changes whose path is hard to tell.

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "tests/support/mounted_session.h"

namespace okcvm::test {
namespace {

class ChangesOfNames : public MountedSession {
 protected:
  void save() {
    for (int i = 0; i < 5000 && session().driver().statistics().open_files > 0; ++i) ::usleep(1000);
    session().driver().retire_changes(session().driver().cut_changes());
  }
  /// Whether a snapshot would look at this path.
  bool is_told(const std::string& path) {
    const ChangeSet changes = session().driver().cut_changes();
    return changes.rescan || std::ranges::any_of(changes.changes, [&](const Change& change) {
             return change.path.text() == path || change.target.text() == path;
           });
  }
};

TEST_F(ChangesOfNames, OfMoreThan4095BytesAreAGap) {
  const std::string part(248, 'd'), leaf(200, 'l');
  write(outputs() / "file", "x");
  FileDescriptor at = open_file(outputs(), O_RDONLY | O_DIRECTORY);
  for (std::size_t length = std::string("outputs").size(); length + 1 + part.size() < 4000;
       length += 1 + part.size()) {
    ASSERT_OK(::mkdirat(at.get(), part.c_str(), 0755));
    at = FileDescriptor(::openat(at.get(), part.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    ASSERT_TRUE(at);
  }
  save();
  ASSERT_TRUE(FileDescriptor(::openat(at.get(), leaf.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644)));
  EXPECT_TRUE(session().driver().cut_changes().rescan);
  ASSERT_OK(::unlinkat(at.get(), leaf.c_str(), 0));
  save();
  ASSERT_OK(::renameat(AT_FDCWD, (outputs() / "file").c_str(), at.get(), leaf.c_str()));
  EXPECT_TRUE(is_told("outputs/file"));
}

/// What moves is recorded before it does. A refusal leaves whoever replays with the wrong idea of both.
TEST_F(ChangesOfNames, ThatAreRefusedAreReadAgain) {
  for (const char* name : {"a", "b"}) {
    std::filesystem::create_directory(outputs() / name);
    write(outputs() / name / "file", name);
  }
  save();
  EXPECT_ERRNO(ENOTEMPTY, ::rename((outputs() / "a").c_str(), (outputs() / "b").c_str()));
  const auto changes = session().driver().cut_changes().changes;
  const auto path = [](const char* text) { return value_of(RelPath::parse(text)); };
  EXPECT_EQ(changes, (std::vector<Change>{{ChangeKind::kMoved, path("outputs/a"), path("outputs/b")},
                                          {ChangeKind::kTree, path("outputs/a"), {}},
                                          {ChangeKind::kTree, path("outputs/b"), {}}}));
}

/// Such a directory is read whole, but by then the file has that name no more.
TEST_F(ChangesOfNames, OfAFileThatHadOneInANewDirectoryAreThoseThatItHas) {
  const auto path = [this](const char* name) { return (outputs() / name).string(); };
  const auto rename = [&](const char* from, const char* to, unsigned flags) {
    ASSERT_OK(::renameat2(AT_FDCWD, path(from).c_str(), AT_FDCWD, path(to).c_str(), flags));
  };
  for (const char* name : {"one", "two"}) write(outputs() / name, "x");
  for (const char* name : {"a", "b"}) ASSERT_OK(::mkdir(path(name).c_str(), 0755));
  ASSERT_OK(::link(path("one").c_str(), path("one's").c_str()));
  ASSERT_OK(::link(path("two").c_str(), path("a/two's").c_str()));
  save();
  ASSERT_OK(::mkdir(path("new").c_str(), 0755));
  rename("one's", "new/one's", 0);
  ASSERT_OK(::unlink(path("new/one's").c_str()));
  rename("a", "b", RENAME_EXCHANGE);
  ASSERT_OK(::unlink(path("b/two's").c_str()));
  for (const char* name : {"one", "two"}) ASSERT_OK(::chmod(path(name).c_str(), 0600));
  EXPECT_TRUE(is_told("outputs/one"));
  EXPECT_TRUE(is_told("outputs/two"));
}

TEST_F(ChangesOfNames, ThatCannotBeLookedAtForWantOfDescriptorsAreAGap) {
  constexpr int kFolders = 200;  // more than are kept open
  const auto file_in = [&](int i) { return outputs() / ("d" + std::to_string(i)) / "file"; };
  for (int i = 0; i < kFolders; ++i) {
    std::filesystem::create_directory(file_in(i).parent_path());
    write(file_in(i), "old");
  }
  save();
  for (int i = 0; i < kFolders; ++i) EXPECT_EQ(stat_of(file_in(i)).st_size, 3);
  const auto path = file_in(0).string();
  int begin[2];
  ASSERT_OK(::pipe2(begin, O_CLOEXEC));
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    char byte;
    if (::read(begin[0], &byte, 1) != 1) ::_exit(2);
    const int file = ::open(path.c_str(), O_WRONLY | O_APPEND);
    ::_exit(file < 0 || ::write(file, "+", 1) != 1);
  }
  rlimit usual{};
  ASSERT_OK(::getrlimit(RLIMIT_NOFILE, &usual));
  const rlimit none{0, usual.rlim_max};
  ASSERT_OK(::setrlimit(RLIMIT_NOFILE, &none));
  const bool begun = ::write(begin[1], "", 1) == 1;
  int status = -1;
  const pid_t ended = ::waitpid(child, &status, 0);
  ASSERT_OK(::setrlimit(RLIMIT_NOFILE, &usual));
  ::close(begin[0]);
  ::close(begin[1]);
  ASSERT_TRUE(begun);
  ASSERT_EQ(ended, child);
  const bool was_written = read(path) == "old+";
  EXPECT_EQ(was_written, WIFEXITED(status) && WEXITSTATUS(status) == 0);
  if (!was_written) GTEST_SKIP() << "nothing is written where the driver has no descriptors";
  EXPECT_TRUE(is_told("outputs/d0/file"));
}

TEST_F(ChangesOfNames, OfWhichTheOneThatWasKnownIsAnothersAreNoGap) {
  for (const char* name : {"live", "backup"}) std::filesystem::create_directory(outputs() / name);
  write(outputs() / "live/file", "1");
  ASSERT_OK(::link((outputs() / "live/file").c_str(), (outputs() / "backup/file").c_str()));
  stat_of(outputs() / "live/file");
  write(outputs() / "live/draft", "2");
  ASSERT_OK(::rename((outputs() / "live/draft").c_str(), (outputs() / "live/file").c_str()));
  save();
  const auto open = open_file(outputs() / "backup/file", O_WRONLY | O_APPEND);
  write_all(open, "more");
  const ChangeSet changes = session().driver().cut_changes();
  EXPECT_FALSE(changes.rescan);
  EXPECT_EQ(changes.in_flight, std::vector<RelPath>{value_of(RelPath::parse("outputs/backup/file"))});
  EXPECT_TRUE(is_told("outputs/backup/file"));
}

TEST_F(ChangesOfNames, RestWhereNobodyElseCanWriteAndAreElseNotBelieved) {
  const auto folder = session().workspace().parent_path().parent_path() / "changes";
  const auto victim = session().scratch() / "victim";
  const auto draft = folder / ("." + session().config().id.text());
  write(outputs() / "file", "x");
  session().unmount();
  EXPECT_EQ(mode_of(folder), 0700u);
  ASSERT_OK(::symlink(victim.c_str(), draft.c_str()));
  session().remount();
  EXPECT_FALSE(session().driver().cut_changes().rescan);
  write(outputs() / "file", "y");
  session().unmount();
  EXPECT_FALSE(there_is(victim));

  ASSERT_OK(::chmod(folder.c_str(), 0777));
  session().remount();
  EXPECT_TRUE(session().driver().cut_changes().rescan);
  EXPECT_EQ(mode_of(folder), 0700u);
}

}  // namespace
}  // namespace okcvm::test
