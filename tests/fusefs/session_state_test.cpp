#include "fusefs/session_state.h"

#include <gtest/gtest.h>
#include <linux/fuse.h>

#include <cstring>
#include <optional>
#include <stdexcept>
#include <vector>

#include "tests/support/scratch.h"

namespace okcvm::fusefs {
namespace {

std::vector<std::byte> handshake() {
  std::vector<std::byte> bytes(sizeof(fuse_in_header) + sizeof(fuse_init_in));
  fuse_in_header header{};
  header.opcode = FUSE_INIT;
  header.len = static_cast<std::uint32_t>(bytes.size());
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

class SessionStateTest : public testing::Test {
 protected:
  std::unique_ptr<SessionState> open(Start start) {
    auto state = SessionState::open(scratch_ / "state", scratch_ / "going", start);
    if (!state) throw std::runtime_error(state.error().message);
    return std::move(*state);
  }
  /// As a daemon leaves it that dies while it carries these requests out.
  void die_with(std::initializer_list<std::uint64_t> requests) {
    auto state = open(Start::kAnew);
    state->record_init(handshake());
    for (const auto request : requests) state->start(request, kFact).leave();
  }

  static constexpr auto kFact = Fact::inode(7);
  test::ScratchDirectory scratch_{"session-state"};
};

TEST_F(SessionStateTest, AChangeOfADeadDaemonIsOldUntilItIsAnswered) {
  die_with({11, 12});
  auto next = open(Start::kTakeOver);
  EXPECT_TRUE(next->has_unclaimed());
  std::optional<SessionState::Change> first(next->start(11)), second(next->start(12));
  EXPECT_FALSE(next->has_unclaimed());
  EXPECT_FALSE(next->old_facts().empty()) << "they have come again, but the kernel has no answer yet";
  first.reset();
  EXPECT_FALSE(next->old_facts().empty());
  second.reset();
  EXPECT_TRUE(next->old_facts().empty());
  {
    const auto own = next->start(13, kFact);
    EXPECT_TRUE(next->old_facts().empty());
  }
}

TEST_F(SessionStateTest, AChangeThatNeverComesAgainIsOldUntilTheKernelWasToldOfEverything) {
  die_with({11});
  auto next = open(Start::kTakeOver);
  EXPECT_FALSE(next->old_facts().empty());
  next->forget_unclaimed();
  EXPECT_TRUE(next->old_facts().empty());
}

}  // namespace
}  // namespace okcvm::fusefs
