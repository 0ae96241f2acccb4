// What a daemon that finds damage, or less than it needs, does about a mount of a former one.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mount.h>
#include <unistd.h>

#include "tests/mount/take_over.h"
#include "tests/support/mounted_session.h"

namespace okcvm::test {
namespace {

namespace fs = std::filesystem;

TEST_F(TakeOver, ADamagedRecordOfChangesIsToldAsLost) {
  write(outputs() / "file", "x");
  daemon().kill();
  {
    const auto record = open_file(place().scratch() / "run/sessions/12ab34cd.changes", O_RDWR);
    const std::string noise(4096, '\xff');
    EXPECT_OK(::pwrite(record.get(), noise.data(), noise.size(), 256));
  }
  ASSERT_TRUE(daemon().take_over()) << daemon().why();
  EXPECT_EQ(daemon().ask("changed outputs/file"), "rescan");
  daemon().ask("forget changes");
  write(outputs() / "later", "x");
  EXPECT_EQ(daemon().ask("changed outputs/later"), "yes");
}

TEST_F(TakeOver, DamagedNodesAreRefused) {
  fs::create_directories(outputs() / "a/b/c");
  for (int i = 0; i < 50; ++i) write(outputs() / "a" / std::to_string(i), "x");
  daemon().kill();
  {
    const auto nodes = open_file(place().scratch() / "run/sessions/12ab34cd.nodes", O_RDWR);
    const std::string noise = pattern(4096);
    EXPECT_OK(::pwrite(nodes.get(), noise.data(), noise.size(), 4096));
  }
  EXPECT_FALSE(daemon().take_over());
}

TEST_F(TakeOver, ADamagedHandshakeIsNotPlayedToLibfuse) {
  write(outputs() / "file", "kept");
  daemon().kill();
  {
    const auto state = open_file(place().scratch() / "run/sessions/12ab34cd.state", O_RDWR);
    const std::string noise = pattern(64);
    EXPECT_OK(::pwrite(state.get(), noise.data(), noise.size(), 24));  // behind what says how long it is
  }
  EXPECT_FALSE(daemon().take_over());
  EXPECT_THAT(daemon().why(), ::testing::HasSubstr("damaged"));  // found at once, not for want of an answer
}

/// As before Linux 6.9.
TEST_F(TakeOver, IsRefusedWhereTheKernelCannotSendAgain) {
  write(outputs() / "file", "kept");
  daemon().kill();
  {
    const auto state = open_file(place().scratch() / "run/sessions/12ab34cd.state", O_RDWR);
    constexpr std::uint32_t kCannot = 0;
    EXPECT_OK(::pwrite(state.get(), &kCannot, sizeof kCannot, 20));  // StateHeader::resend
  }
  EXPECT_FALSE(daemon().take_over());
  EXPECT_THAT(daemon().why(), ::testing::HasSubstr("send again"));
}

TEST_F(TakeOver, UnusableStateIsRefused) {
  write(outputs() / "file", "kept");
  daemon().kill();
  for (const auto& entry : fs::recursive_directory_iterator(place().scratch() / "run/sessions"))
    if (entry.is_regular_file()) {
      const auto state = open_file(entry.path(), O_RDWR);
      const std::string noise = pattern(4096);
      EXPECT_OK(::pwrite(state.get(), noise.data(), noise.size(), 0));
    }
  EXPECT_FALSE(daemon().take_over());
  EXPECT_EQ(read(place().workspace() / "outputs/file"), "kept");
}

TEST_F(MountedSession, IsNotTakenOverWithTheDeviceOfAnother) {
  write(outputs() / "file", "kept");
  Session other("other");
  FileDescriptor device(::fcntl(other.driver().device(), F_DUPFD_CLOEXEC, 0));
  session().driver().abandon();
  const auto taken = fusefs::SessionMount::take_over(session().config(), std::move(device));
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code, Code::kCorrupt);
  session().hand_over();
  EXPECT_EQ(read(outputs() / "file"), "kept");
}

TEST_F(MountedSession, IsNotTakenOverWhereItIsNotMountedAnyMore) {
  for (const bool is_in_use : {true, false}) {
    if (!is_in_use) start_with([](fusefs::MountConfig&) {});
    const auto file = is_in_use ? open_file(outputs(), O_RDONLY | O_DIRECTORY) : FileDescriptor();
    FileDescriptor device(::fcntl(session().driver().device(), F_DUPFD_CLOEXEC, 0));
    session().driver().abandon();
    EXPECT_OK(::umount2(mount().c_str(), MNT_DETACH));
    const auto config = session().config();
    // As a daemon leaves it that dies when it has removed some of what was noted of the mount.
    if (!is_in_use) std::filesystem::remove(config.runtime_dir / (config.id.text() + ".state"));
    const auto taken = fusefs::SessionMount::take_over(session().config(), std::move(device));
    ASSERT_FALSE(taken);
    EXPECT_EQ(taken.error().code, is_in_use ? Code::kCorrupt : Code::kNotFound) << taken.error().message;
  }
}

/// As on an overlayfs: what the dead daemon held open was all that led to its inodes.
class TakeOverWithoutHandles : public MountedSession {
 protected:
  static void without_handles(fusefs::MountConfig& config) { config.file_handles = false; }
};

TEST_F(TakeOverWithoutHandles, IsRefusedAndAnotherMountShowsTheFiles) {
  start_with(without_handles);
  fs::create_directory(outputs() / "d");
  write(outputs() / "d/file", "kept");
  FileDescriptor device(::fcntl(session().driver().device(), F_DUPFD_CLOEXEC, 0));
  session().driver().abandon();
  auto config = session().config();
  without_handles(config);
  const auto taken = fusefs::SessionMount::take_over(std::move(config), std::move(device));
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code, Code::kCorrupt);
  EXPECT_OK(::umount2(mount().c_str(), MNT_DETACH));
  session().remount(without_handles);
  EXPECT_EQ(read(outputs() / "d/file"), "kept");
}

}  // namespace
}  // namespace okcvm::test
