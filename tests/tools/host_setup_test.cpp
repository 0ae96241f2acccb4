#include "tools/daemon/host/host_setup.h"

#include <gmock/gmock.h>

#include <csignal>
#include <string>

#include "tests/support/expect.h"
#include "tests/support/process.h"
#include "tests/support/scratch.h"

namespace okcvm::test {
namespace {

using daemon::StateLock;
using ::testing::HasSubstr;

class TheStateLock : public ::testing::Test {
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
    const auto lock = StateLock::take(state_.path());
    const auto socket = daemon::listen_at(state_ / "control.sock");
    if (!lock || !socket) return 1;
    self.signal();
    self.wait();
    return memory[0] == 'x' ? 0 : 1;
  }};
};

TEST_F(TheStateLock, IsRefusedWhileAProcessHasIt) {
  start_holder();
  const auto lock = StateLock::take(state_.path());
  ASSERT_FALSE(lock);
  EXPECT_EQ(lock.error().code, Code::kBusy);
  EXPECT_THAT(lock.error().message, HasSubstr("pid " + std::to_string(holder_.pid())));
}

TEST_F(TheStateLock, IsTakenFromAProcessThatWasKilledAMomentAgo) {
  start_holder();
  holder_.kill(SIGKILL);
  EXPECT_OK(StateLock::take(state_.path()) ? 0 : -1);
}

TEST_F(TheStateLock, AndTheControlSocket) {
  start_holder();
  EXPECT_FALSE(daemon::listen_at(state_ / "control.sock"));
  holder_.kill(SIGKILL);
  EXPECT_OK(daemon::listen_at(state_ / "control.sock") ? 0 : -1);
}

}  // namespace
}  // namespace okcvm::test
