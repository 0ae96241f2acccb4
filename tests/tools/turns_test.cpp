#include "tools/daemon/routes/turns.h"

#include <gtest/gtest.h>

#include <future>
#include <vector>

namespace okcvm::daemon {
namespace {

bool always() {
  return true;
}

TEST(Turns, AreSoManyForEachUserAndNoneForNobodyWhoWaits) {
  Turns turns;
  std::vector<Turns::Turn> taken;
  for (std::size_t i = 0; i < Turns::kMost; ++i) taken.push_back(*turns.take(1000, {}, always));
  EXPECT_TRUE(turns.take(1001, {}, always)) << "nobody waits for another user";
  const auto given_up = turns.take(1000, {}, [] { return false; });
  ASSERT_FALSE(given_up);
  EXPECT_EQ(given_up.error().code, Code::kBusy);

  std::promise<void> waits;
  auto next = std::async(std::launch::async, [&] {
    bool is_first = true;
    return turns.take(1000, {}, [&] {
      if (std::exchange(is_first, false)) waits.set_value();
      return true;
    });
  });
  waits.get_future().wait();
  EXPECT_FALSE(turns.take(1000, {}, [] { return false; })) << "behind the one that waits";
  EXPECT_TRUE(taken.back()->is_wanted());
  taken.pop_back();
  EXPECT_TRUE(next.get());
  EXPECT_FALSE(taken.back()->is_wanted());
  EXPECT_TRUE(turns.take(1000, {}, always)) << "the turn that was waited for has ended";
}

TEST(Turns, AreNotTakenUpByOneSessionWhoseRequestsWaitForEachOther) {
  Turns turns(true);
  auto running = *turns.take(1000, "slow", always);
  std::promise<void> waits;
  auto next = std::async(std::launch::async, [&] {
    bool is_first = true;
    return turns.take(1000, "slow", [&] {
      if (std::exchange(is_first, false)) waits.set_value();
      return true;
    });
  });
  waits.get_future().wait();
  const auto other = turns.take(1000, "other", [] { return false; });
  ASSERT_TRUE(other) << "passes by the one that waits";
  EXPECT_FALSE((*other)->is_wanted());
  EXPECT_TRUE(running->is_wanted());
  EXPECT_FALSE(turns.take(1000, "slow", [] { return false; }));
  running.reset();
  EXPECT_TRUE(next.get());
}

}  // namespace
}  // namespace okcvm::daemon
