#include "tools/daemon/sessions/workdirs.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/support/expect.h"
#include "tests/support/process.h"

namespace okcvm::test {
namespace {

namespace fs = std::filesystem;

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
  fs::path give(const std::string& name) const {
    EXPECT_OK(::lchown(place(name).c_str(), kAlice.uid, kAlice.gid));
    return place(name);
  }
  daemon::Workdirs workdirs() const {
    return daemon::Workdirs({place("projects")}, {place("state")}, place("mnt"));
  }
  auto open(const fs::path& path) const { return workdirs().open(path, kAlice.uid, kAlice.gid); }
  auto reopen(const fs::path& path) const { return workdirs().reopen(path, kAlice.uid, kAlice.gid); }

  fs::path root_;
};

TEST_F(WorkdirsTest, ArePutBackWhereTheyWere) {
  const auto opened = open(place("projects/a/w"));
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(opened->path, place("projects/a/w").string());
  EXPECT_TRUE(reopen(opened->path));
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

}  // namespace
}  // namespace okcvm::test
