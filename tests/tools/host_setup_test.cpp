#include "tools/daemon/host/host_setup.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <csignal>
#include <string>

#include "tests/support/expect.h"
#include "tests/support/file_io.h"
#include "tests/support/process.h"
#include "tests/support/scratch.h"

namespace okcvm::test {
namespace {

using daemon::DirectoryLock;
using ::testing::HasSubstr;

class TheLock : public ::testing::Test {
 protected:
  static constexpr std::size_t kLargeMemory = std::size_t{1} << 27;

  /// A process that holds the lock and listens, and has much memory, so that it takes a while to end.
  void start_holder() {
    const bool is_held = holder_.wait();
    ASSERT_TRUE(is_held);
  }

  ScratchDirectory state_{"state-lock"};
  ChildProcess holder_{[this](ChildProcess& self) {
    const std::string memory(kLargeMemory, 'x');
    const auto lock = DirectoryLock::take(state_.path(), "--state-dir");
    const auto socket = daemon::listen_at(state_ / "control.sock");
    if (!lock || !socket) return 1;
    self.signal();
    self.wait();
    return memory[0] == 'x' ? 0 : 1;
  }};
};

TEST_F(TheLock, IsRefusedWhileAProcessHasIt) {
  start_holder();
  const auto lock = DirectoryLock::take(state_.path(), "--state-dir");
  ASSERT_FALSE(lock);
  EXPECT_EQ(lock.error().code, Code::kBusy);
  EXPECT_THAT(lock.error().message, HasSubstr("pid " + std::to_string(holder_.pid())));
  EXPECT_THAT(lock.error().message, HasSubstr("use another --state-dir"));
}

TEST_F(TheLock, IsTakenFromAProcessThatWasKilledAMomentAgo) {
  start_holder();
  holder_.kill(SIGKILL);
  EXPECT_OK(DirectoryLock::take(state_.path(), "--state-dir") ? 0 : -1);
}

TEST_F(TheLock, AndTheControlSocket) {
  start_holder();
  EXPECT_FALSE(daemon::listen_at(state_ / "control.sock"));
  holder_.kill(SIGKILL);
  EXPECT_OK(daemon::listen_at(state_ / "control.sock") ? 0 : -1);
}

/// What is in some of them is removed.
TEST(TheStateDirectory, IsNotUsedThroughLinks) {
  const ScratchDirectory top("state-links"), elsewhere("elsewhere");
  daemon::Options options;
  options.state_dir = top / "state";
  options.run_dir = top / "run";
  ASSERT_TRUE(daemon::make_directories(options));
  for (const auto& folder :
       {options.state_dir / "discarded", options.state_dir / "workspaces", options.state_dir / "snapshots",
        options.state_dir / "changes", options.run_dir / "sessions"}) {
    std::filesystem::remove(folder);
    std::filesystem::create_directory_symlink(elsewhere.path(), folder);
    const auto made = daemon::make_directories(options);
    ASSERT_FALSE(made) << folder;
    EXPECT_THAT(made.error().message, HasSubstr(folder.string() + " is a symbolic link"));
    std::filesystem::remove(folder);
  }
  EXPECT_TRUE(daemon::make_directories(options));
}

TEST(TheStateDirectory, IsClosedToOthersWhoeverMadeIt) {
  const ScratchDirectory top("state-open");
  daemon::Options options;
  options.state_dir = top / "state";
  options.run_dir = top / "run";
  const std::vector folders{options.state_dir / "workspaces", options.state_dir / "snapshots",
                            options.state_dir / "changes", options.run_dir / "sessions"};
  for (const auto& folder : folders) {
    std::filesystem::create_directories(folder);
    std::filesystem::permissions(folder, std::filesystem::perms(0755));
  }
  ASSERT_TRUE(daemon::make_directories(options));
  for (const auto& folder : folders) EXPECT_EQ(mode_of(folder), 0700u) << folder;
}

TEST(TheStateDirectory, IsTakenFromEarlyBuildsWithoutBelievingWhatOthersCouldWrite) {
  const ScratchDirectory top("state-of-early-builds");
  daemon::Options options;
  options.state_dir = top / "state";
  options.run_dir = top / "run";
  ASSERT_TRUE(daemon::make_directories(options));
  const auto changes = options.state_dir / "changes";
  write(changes / "mine", "x");
  ASSERT_TRUE(daemon::make_directories(options));
  EXPECT_EQ(read(changes / "mine"), "x");

  ASSERT_OK(::chmod(changes.c_str(), 0777));
  const auto made = daemon::make_directories(options);
  ASSERT_TRUE(made) << made.error().message;
  struct stat status {};
  ASSERT_OK(::stat(changes.c_str(), &status));
  EXPECT_EQ(status.st_mode & 07777, 0700u);
  EXPECT_TRUE(std::filesystem::is_empty(changes));

  ASSERT_OK(::chmod((options.state_dir / "workspaces").c_str(), 0777));
  EXPECT_FALSE(daemon::make_directories(options));
}

TEST(TheStateDirectory, ThatCannotBeMadeIsRefusedForItsReason) {
  const ScratchDirectory top("state-refused");
  daemon::Options options;
  options.run_dir = top / "run";
  options.state_dir = "/sys/okcvm";  // where nobody makes directories
  const auto reason = ANSWER_OF(::mkdir(options.state_dir.c_str(), 0700));
  ASSERT_NE(reason, "ok");
  const auto made = daemon::make_directories(options);
  ASSERT_FALSE(made);
  EXPECT_EQ(errno_name(made.error().errno_value), reason) << made.error().message;
}

}  // namespace
}  // namespace okcvm::test
