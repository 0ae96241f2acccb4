#include "tools/daemon/http/worker_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <new>

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

TEST(WorkerPool, GoesOnAfterWorkThatThrows) {
  WorkerPool workers(1);
  std::promise<void> ran;
  workers.post([] { throw std::bad_alloc(); });
  workers.post([&] { ran.set_value(); });
  ran.get_future().wait();
}

TEST(WorkerPool, WaitsForWorkThatHangsOnlyForSoLong) {
  WorkerPool workers(1);
  std::promise<void> answer;
  workers.post([answered = answer.get_future().share()] { answered.wait(); });
  EXPECT_FALSE(workers.finish_within(std::chrono::milliseconds(1)));
  answer.set_value();
  EXPECT_TRUE(workers.finish_within(std::chrono::hours(1)));
}

}  // namespace
}  // namespace okcvm::daemon
