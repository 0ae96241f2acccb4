#include "tools/daemon/host/clock.h"

#include <gtest/gtest.h>

#include "tests/support/scratch.h"

namespace okcvm::daemon {
namespace {

TEST(ClockWatchTest, TellsOnceThatTheClockWasSet) {
  const test::ScratchDirectory scratch("clock");
  const auto file = scratch.path() / "clock";
  std::int64_t lead = 1'000'000;
  ClockWatch first(file, [&lead] { return lead; });
  EXPECT_FALSE(first.was_set());
  lead += 60;  // corrected
  EXPECT_FALSE(first.was_set());
  for (const std::int64_t by : {10 * 86'400, -86'400}) {
    lead += by;
    EXPECT_TRUE(first.was_set());
    EXPECT_FALSE(first.was_set());
  }
  lead += 86'400;
  ClockWatch next(file, [&lead] { return lead; });
  EXPECT_TRUE(next.was_set()) << "while the former daemon ran";
  EXPECT_FALSE(ClockWatch(file, [&lead] { return lead; }).was_set());
}

}  // namespace
}  // namespace okcvm::daemon
