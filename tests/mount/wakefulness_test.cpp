#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>

#include "tests/support/mounted_session.h"

namespace okcvm::test {
namespace {

using Clock = std::chrono::steady_clock;
using Wakefulness = MountedSession;

/// In how many microseconds every processor must be awake, as all processes together ask for; -1: unknown.
std::int32_t wanted_latency() {
  std::int32_t microseconds = -1;
  const FileDescriptor device(::open("/dev/cpu_dma_latency", O_RDONLY | O_CLOEXEC));
  return device && ::read(device.get(), &microseconds, sizeof microseconds) == sizeof microseconds
             ? microseconds
             : -1;
}

TEST_F(Wakefulness, ProcessorsStayAwakeWhileRequestsComeInAndNoLonger) {
  const auto deadline = Clock::now() + std::chrono::seconds(20);
  auto at_rest = wanted_latency();
  if (at_rest < 0) GTEST_SKIP() << "there is no /dev/cpu_dma_latency";
  while (at_rest <= 2 && Clock::now() < deadline) at_rest = wanted_latency();
  if (at_rest <= 2) GTEST_SKIP() << "another process keeps processors awake";
  const auto directory = outputs() / "d";
  auto latency = at_rest;
  while (latency == at_rest && Clock::now() < deadline) {
    for (int i = 0; i < 100; ++i) {
      ASSERT_OK(::mkdir(directory.c_str(), 0755));
      ASSERT_OK(::rmdir(directory.c_str()));
    }
    latency = wanted_latency();
  }
  EXPECT_LE(latency, 2);
  while (latency != at_rest && Clock::now() < deadline) latency = wanted_latency();
  EXPECT_EQ(latency, at_rest);
}

}  // namespace
}  // namespace okcvm::test
