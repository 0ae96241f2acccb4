#include <fcntl.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <thread>

#include "tests/support/mounted_session.h"

namespace okcvm::test {
namespace {

namespace fs = std::filesystem;

/// A session whose files lie on a disk that is soon full.
class FullDisk : public MountedSession {
 protected:
  static constexpr int kRounds = 100;  // what comes late comes late in some of them

  void SetUp() override {
    MountedSession::SetUp();
    if (IsSkipped()) return;
    start_with([](fusefs::MountConfig& config) {
      const fs::path disk = config.workspace.parent_path();
      EXPECT_OK(::mount("none", disk.c_str(), "tmpfs", 0, "size=8m,nr_inodes=256"));
      ::chmod(disk.c_str(), 0755);
    });
  }

  /// Writes until nothing more fits. Answers how much did.
  static std::size_t fill(const FileDescriptor& file) {
    const std::string bytes(256 * 1024, 'x');
    std::size_t size = 0;
    for (;;) {
      const ssize_t written = ::write(file.get(), bytes.data(), bytes.size());
      if (written < 0) {
        EXPECT_EQ(errno_name(errno), errno_name(ENOSPC));
        return size;
      }
      size += static_cast<std::size_t>(written);
    }
  }
  /// The kernel tells of a close after close(2) has returned.
  void wait_for_closes(std::uint64_t closes) {
    while (count_of("RELEASE") < closes) std::this_thread::yield();
  }
  static FileDescriptor make(const fs::path& path) { return open_file(path, O_CREAT | O_WRONLY); }
};

TEST_F(FullDisk, ARemovedFileMakesRoomAtOnce) {
  const auto other = make(outputs() / "other");
  write_all(other, "x");
  for (int i = 0; i < kRounds; ++i) {
    fill(make(outputs() / "large"));
    wait_for_closes(static_cast<std::uint64_t>(i) + 1);
    EXPECT_OK(::unlink((outputs() / "large").c_str()));
    write_all(other, std::string(1 << 20, 'y'));
    EXPECT_OK(::ftruncate(other.get(), 1));
    EXPECT_OK(::lseek(other.get(), 1, SEEK_SET));
  }
}

TEST_F(FullDisk, AReplacedFileMakesRoomAtOnce) {
  const auto other = make(outputs() / "other");
  for (int i = 0; i < kRounds; ++i) {
    write(outputs() / "small", "x");
    fill(make(outputs() / "large"));
    wait_for_closes(2 * (static_cast<std::uint64_t>(i) + 1));
    EXPECT_OK(::rename((outputs() / "small").c_str(), (outputs() / "large").c_str()));
    write_all(other, std::string(1 << 20, 'y'));
    EXPECT_OK(::ftruncate(other.get(), 0));
    EXPECT_OK(::lseek(other.get(), 0, SEEK_SET));
  }
}

TEST_F(FullDisk, ARemovedFileThatWasOpenMakesRoomOnceTheKernelTellsOfTheClose) {
  std::size_t whole = 0;
  for (int i = 0; i < kRounds; ++i) {
    {
      const auto file = make(outputs() / "large");
      EXPECT_OK(::unlink((outputs() / "large").c_str()));
      const std::size_t size = fill(file);
      if (i == 0) whole = size;
      EXPECT_EQ(size, whole);
      EXPECT_EQ(stat_of(file).st_nlink, 0u);
      EXPECT_EQ(static_cast<std::size_t>(stat_of(file).st_size), size);
    }
    wait_for_closes(static_cast<std::uint64_t>(i) + 1);
  }
}

TEST_F(FullDisk, ARemovedFileMakesRoomForAnInode) {
  const auto path = [this](int i) { return outputs() / std::to_string(i); };
  int files = 0;
  while (FileDescriptor(::open(path(files).c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644))) ++files;
  EXPECT_EQ(errno_name(errno), errno_name(ENOSPC));
  ASSERT_GT(files, 100);
  for (int i = 0; i < kRounds; ++i) {
    EXPECT_OK(::unlink(path(i).c_str()));
    EXPECT_TRUE(make(path(i)));
  }
}

}  // namespace
}  // namespace okcvm::test
