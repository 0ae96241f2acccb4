// How connections begin and end: live ones, slow ones, and those there are when the server stops.

#include <fcntl.h>

#include "tests/support/expect.h"
#include "tests/tools/server_fixture.h"

namespace okcvm::daemon {
namespace {

using ServerConnections = ServerTest;

TEST_F(ServerConnections, EndsALiveAnswerWithItsClient) {
  {
    HttpClient client(path_);
    client.send("GET /live HTTP/1.1\r\n\r\n");
    client.receive_until("two\n");
  }
  // Well before something is to be sent again.
  EXPECT_EQ(live_ended_.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
}

TEST_F(ServerConnections, KeepsALiveAnswerForAClientThatHasNothingMoreToSend) {
  HttpClient half(path_);
  half.send("GET /live HTTP/1.1\r\n\r\n");
  half.end_sending();
  half.receive_until("two\n\r\n");
  EXPECT_TRUE(half.is_silent_for(std::chrono::milliseconds(100)));
  stop(std::chrono::seconds(5));
  EXPECT_EQ(half.receive_until("0\r\n\r\n"), "0\r\n\r\n");
  live_ended_.get_future().wait();
}

TEST_F(ServerConnections, EndsALiveAnswerAsItShouldWhenItStops) {
  HttpClient client(path_);
  client.send("GET /live HTTP/1.1\r\n\r\n");
  client.receive_until("two\n\r\n");
  boost::asio::post(*io_, [this] { server_->stop(std::chrono::seconds(5), [] {}); });
  live_ended_.get_future().wait();
  EXPECT_EQ(client.receive_until("0\r\n\r\n"), "0\r\n\r\n");
  EXPECT_TRUE(client.is_closed_within(10));
}

TEST_F(ServerConnections, ClosesIdleAndSlowConnections) {
  ServerLimits limits;
  limits.idle = std::chrono::seconds(1);
  restart(limits);
  HttpClient silent(path_), slow(path_);
  slow.send("GET / HT");
  EXPECT_TRUE(silent.is_closed_within(10));
  EXPECT_TRUE(slow.is_closed_within(10));
}

TEST_F(ServerConnections, TellsWhoseBodyDoesNotComeThatItIsLate) {
  ServerLimits limits;
  limits.idle = std::chrono::seconds(1);
  restart(limits);
  for (const std::string path : {"/", "/count"}) {
    for (const std::string body : {"", "ab"}) {
      HttpClient stuck(path_);
      stuck.send("POST " + path + " HTTP/1.1\r\nContent-Length: 5\r\n\r\n" + body);
      auto answer = stuck.receive();
      EXPECT_EQ(answer.status, 408) << path << body;
      EXPECT_EQ(answer.code(), "invalid_request") << path << body;
      EXPECT_EQ(answer.headers["connection"], "close") << path << body;
      EXPECT_TRUE(stuck.is_closed_within(10)) << path << body;
    }
    HttpClient whole(path_);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(whole.ask("POST", path, "abcde").status, 200);
  }
}

TEST_F(ServerConnections, HoldsATurnAsLongAsItsAnswerIsInMemory) {
  HttpClient slow(path_);
  slow.send("GET /turn HTTP/1.1\r\nConnection: close\r\n\r\n");
  ASSERT_EQ(slow.receive_some(1), 1u);
  EXPECT_FALSE(turn_ended_);
  while (slow.receive_some(1 << 20) > 0) continue;
  EXPECT_TRUE(turn_ended_);
}

TEST_F(ServerConnections, EndsATurnWhoseClientIsGone) {
  {
    HttpClient gone(path_);
    gone.send("GET /turn HTTP/1.1\r\n\r\n");
    ASSERT_EQ(gone.receive_some(1), 1u);
  }
  turn_ended_.wait(false);
}

TEST_F(ServerConnections, HoldsNoTurnForASmallAnswer) {
  EXPECT_EQ(HttpClient(path_).ask("GET", "/small-turn").body.size(), kSmallAnswer);
  EXPECT_TRUE(turn_ended_before_answer_) << "however slowly it is taken";
}

TEST_F(ServerConnections, EndsATurnThatOthersWaitForWhenItsClientTakesNothing) {
  ServerLimits limits;
  limits.idle_with_turn = std::chrono::seconds(1);
  restart(limits);
  HttpClient stalled(path_);
  stalled.send("GET /turn HTTP/1.1\r\n\r\n");
  ASSERT_EQ(stalled.receive_some(1), 1u);
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));  // a client, not a wait for something
  EXPECT_FALSE(turn_ended_) << "nobody waits";
  turn_is_wanted_ = true;
  EXPECT_EQ(turn_end_.get_future().wait_for(std::chrono::seconds(15)), std::future_status::ready);
}

TEST_F(ServerConnections, GivesUpWorkWhoseClientIsGone) {
  {
    HttpClient gone(path_);
    gone.send("GET /long HTTP/1.1\r\n\r\n");
    waiting_.get_future().wait();
  }
  given_up_.wait(false);
}

TEST_F(ServerConnections, GoesOnForAClientThatHasNothingMoreToSend) {
  HttpClient half(path_);
  half.send("GET /long HTTP/1.1\r\nConnection: close\r\n\r\n");
  half.end_sending();
  waiting_.get_future().wait();
  EXPECT_TRUE(half.is_silent_for(std::chrono::milliseconds(100)));
  EXPECT_FALSE(given_up_);
  is_enough_ = true;
  EXPECT_EQ(half.receive().body, "given up");
}

TEST_F(ServerConnections, WhoTakesAnAnswerSlowlyIsNotIdle) {
  ServerLimits limits;
  limits.idle = std::chrono::seconds(1);
  restart(limits);
  HttpClient slow(path_);
  slow.send("GET /large HTTP/1.1\r\n\r\n");
  const auto begun = std::chrono::steady_clock::now();
  std::size_t taken = 0;
  while (std::chrono::steady_clock::now() - begun < std::chrono::milliseconds(2500)) {
    const auto some = slow.receive_some(64 * 1024);
    ASSERT_GT(some, 0u) << "after " << taken;
    taken += some;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // a slow client, not a wait for something
  }
  EXPECT_GT(taken, 0u);
  EXPECT_LT(taken, kLargeAnswer);
  while (taken < kLargeAnswer) {
    const auto some = slow.receive_some(1 << 20);
    ASSERT_GT(some, 0u);
    taken += some;
  }
}

TEST_F(ServerConnections, LetsConnectionsBeyondTheLimitWait) {
  ServerLimits limits;
  limits.connections = 2;
  restart(limits);
  auto first = std::make_unique<HttpClient>(path_);
  HttpClient second(path_), third(path_);
  EXPECT_EQ(first->ask("GET", "/1").status, 200);
  EXPECT_EQ(second.ask("GET", "/2").status, 200);
  third.send("GET /3 HTTP/1.1\r\n\r\n");
  first.reset();
  EXPECT_EQ(third.receive().body, "/3|");
}

TEST_F(ServerConnections, CloseWhereTheyAreIdleForThoseThatWait) {
  ServerLimits limits;
  limits.connections = 3;
  limits.idle = std::chrono::minutes(10);
  restart(limits);
  HttpClient busy(path_), begun(path_), idle(path_);
  busy.send("GET /wait HTTP/1.1\r\n\r\n");
  waiting_.get_future().wait();
  begun.send("GET /begun HT");
  EXPECT_EQ(idle.ask("GET", "/idle").status, 200);
  HttpClient first(path_), second(path_);
  first.send("GET /first HTTP/1.1\r\n\r\n");
  second.send("GET /second HTTP/1.1\r\n\r\n");
  EXPECT_EQ(first.receive().body, "/first|");
  EXPECT_TRUE(idle.is_closed_within(10));
  EXPECT_EQ(second.receive().body, "/second|");
  EXPECT_TRUE(first.is_closed_within(10));
  begun.send("TP/1.1\r\n\r\n");
  EXPECT_EQ(begun.receive().body, "/begun|");
  released_.set_value();
  EXPECT_EQ(busy.receive().body, "released");
}

TEST_F(ServerConnections, ThatWaitAreServedWhenItStops) {
  ServerLimits limits;
  limits.connections = 1;
  restart(limits);
  HttpClient busy(path_), waiting(path_);
  busy.send("GET /wait HTTP/1.1\r\n\r\n");
  waiting_.get_future().wait();
  waiting.send("GET /waiting HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(waiting.is_silent_for(std::chrono::milliseconds(200)));
  stop(std::chrono::seconds(5));
  EXPECT_EQ(waiting.receive().body, "/waiting|");
  released_.set_value();
  EXPECT_EQ(busy.receive().body, "released");
}

TEST_F(ServerConnections, FinishesWhatIsInHandWhenItStops) {
  HttpClient busy(path_), idle(path_);
  EXPECT_EQ(idle.ask("GET", "/").status, 200);
  busy.send("GET /wait HTTP/1.1\r\n\r\n");
  waiting_.get_future().wait();
  boost::asio::post(*io_, [this] { server_->stop(std::chrono::seconds(30), [] {}); });
  EXPECT_TRUE(idle.is_closed_within(10));
  released_.set_value();
  const auto answer = busy.receive();
  EXPECT_EQ(answer.body, "released");
  EXPECT_EQ(answer.headers.at("connection"), "close");
}

TEST_F(ServerConnections, AnswersARequestThatComesJustAfterItWasStopped) {
  HttpClient client(path_), silent(path_);
  EXPECT_EQ(client.ask("GET", "/first").body, "/first|");
  EXPECT_EQ(silent.ask("GET", "/first").body, "/first|");
  std::promise<void> stopped;
  boost::asio::post(*io_, [&] {
    server_->stop(std::chrono::seconds(30), [] {});
    stopped.set_value();
  });
  stopped.get_future().wait();
  const auto answer = client.ask("GET", "/second");
  EXPECT_EQ(answer.body, "/second|");
  EXPECT_EQ(answer.headers.at("connection"), "close");
  EXPECT_TRUE(silent.is_closed_within(10));
}

TEST_F(ServerConnections, FinishesABodyThatGoesOnWhenItStopsAndWaitsForNoneThatStalls) {
  HttpClient busy(path_), stuck(path_), stuck_whole(path_);
  stuck_whole.send("POST /whole HTTP/1.1\r\nContent-Length: 5\r\n\r\nab");
  busy.send("PUT /count HTTP/1.1\r\nContent-Length: 5\r\n\r\nab");
  sinks_.wait(0);
  stuck.send("PUT /count HTTP/1.1\r\nContent-Length: 5\r\n\r\nab");
  sinks_.wait(1);
  stop(std::chrono::seconds(30));
  busy.send("cde");
  EXPECT_EQ(busy.receive().body, "5");
  for (auto* client : {&stuck, &stuck_whole}) {
    EXPECT_THAT(client->receive().status, ::testing::AnyOf(0, 408));
    EXPECT_TRUE(client->is_closed_within(10));
  }
}

TEST_F(ServerConnections, WaitsNotLongForAClientThatTakesItsAnswerSlowlyWhenItStops) {
  ServerLimits limits;
  limits.sending_at_stop = std::chrono::seconds(1);
  restart(limits);
  HttpClient slow(path_);
  slow.send("GET /large HTTP/1.1\r\n\r\n");
  std::size_t taken = slow.receive_some(1);
  stop(std::chrono::seconds(60));
  for (std::size_t some = 1; some > 0; taken += some) {
    some = slow.receive_some(64 * 1024);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // a slow client, not a wait for something
  }
  EXPECT_LT(taken, kLargeAnswer);
}

bool can_refuse_descriptors() {
  constexpr int kPassRights = 83;  // SO_PASSRIGHTS, Linux 6.16
  const FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  int passes = 0;
  socklen_t size = sizeof passes;
  return ::getsockopt(socket.get(), SOL_SOCKET, kPassRights, &passes, &size) == 0;
}

// To close one may take as long as its sender likes.
TEST_F(ServerConnections, IsSentNoDescriptors) {
  if (!can_refuse_descriptors()) GTEST_SKIP() << "this kernel cannot refuse descriptors (Linux 6.16 can)";
  const std::string request = "GET /a HTTP/1.1\r\n\r\n";
  HttpClient client(path_);
  EXPECT_ERRNO(EPERM, client.send_with_descriptor(request));
  TearDown();
  auto listening = listen();
  HttpClient early(path_);  // before somebody serves the socket
  serve(std::move(listening), ServerLimits());
  EXPECT_EQ(early.ask("GET", "/a").body, "/a|");
  EXPECT_ERRNO(EPERM, early.send_with_descriptor(request));
}

TEST_F(ServerConnections, DropsABodyThatIsNotWaitedFor) {
  HttpClient stuck(path_);
  stuck.send("PUT /count HTTP/1.1\r\nContent-Length: 5\r\n\r\nab");
  sinks_.wait(0);
  stop(std::chrono::seconds(0));
}

}  // namespace
}  // namespace okcvm::daemon
