// Requests for checkpoints that come to their turn when their session is gone and another has its id.

#include <array>

#include "tests/tools/fake_mounts.h"
#include "tools/daemon/routes/handlers.h"
#include "tools/daemon/routes/metrics.h"

namespace okcvm::test {
namespace {

class CheckpointsOfADeletedSession : public SessionsOnFakes {
 protected:
  void SetUp() override {
    SessionsOnFakes::SetUp();
    create("s");
    asked_ = *sessions_->find(root_, "s");
    ASSERT_TRUE(sessions_->remove(root_, "s"));
    daemon::Checkpoint theirs;
    theirs.id = "c";
    theirs.data = R"("theirs")";
    ASSERT_TRUE(sessions_->add_checkpoint(create("s"), theirs));
  }

  template <typename Handler>
  Code refusal(Handler handler, const std::string& checkpoint = {}) {
    daemon::RequestMetrics metrics;
    daemon::Service service{*sessions_, events_, metrics, 7, 0, {}, {}, {}, {}};
    daemon::Request request;
    if (!checkpoint.empty()) request.captures["checkpoint"] = checkpoint;
    daemon::Exchange exchange{service, request, asked_};
    const auto answer = handler(exchange);
    EXPECT_FALSE(answer);
    return answer ? Code::kInternal : answer.error().code;
  }

  daemon::SessionPointer asked_;
};

TEST_F(CheckpointsOfADeletedSession, AreNotThoseOfTheNextOne) {
  EXPECT_EQ(refusal(daemon::routes::list_checkpoints), Code::kNotFound);
  EXPECT_EQ(refusal(daemon::routes::load_checkpoint, "c"), Code::kNotFound);
  EXPECT_EQ(refusal(daemon::routes::load_checkpoint, "latest"), Code::kNotFound);
  EXPECT_EQ(refusal(daemon::routes::restore_checkpoint, "c"), Code::kNotFound);
}

using TurnsOfRequests = SessionsOnFakes;

/// As large bodies and large answers are of the same kind.
TEST_F(TurnsOfRequests, AreNotHeldByWhoWaitsForAnother) {
  daemon::RequestMetrics metrics;
  daemon::Service service{*sessions_, events_, metrics, 7, 0, {}, {}, {}, {}};
  std::array<daemon::Request, daemon::Turns::kMost> requests;
  for (int turn = 0; turn < 2; ++turn)
    for (auto& request : requests) {
      request.progress = [](std::string_view, std::uint64_t, std::uint64_t) { return false; };
      daemon::Exchange exchange{service, request, {}};
      EXPECT_TRUE(exchange.take_turn(service.documents)) << "it would have to wait";
    }
}

}  // namespace
}  // namespace okcvm::test
