#include "tools/daemon/sessions/workdirs.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <utility>
#include <vector>

#include "tests/support/expect.h"
#include "tests/support/file_io.h"
#include "tests/support/process.h"
#include "tests/support/unserved_mount.h"
#include "tools/daemon/sessions/git_remote.h"

namespace okcvm::test {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kConfig = "[remote \"origin\"]\n\turl = git@example.org:team/r.git\n";
constexpr const char* kUrl = "git@example.org:team/r.git";

/// Directories of Alice's, in a root that is allowed.
class WorkdirsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "taking another user's rights needs root";
    // Not below /dev/shm: nothing in /dev may be a workdir.
    char name[] = "/tmp/okcvm-workdirs-XXXXXX";
    root_ = ::mkdtemp(name);
    ASSERT_OK(::chmod(root_.c_str(), 0755));
    make("projects");
    make("projects/a");
    make("projects/a/w");
  }
  void TearDown() override {
    if (!root_.empty()) fs::remove_all(root_);
  }
  fs::path place(const std::string& name) const { return root_ / name; }
  /// A directory of Alice's.
  fs::path make(const std::string& name) const {
    fs::create_directory(place(name));
    return give(name);
  }
  fs::path put(const std::string& name, std::string_view text) const {
    write(place(name), std::string(text));
    return give(name);
  }
  fs::path give(const std::string& name) const {
    EXPECT_OK(::lchown(place(name).c_str(), kAlice.uid, kAlice.gid));
    return place(name);
  }
  daemon::Workdirs workdirs() const {
    return daemon::Workdirs({place("projects")}, {place("state")}, place("mnt"));
  }
  auto open(const fs::path& path) const { return workdirs().open(path, kAlice.uid, kAlice.gid); }
  auto reopen(const fs::path& path) const { return workdirs().reopen(path, kAlice.uid, kAlice.gid); }
  /// The remote of what is at projects/a/w, as Alice may read it.
  Result<std::string> remote() const {
    const FileDescriptor workdir(::open(place("projects/a/w").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    return daemon::remote_url(workdir, {kAlice.uid, kAlice.gid, {}});
  }

  fs::path root_;
};

TEST_F(WorkdirsTest, ArePutBackWhereTheyWere) {
  const auto opened = open(place("projects/a/w"));
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(opened->path, place("projects/a/w").string());
  EXPECT_TRUE(reopen(opened->path));
}

/// Whoever could rename it would take all sessions away.
TEST_F(WorkdirsTest, DoNotHoldTheDirectoryThatSessionsAreMountedIn) {
  make("projects/mnt");
  const daemon::Workdirs workdirs({place("projects")}, {}, place("projects/mnt"));
  for (const char* refused : {"projects", "projects/mnt"}) {
    const auto opened = workdirs.open(place(refused), kAlice.uid, kAlice.gid);
    ASSERT_FALSE(opened) << refused;
    EXPECT_EQ(opened.error().code, Code::kForbidden) << refused;
  }
  for (const char* allowed : {"projects/a", "projects/mnt/w"}) {
    make(allowed);
    EXPECT_TRUE(workdirs.open(place(allowed), kAlice.uid, kAlice.gid)) << allowed;
  }
}

TEST_F(WorkdirsTest, AreFollowedThroughLinksOnlyWhenTheyAreAskedFor) {
  const auto real = place("projects/a/w");
  for (const char* moved : {"projects/a/w", "projects/a"}) {
    const auto aside = place(std::string(moved) + "-aside");
    fs::rename(place(moved), aside);
    fs::create_directory_symlink(aside, place(moved));
    EXPECT_TRUE(open(real)) << moved;
    const auto again = reopen(real);
    ASSERT_FALSE(again) << moved;
    EXPECT_EQ(again.error().code, Code::kForbidden);
    EXPECT_NE(again.error().message.find("link"), std::string::npos);
    fs::remove(place(moved));
    fs::rename(aside, place(moved));
  }
  EXPECT_TRUE(reopen(real));
}

TEST_F(WorkdirsTest, AreNotReachedThroughDescriptorsOfTheDaemon) {
  make("projects/hidden");
  make("projects/hidden/w");
  const FileDescriptor held(::open(place("projects/hidden/w").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_OK(::chown(place("projects/hidden").c_str(), 0, 0));
  ASSERT_OK(::chmod(place("projects/hidden").c_str(), 0700));
  const auto opened = open("/proc/self/fd/" + std::to_string(held.get()));
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().errno_value, ELOOP);
}

TEST_F(WorkdirsTest, InAFileSystemThatAUserServesAreNotWaitedFor) {
  const auto wanted = place("projects/a/w");
  fs::create_directory_symlink(wanted, place("projects/link"));
  for (const char* covered : {"projects/a/w", "projects/a", "projects"}) {
    UnservedMount mount(place(covered), kAlice.uid);
    auto codes = std::async(std::launch::async, [&] {
      const auto code_of = [](const auto& opened) { return opened ? Code::kInternal : opened.error().code; };
      return std::vector{code_of(open(wanted)), code_of(open(place("projects/link"))),
                         code_of(reopen(wanted))};
    });
    EXPECT_EQ(codes.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    mount.end();
    EXPECT_EQ(codes.get(), std::vector(3, Code::kForbidden)) << covered;
  }
  EXPECT_TRUE(reopen(wanted));
}

TEST_F(WorkdirsTest, TellTheRemoteOfARepository) {
  EXPECT_EQ(remote().error().code, Code::kNotFound);
  make("projects/a/w/.git");
  put("projects/a/w/.git/config", kConfig);
  EXPECT_EQ(remote(), kUrl);
  put("projects/a/w/.git/config", "[core]\n");
  EXPECT_EQ(remote().error().code, Code::kNotFound);
}

TEST_F(WorkdirsTest, TellTheRemoteOfWorkingTreesSubmodulesAndBareRepositories) {
  put("projects/a/w/config", kConfig);
  EXPECT_EQ(remote(), kUrl) << "bare";
  fs::remove(place("projects/a/w/config"));

  make("projects/a/r");
  put("projects/a/r/config", kConfig);
  put("projects/a/w/.git", "gitdir: ../r\n");
  EXPECT_EQ(remote(), kUrl) << "a submodule";

  make("projects/a/r/worktrees");
  make("projects/a/r/worktrees/w");
  put("projects/a/r/worktrees/w/commondir", "../..\n");
  put("projects/a/w/.git", "gitdir: " + place("projects/a/r/worktrees/w").string() + "\n");
  EXPECT_EQ(remote(), kUrl) << "a linked working tree";
}

TEST_F(WorkdirsTest, WithARepositoryInAFileSystemThatAUserServesAreNotWaitedFor) {
  make("served");
  const auto git = place("projects/a/w/.git"), served = place("served");
  const std::vector<std::pair<const char*, std::function<void()>>> layouts{
      {"projects/a/w/.git", [&] { make("projects/a/w/.git"); }},
      {"served", [&] { put("projects/a/w/.git", "gitdir: " + (served / "r").string() + "\n"); }},
      {"served", [&] { put("projects/a/w/.git", "gitdir: ../../../served/r\n"); }},
      {"served", [&] { fs::create_directory_symlink(served / "r", git); }},
      {"served",
       [&] {
         make("projects/a/w/.git");
         put("projects/a/w/.git/commondir", (served / "r").string() + "\n");
       }},
      {"served", [&] {
         make("projects/a/w/.git");
         fs::create_symlink(served / "config", git / "config");
       }}};
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    fs::remove_all(git);
    layouts[i].second();
    UnservedMount mount(place(layouts[i].first), kAlice.uid);
    auto told = std::async(std::launch::async, [&] { return remote(); });
    EXPECT_EQ(told.wait_for(std::chrono::seconds(20)), std::future_status::ready) << i;
    mount.end();
    const auto refused = told.get();
    EXPECT_TRUE(!refused && refused.error().code == Code::kForbidden) << i;
  }
}

TEST_F(WorkdirsTest, TellNothingThatTheOwnerMayNotRead) {
  fs::create_directory(place("private"));
  write(place("private/config"), std::string(kConfig));
  put("projects/a/w/.git", "gitdir: " + place("private").string() + "\n");
  EXPECT_EQ(remote(), kUrl) << "as long as everybody may read it";
  ASSERT_OK(::chmod(place("private").c_str(), 0700));
  EXPECT_EQ(remote().error().code, Code::kForbidden);
  ASSERT_OK(::chmod(place("private").c_str(), 0755));
  ASSERT_OK(::chmod(place("private/config").c_str(), 0600));
  EXPECT_EQ(remote().error().code, Code::kForbidden);
}

TEST_F(WorkdirsTest, DoNotFollowAnInclude) {
  put("projects/a/included", kConfig);
  make("projects/a/w/.git");
  put("projects/a/w/.git/config", "[include]\n\tpath = " + place("projects/a/included").string() + "\n");
  EXPECT_EQ(remote().error().code, Code::kNotFound);
}

TEST_F(WorkdirsTest, ReadNothingThatIsNoSmallFile) {
  const auto config = make("projects/a/w/.git") / "config";
  const auto is_refused = [&] {
    const auto told = remote();
    fs::remove(config);
    return !told.has_value();
  };
  ASSERT_OK(::mkfifo(config.c_str(), 0666));
  EXPECT_TRUE(is_refused()) << "a FIFO would wait for a writer";
  fs::create_symlink("/dev/zero", config);
  EXPECT_TRUE(is_refused()) << "a device has no end";
  fs::create_directory(config);
  EXPECT_TRUE(is_refused());
  fs::create_symlink("config", config);
  EXPECT_TRUE(is_refused());
  put("projects/a/w/.git/config", kConfig);
  ASSERT_OK(::truncate(config.c_str(), off_t{1} << 40));
  EXPECT_TRUE(is_refused()) << "that would not fit into memory";
  fs::remove(config.parent_path());
  ASSERT_OK(::mkfifo(config.parent_path().c_str(), 0666));
  EXPECT_FALSE(remote());
}

}  // namespace
}  // namespace okcvm::test
