#include "policy/file_descriptor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

namespace okcvm {
namespace {

class FileDescriptors : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/dev/shm/okcvm-descriptors-XXXXXX";
    top_ = ::mkdtemp(name);
    if (!has_writers(file("probe").get())) GTEST_SKIP() << "there are no leases here (fcntl(2), F_SETLEASE)";
  }
  void TearDown() override { std::filesystem::remove_all(top_); }

  FileDescriptor file(const std::string& name) const {
    FileDescriptor(::open((top_ / name).c_str(), O_CREAT | O_WRONLY, 0600));
    return FileDescriptor(::open((top_ / name).c_str(), O_RDONLY));
  }
  static struct stat status_of(const FileDescriptor& file) {
    struct stat status {};
    EXPECT_EQ(::fstat(file.get(), &status), 0);
    return status;
  }

  std::filesystem::path top_;
};

TEST_F(FileDescriptors, AnExpectedWriterIsNoneOfAnotherFile) {
  const auto other = file("other");
  const struct stat status = status_of(other);
  for (ino_t inode = 1; inode <= 10'000; ++inode)
    expect_nonblocking_writer(status.st_dev, status.st_ino + inode);
  expect_nonblocking_writer(status.st_dev + 1, status.st_ino);
  EXPECT_EQ(has_writers(other.get()), false);
}

TEST_F(FileDescriptors, AWriterIsExpectedUntilItHasClosed) {
  const auto awaited = file("awaited");
  const struct stat status = status_of(awaited);
  expect_nonblocking_writer(status.st_dev, status.st_ino);
  EXPECT_EQ(has_writers(awaited.get()), true);
  expect_no_nonblocking_writer(status.st_dev, status.st_ino);
  EXPECT_EQ(has_writers(awaited.get()), false);
}

}  // namespace
}  // namespace okcvm
