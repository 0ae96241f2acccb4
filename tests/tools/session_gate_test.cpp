#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <optional>

#include "tests/support/process.h"
#include "tools/daemon/sessions/session.h"

namespace okcvm::daemon {
namespace {

TEST(SessionGate, LetsOthersPassWhileOneWaitsToBeAloneBehindLongWork) {
  SessionGate gate;
  std::optional<SessionGate::Pass> long_work(*gate.share());
  std::atomic<pid_t> thread{0};
  auto alone = std::async(std::launch::async, [&] {
    thread = ::gettid();
    return gate.alone().has_value();
  });
  test::wait_until_within(thread, SYS_futex);
  EXPECT_TRUE(gate.share());
  EXPECT_EQ(alone.wait_for(std::chrono::seconds(0)), std::future_status::timeout) << "it still waits";
  long_work.reset();
  EXPECT_TRUE(alone.get());
}

}  // namespace
}  // namespace okcvm::daemon
