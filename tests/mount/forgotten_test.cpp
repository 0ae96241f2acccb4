#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/mounted_session.h"

namespace okcvm::test {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::Field;

constexpr const char* kDropCaches = "/proc/sys/vm/drop_caches";

/// What is recorded of changes in a directory that the kernel forgot (drop_caches, or for want of memory) and
/// looked up again.
class Forgotten : public MountedSession {
 protected:
  void SetUp() override {
    if (::access(kDropCaches, W_OK) != 0) GTEST_SKIP() << kDropCaches << " cannot be written";
    MountedSession::SetUp();
  }
  fusefs::SessionMount& driver() { return session().driver(); }
  void save() { driver().retire_changes(driver().cut_changes()); }
  /// The kernel tells a moment later what it forgot.
  void forget_all_unused() {
    const auto nodes = driver().statistics().nodes;
    for (int i = 0; i < 500 && driver().statistics().nodes >= nodes; ++i) {
      write(kDropCaches, "2");
      ::usleep(10'000);
    }
    ASSERT_LT(driver().statistics().nodes, nodes);
  }
  static auto recorded(ChangeKind kind, const char* path) {
    return Contains(AllOf(Field(&Change::kind, kind), Field(&Change::path, value_of(RelPath::parse(path)))));
  }
};

TEST_F(Forgotten, ADirectoryThatWasMovedIntoANewOne) {
  fs::create_directories(outputs() / "old/moved");
  write(outputs() / "old/moved/file", "before");
  save();
  fs::create_directory(outputs() / "new");
  const FileDescriptor keeps_new_known(::open((outputs() / "new").c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  fs::rename(outputs() / "old/moved", outputs() / "new/moved");
  forget_all_unused();
  write(outputs() / "new/moved/file", "after");
  write(outputs() / "new/moved/more", "x");
  const auto changes = driver().cut_changes();
  EXPECT_FALSE(changes.rescan);
  EXPECT_THAT(changes.changes, recorded(ChangeKind::kContent, "outputs/new/moved/file"));
  EXPECT_THAT(changes.changes, recorded(ChangeKind::kEntry, "outputs/new/moved/more"));
}

TEST_F(Forgotten, AFileThatWasMovedIntoANewDirectory) {
  fs::create_directory(outputs() / "old");
  write(outputs() / "old/moved", "before");
  save();
  fs::create_directory(outputs() / "new");
  const FileDescriptor keeps_new_known(::open((outputs() / "new").c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  fs::rename(outputs() / "old/moved", outputs() / "new/moved");
  forget_all_unused();
  write(outputs() / "new/moved", "after");
  EXPECT_THAT(driver().cut_changes().changes, recorded(ChangeKind::kContent, "outputs/new/moved"));
}

}  // namespace
}  // namespace okcvm::test
