#include "tools/daemon/http/one_at_a_time.h"

#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <semaphore>

namespace okcvm::daemon {
namespace {

TEST(OneAtATime, IsDoneOnceMoreHoweverOftenItIsAskedForMeanwhile) {
  WorkerPool workers(8);
  std::atomic<int> times = 0;
  std::counting_semaphore<> begun(0), may_end(0);
  OneAtATime work(workers, [&] {
    const bool is_first = ++times == 1;
    begun.release();
    may_end.acquire();
    if (is_first) throw std::bad_alloc();
  });
  work.post();
  begun.acquire();
  for (int i = 0; i < 3; ++i) work.post();
  may_end.release();
  begun.acquire();
  EXPECT_EQ(times, 2);
  may_end.release();
  work.post();
  begun.acquire();
  may_end.release();
  workers.finish();
  EXPECT_EQ(times, 3);
}

}  // namespace
}  // namespace okcvm::daemon
