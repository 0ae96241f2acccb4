#include "tools/daemon/http/worker_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <cstdlib>

namespace okcvm::daemon {
namespace {

/// There is no memory for the stack of another one from here on.
void forbid_threads() {
  const rlimit none{1, 1};
  if (::setrlimit(RLIMIT_AS, &none) != 0) std::_Exit(2);
}

TEST(WorkerPool, RunsEverythingThoughTheHostHasNoMoreThreads) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run_some = [] {
    std::atomic<int> ran = 0;
    {
      WorkerPool workers(8);
      forbid_threads();
      for (int i = 0; i < 3; ++i) workers.post([&] { ++ran; });
    }
    std::_Exit(ran == 3 ? 0 : 1);
  };
  EXPECT_EXIT(run_some(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace okcvm::daemon
