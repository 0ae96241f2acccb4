#include "tools/daemon/host/clock.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/support/expect.h"
#include "tests/support/file_io.h"
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

TEST(ClockWatchTest, BelievesNothingThatOthersCouldHaveWritten) {
  const test::ScratchDirectory scratch("clock");
  const auto file = scratch.path() / "clock";
  const auto old_mask = ::umask(0);
  const auto was_set = [&] { return ClockWatch(file, [] { return std::int64_t{1'000'000}; }).was_set(); };
  EXPECT_FALSE(was_set());
  EXPECT_EQ(test::mode_of(file), 0600u);
  for (const char* text : {"5", "-9223372036854775807"}) {
    test::write(file, text);
    EXPECT_EQ(::chmod(file.c_str(), 0666), 0);
    EXPECT_FALSE(was_set()) << text;
    EXPECT_EQ(test::mode_of(file), 0600u);
  }
  test::write(file, "5");
  EXPECT_TRUE(was_set());
  ::umask(old_mask);
}

}  // namespace
}  // namespace okcvm::daemon
