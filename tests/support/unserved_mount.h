#pragma once

#include <fcntl.h>
#include <sys/mount.h>

#include <filesystem>
#include <string>

#include "tests/support/expect.h"
#include "tests/support/file_io.h"

namespace okcvm::test {

/// A file system that a program of this user's has mounted (FUSE, for all to use) and does not serve: whoever
/// asks it something waits until it is gone.
class UnservedMount {
 public:
  explicit UnservedMount(std::filesystem::path at, uid_t user = 0)
      : at_(std::move(at)), device_(open_file("/dev/fuse", O_RDWR)) {
    const auto options = "fd=" + std::to_string(device_.get()) +
                         ",rootmode=40000,allow_other,group_id=0,user_id=" + std::to_string(user);
    EXPECT_OK(::mount("unserved", at_.c_str(), "fuse", 0, options.c_str()));
  }
  ~UnservedMount() { EXPECT_OK(::umount2(at_.c_str(), MNT_DETACH)); }
  UnservedMount(const UnservedMount&) = delete;
  UnservedMount& operator=(const UnservedMount&) = delete;

  /// Whoever waits is told ENOTCONN.
  void end() { device_ = {}; }

 private:
  std::filesystem::path at_;
  FileDescriptor device_;
};

}  // namespace okcvm::test
