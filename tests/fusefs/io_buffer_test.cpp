#include "fusefs/io_buffer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <fstream>
#include <future>
#include <thread>

#include "tests/support/process.h"

namespace okcvm::test {
namespace {

/// One thread of a session waits for memory in the place where the other is to wait for the next request.
TEST(IoBuffer, IsTakenFromWhoGaveItBackWhereThereIsNoMemory) {
  if (kIsSanitized) GTEST_SKIP() << "memory cannot be limited under a sanitizer";
  ChildProcess process([](ChildProcess&) {
    ::alarm(30);
    fusefs::IoBuffer first, second;
    first.bytes()[0] = std::byte{1};
    std::promise<void> begin;
    std::atomic<pid_t> thread = 0;
    std::thread waiting([&] {
      thread = ::gettid();
      begin.get_future().wait();
      second.bytes()[0] = std::byte{2};
    });
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t most = pages * static_cast<std::size_t>(::getpagesize()) + fusefs::IoBuffer::kSize / 2;
    const rlimit limit{most, most};
    if (::setrlimit(RLIMIT_AS, &limit) != 0) return 1;
    begin.set_value();
    wait_until_within(thread, SYS_clock_nanosleep);
    first.give_back();
    waiting.join();
    return 0;
  });
  EXPECT_EQ(process.join(), 0);
}

}  // namespace
}  // namespace okcvm::test
