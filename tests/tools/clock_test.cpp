#include "tools/daemon/host/clock.h"

#include <gtest/gtest.h>

namespace okcvm::daemon {
namespace {

TEST(ClockWatchTest, TellsOnceThatTheClockWasSet) {
  std::int64_t lead = 1'000'000;
  ClockWatch clock([&lead] { return lead; });
  EXPECT_FALSE(clock.was_set());
  lead += 60;  // corrected
  EXPECT_FALSE(clock.was_set());
  for (const std::int64_t by : {10 * 86'400, -86'400}) {
    lead += by;
    EXPECT_TRUE(clock.was_set());
    EXPECT_FALSE(clock.was_set());
  }
  EXPECT_FALSE(ClockWatch().was_set());
}

}  // namespace
}  // namespace okcvm::daemon
