#pragma once

#include <linux/fuse.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/expect.h"
#include "tests/support/file_io.h"

namespace okcvm::test {

/// A directory of which one name can be read, and the rest cannot (EIO), as where a disk is damaged.
class BrokenListing final {
 public:
  BrokenListing(std::filesystem::path at, std::string name)
      : at_(std::move(at)), name_(std::move(name)), device_(open_file("/dev/fuse", O_RDWR)) {
    const auto options = "fd=" + std::to_string(device_.get()) + ",rootmode=40000,user_id=0,group_id=0";
    EXPECT_OK(::mount("broken", at_.c_str(), "fuse", 0, options.c_str()));
    server_ = std::thread([this] { serve(); });
  }
  ~BrokenListing() {
    EXPECT_OK(::umount2(at_.c_str(), MNT_DETACH));  // which ends the reads of the server
    server_.join();
  }
  BrokenListing(const BrokenListing&) = delete;
  BrokenListing& operator=(const BrokenListing&) = delete;

 private:
  void serve() {
    alignas(fuse_in_header) char request[2 * FUSE_MIN_READ_BUFFER];
    for (;;) {
      const auto size = ::read(device_.get(), request, sizeof request);
      if (size < 0 && (errno == EINTR || errno == ENOENT)) continue;
      if (size < 0) return;
      fuse_in_header header;
      std::memcpy(&header, request, sizeof header);
      answer(header, request + sizeof header);
    }
  }

  void answer(const fuse_in_header& header, const char* body) {
    switch (header.opcode) {
      case FUSE_FORGET:
      case FUSE_BATCH_FORGET:
      case FUSE_INTERRUPT:
        return;
      case FUSE_INIT: {
        fuse_init_out out{};
        out.major = FUSE_KERNEL_VERSION;
        out.minor = FUSE_KERNEL_MINOR_VERSION;
        out.max_write = 4096;
        return reply(header, 0, &out, sizeof out);
      }
      case FUSE_GETATTR: {
        fuse_attr_out out{};
        out.attr.ino = FUSE_ROOT_ID;
        out.attr.mode = S_IFDIR | 0755;
        out.attr.nlink = 2;
        return reply(header, 0, &out, sizeof out);
      }
      case FUSE_OPENDIR: {
        const fuse_open_out out{};
        return reply(header, 0, &out, sizeof out);
      }
      case FUSE_READDIR: {
        fuse_read_in asked;
        std::memcpy(&asked, body, sizeof asked);
        return asked.offset == 0 ? reply_name(header) : reply(header, EIO);
      }
      default:
        return reply(header, header.opcode == FUSE_LOOKUP ? ENOENT : ENOSYS);
    }
  }

  void reply_name(const fuse_in_header& header) {
    fuse_dirent entry{};
    entry.ino = 2;
    entry.off = 1;
    entry.namelen = static_cast<std::uint32_t>(name_.size());
    entry.type = S_IFDIR >> 12;
    std::vector<char> bytes(FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + name_.size()));
    std::memcpy(bytes.data(), &entry, FUSE_NAME_OFFSET);
    std::memcpy(bytes.data() + FUSE_NAME_OFFSET, name_.data(), name_.size());
    reply(header, 0, bytes.data(), bytes.size());
  }

  void reply(const fuse_in_header& to, int error, const void* body = nullptr, std::size_t size = 0) {
    const fuse_out_header header{static_cast<std::uint32_t>(sizeof header + size), -error, to.unique};
    std::vector<char> bytes(header.len);
    std::memcpy(bytes.data(), &header, sizeof header);
    if (size > 0) std::memcpy(bytes.data() + sizeof header, body, size);
    [[maybe_unused]] const auto written = ::write(device_.get(), bytes.data(), bytes.size());
  }

  std::filesystem::path at_;
  std::string name_;
  FileDescriptor device_;
  std::thread server_;
};

}  // namespace okcvm::test
