#include "tools/daemon/http/server.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <cstring>
#include <filesystem>
#include <future>
#include <optional>
#include <thread>

#include "tests/support/expect.h"
#include "tests/tools/http_client.h"
#include "tools/daemon/host/log.h"
#include "tools/daemon/http/worker_pool.h"

namespace okcvm::daemon {
namespace {

using test::HttpAnswer;
using test::HttpClient;

Response text_response(std::string text) {
  Response response;
  response.content_type = "text/plain";
  response.body = std::move(text);
  return response;
}

constexpr std::size_t kLargeAnswer = 16 << 20;

/// Counts the bytes of a streamed body; refuses at the first byte 'x'.
class CountingSink final : public BodySink {
 public:
  explicit CountingSink(std::atomic<int>& alive) : alive_(alive) {
    ++alive_;
    alive_.notify_all();
  }
  ~CountingSink() override { --alive_; }
  Result<void> write(std::string_view bytes) override {
    if (!bytes.empty() && bytes.front() == 'x') return fail(Code::kNoSpace, "full");
    size_ += bytes.size();
    return {};
  }
  Result<Response> finish() override { return text_response(std::to_string(size_)); }

 private:
  std::atomic<int>& alive_;
  std::size_t size_ = 0;
};

/// A server on a private socket whose routes show what arrives.
class ServerTest : public ::testing::Test {
 protected:
  void SetUp() override { start(ServerLimits()); }
  void TearDown() override {
    stop(std::chrono::seconds(5));
    thread_.join();
    server_.reset();
    workers_.reset();
    io_.reset();
    EXPECT_EQ(sinks_, 0);
    std::filesystem::remove(path_);
  }

  void stop(std::chrono::seconds patience) {
    boost::asio::post(*io_, [=, this] { server_->stop(patience, [this] { io_->stop(); }); });
  }

  void restart(ServerLimits limits) {
    TearDown();
    start(limits);
  }

  void start(ServerLimits limits) { serve(listen(), limits); }

  FileDescriptor listen() {
    FileDescriptor listening(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
    EXPECT_EQ(::bind(listening.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(listening.get(), 64), 0);
    return listening;
  }

  void serve(FileDescriptor listening, ServerLimits limits) {
    set_up_log("error", "text");
    io_.emplace(1);
    workers_ = std::make_unique<WorkerPool>(64);
    server_ = std::make_unique<Server>(*io_, *workers_, limits,
                                       [this](Request& request) { return route(request); });
    ASSERT_TRUE(server_->serve(std::move(listening)));
    thread_ = std::thread([this] { io_->run(); });
  }

  std::variant<Handling, Response> route(Request& request) {
    Handling handling;
    handling.pattern = "test";
    if (request.path == "/refuse") return error_response(Error::of(Code::kForbidden, "no"), request.id);
    if (request.path == "/fail") return error_response(Error::of(Code::kInternal, "it\nbroke"), request.id);
    if (request.path == "/count") {
      handling.open = [this](Request&) -> Result<std::unique_ptr<BodySink>> {
        return std::make_unique<CountingSink>(sinks_);
      };
    } else if (request.path == "/count-nothing") {
      handling.open = [](Request&) -> Result<std::unique_ptr<BodySink>> {
        return fail(Code::kForbidden, "not here");
      };
    } else if (request.path == "/work") {
      handling.shows_progress = true;
      handling.respond = [](Request& asked) {
        asked.progress("read", 1, 2);
        auto response = text_response("{\"done\":true}\n");
        response.content_type = "application/json";
        return response;
      };
    } else if (request.path == "/large") {
      handling.respond = [](Request&) { return text_response(std::string(kLargeAnswer, 'l')); };
    } else if (request.path == "/turn") {
      handling.respond = [this](Request& asked) {
        asked.turn = std::shared_ptr<void>(nullptr, [this](void*) {
          turn_ended_ = true;
          turn_ended_.notify_all();
        });
        return text_response(std::string(kLargeAnswer, 't'));
      };
    } else if (request.path == "/wait") {
      handling.respond = [this](Request&) {
        waiting_.set_value();
        released_.get_future().wait();
        return text_response("released");
      };
    } else if (request.path == "/file") {
      handling.respond = [](Request&) {
        Response response;
        FileDescriptor file(::memfd_create("test", MFD_CLOEXEC));
        const std::string bytes(1'000'000, 'f');
        EXPECT_EQ(::write(file.get(), bytes.data(), bytes.size()), 1'000'000);
        response.body = FileBody{std::move(file), 5, 999'990};
        return response;
      };
    } else if (request.path == "/live") {
      handling.respond = [this](Request&) {
        Response response;
        response.content_type = "text/event-stream";
        response.body =
            LiveBody{[this](LiveBody::Send send) {
                       send("one\n");
                       send("two\n");
                       return std::shared_ptr<void>(nullptr, [this](void*) { live_ended_.set_value(); });
                     },
                     [] { return "keep\n"; }};
        return response;
      };
    } else {
      handling.respond = [](Request& asked) { return text_response(asked.path + "|" + asked.body); };
    }
    return handling;
  }

  HttpAnswer raw(std::string_view bytes) {
    HttpClient client(path_);
    client.send(bytes);
    return client.receive();
  }

  const std::string path_ = ::testing::TempDir() + "okcvm-http-" + std::to_string(::getpid());
  std::atomic<int> sinks_{0};
  std::optional<boost::asio::io_context> io_;
  std::unique_ptr<WorkerPool> workers_;
  std::unique_ptr<Server> server_;
  std::thread thread_;
  std::promise<void> waiting_, released_, live_ended_;
  std::atomic<bool> turn_ended_{false};
};

TEST_F(ServerTest, AnswersManyRequestsOnOneConnection) {
  HttpClient client(path_);
  for (int i = 0; i < 50; ++i)
    EXPECT_EQ(client.ask("POST", "/a", std::to_string(i)).body, "/a|" + std::to_string(i));
  EXPECT_EQ(client.ask("GET", "/refuse").code(), "forbidden");
  EXPECT_EQ(client.ask("GET", "/after").body, "/after|");
}

TEST_F(ServerTest, AnswersPipelinedRequestsInOrder) {
  HttpClient client(path_);
  std::string requests;
  for (int i = 0; i < 20; ++i) requests += "GET /" + std::to_string(i) + " HTTP/1.1\r\n\r\n";
  client.send(requests);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(client.receive().body, "/" + std::to_string(i) + "|");
}

TEST_F(ServerTest, AnswersAClientThatHasEndedSending) {
  HttpClient client(path_);
  client.send("GET /half HTTP/1.1\r\n\r\n");
  client.end_sending();
  EXPECT_EQ(client.receive().body, "/half|");
  EXPECT_TRUE(client.is_closed_within(5));
}

TEST_F(ServerTest, AnswersHeadWithoutABody) {
  HttpClient client(path_);
  const auto answer = client.ask("HEAD", "/file");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers.at("content-length"), "999990");
  EXPECT_EQ(client.ask("GET", "/next").body, "/next|");
}

TEST_F(ServerTest, RefusesGarbage) {
  for (const std::string& bytes :
       {std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n"), std::string("hello\r\n\r\n"),
        std::string("GET /\r\n\r\n"), std::string("GET / HTTP/9.9\r\n\r\n"),
        std::string("GET /a b HTTP/1.1\r\n\r\n"), std::string("GET / HTTP/1.1\r\nno colon\r\n\r\n"),
        std::string("POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n"),
        std::string("POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n"),
        std::string("POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"),
        std::string("GET / HTTP/1.1\r\nA: b\0c\r\n\r\n", 26)}) {
    const auto answer = raw(bytes);
    EXPECT_EQ(answer.status, 400) << bytes;
    EXPECT_EQ(answer.code(), "invalid_request") << bytes;
    EXPECT_EQ(answer.headers.at("connection"), "close");
  }
}

TEST_F(ServerTest, LogsWhyARequestFailed) {
  ::testing::internal::CaptureStderr();
  auto answer = raw("GET /fail HTTP/1.1\r\n\r\n");
  const auto log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(answer.status, 500);
  EXPECT_NE(log.find("request " + answer.headers["x-request-id"] +
                     ": {\"error\":{\"code\":\"internal\",\"message\":\"it\\nbroke\""),
            log.npos)
      << log;
}

TEST_F(ServerTest, RefusesAnAddressThatIsNone) {
  EXPECT_EQ(raw("GET * HTTP/1.1\r\n\r\n").status, 400);
  EXPECT_EQ(raw("GET /?a=%zz HTTP/1.1\r\n\r\n").status, 400);
  EXPECT_EQ(raw("GET /?a=%00 HTTP/1.1\r\n\r\n").status, 400);
  EXPECT_EQ(raw("GET /?a=1&a=2 HTTP/1.1\r\n\r\n").status, 400);
  EXPECT_EQ(raw("GET http://okcvm/x HTTP/1.1\r\n\r\n").body, "/x|");
}

TEST_F(ServerTest, RefusesAHeaderThatIsTooLarge) {
  EXPECT_EQ(raw("GET / HTTP/1.1\r\nA: " + std::string(20'000, 'a') + "\r\n\r\n").status, 431);
  EXPECT_EQ(raw("GET /" + std::string(20'000, 'a') + " HTTP/1.1\r\n\r\n").status, 431);
  EXPECT_EQ(raw("GET / HTTP/1.1\r\nA: " + std::string(15'000, 'a') + "\r\n\r\n").status, 200);
  std::string many = "GET / HTTP/1.1\r\n";
  for (int i = 0; i < 1'000; ++i) many += "A: b\r\n";
  EXPECT_EQ(raw(many + "\r\n").status, 200);
  HttpClient client(path_);
  for (int i = 0; i < 5; ++i) client.send(many.substr(i == 0 ? 0 : 16));
  EXPECT_EQ(client.receive().status, 431);
}

TEST_F(ServerTest, RefusesABodyThatIsTooLarge) {
  EXPECT_EQ(raw("POST / HTTP/1.1\r\nContent-Length: 1048577\r\n\r\n").status, 413);
  HttpClient client(path_);
  client.send("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string chunk = "10000\r\n" + std::string(65536, 'a') + "\r\n";
  for (int i = 0; i < 17; ++i) client.send(chunk);
  EXPECT_EQ(client.receive().status, 413);
  HttpClient whole(path_);
  EXPECT_EQ(whole.ask("POST", "/", std::string(1024 * 1024, 'a')).body.size(), 1024u * 1024 + 2);
}

TEST_F(ServerTest, RefusesCodingsThatItDoesNotKnow) {
  for (const char* coding : {"gzip", "identity", "gzip, chunked"}) {
    HttpClient client(path_);
    client.send(std::string("PUT /count HTTP/1.1\r\nHost: okcvm\r\nTransfer-Encoding: ") + coding +
                "\r\n\r\nhalf of a");
    client.end_sending();
    EXPECT_EQ(client.receive().status, 501) << coding;
  }
}

TEST_F(ServerTest, ReadsNoRequestOutOfABodyOfUnknownLength) {
  for (const char* coding : {"gzip", "identity", "chunked, identity"}) {
    HttpClient client(path_);
    client.send(std::string("PUT /count HTTP/1.1\r\nTransfer-Encoding: ") + coding +
                "\r\n\r\nGET / HTTP/1.1\r\n\r\n");
    auto answer = client.receive();
    EXPECT_EQ(answer.status, 501) << coding;
    EXPECT_EQ(answer.headers["connection"], "close") << coding;
    EXPECT_EQ(client.receive().status, 0) << coding;
  }
}

TEST_F(ServerTest, RefusesTrailersThatAreTooLarge) {
  std::string many;
  for (int i = 0; i < 5'000; ++i) many += "A: b\r\n";
  for (const std::string path : {"/", "/count"}) {
    HttpClient client(path_);
    client.send("POST " + path + " HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n" + many +
                "\r\n");
    EXPECT_EQ(client.receive().status, 431) << path;
    HttpClient sober(path_);
    sober.send("POST " + path + " HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nA: b\r\n\r\n");
    EXPECT_EQ(sober.receive().status, 200) << path;
  }
}

TEST_F(ServerTest, StreamsBodiesOfAnySize) {
  HttpClient client(path_);
  EXPECT_EQ(client.ask("PUT", "/count", std::string(5'000'000, 'a')).body, "5000000");
  client.send("PUT /count HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 300; ++i) client.send("2710\r\n" + std::string(10'000, 'b') + "\r\n");
  client.send("0\r\n\r\n");
  EXPECT_EQ(client.receive().body, "3000000");
  EXPECT_EQ(client.ask("PUT", "/count", "").body, "0");
}

TEST_F(ServerTest, TellsWhyABodyWasNotTaken) {
  HttpClient client(path_);
  client.send("PUT /count HTTP/1.1\r\nContent-Length: 10000000\r\n\r\nx");
  const auto answer = client.receive();
  EXPECT_EQ(answer.status, 507);
  EXPECT_EQ(answer.code(), "no_space");
}

TEST_F(ServerTest, LetsAClientContinue) {
  HttpClient client(path_);
  client.send("PUT /count HTTP/1.1\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.receive_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("abcd");
  EXPECT_EQ(client.receive().body, "4");
}

TEST_F(ServerTest, AsksForNoBodyThatItDoesNotTake) {
  for (const char* framing : {"Content-Length: 4", "Transfer-Encoding: chunked"}) {
    HttpClient client(path_);
    client.send("PUT /count-nothing HTTP/1.1\r\nExpect: 100-continue\r\n" + std::string(framing) +
                "\r\n\r\n");
    EXPECT_EQ(client.receive().status, 403) << framing;
    EXPECT_TRUE(client.is_closed_within(10)) << framing << ": nobody knows whether the body comes";
  }
  HttpClient client(path_);
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(client.ask("PUT", "/count", "", {{"Expect", "100-continue"}}).body, "0") << "there is none";
}

TEST_F(ServerTest, SendsAPartOfAFile) {
  HttpClient client(path_);
  EXPECT_EQ(client.ask("GET", "/file").body, std::string(999'990, 'f'));
}

TEST_F(ServerTest, ShowsProgressToWhoAsksForIt) {
  HttpClient client(path_);
  EXPECT_EQ(client.ask("POST", "/work", "", {{"Accept", "application/x-ndjson"}}).body,
            "{\"progress\":{\"phase\":\"read\",\"done\":1,\"total\":2}}\n{\"result\":{\"done\":true}}\n");
  EXPECT_EQ(client.ask("POST", "/work").body, "{\"done\":true}\n");
}

TEST_F(ServerTest, EndsALiveAnswerWithItsClient) {
  {
    HttpClient client(path_);
    client.send("GET /live HTTP/1.1\r\n\r\n");
    client.receive_until("two\n");
  }
  boost::asio::post(*io_, [this] { server_->stop(std::chrono::seconds(5), [] {}); });
  live_ended_.get_future().wait();
}

TEST_F(ServerTest, ClosesIdleAndSlowConnections) {
  ServerLimits limits;
  limits.idle = std::chrono::seconds(1);
  restart(limits);
  HttpClient silent(path_), slow(path_);
  slow.send("GET / HT");
  EXPECT_TRUE(silent.is_closed_within(10));
  EXPECT_TRUE(slow.is_closed_within(10));
}

TEST_F(ServerTest, TellsWhoseBodyDoesNotComeThatItIsLate) {
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

TEST_F(ServerTest, HoldsATurnAsLongAsItsAnswerIsInMemory) {
  HttpClient slow(path_);
  slow.send("GET /turn HTTP/1.1\r\nConnection: close\r\n\r\n");
  ASSERT_EQ(slow.receive_some(1), 1u);
  EXPECT_FALSE(turn_ended_);
  while (slow.receive_some(1 << 20) > 0) continue;
  EXPECT_TRUE(turn_ended_);
}

TEST_F(ServerTest, EndsATurnWhoseClientIsGone) {
  {
    HttpClient gone(path_);
    gone.send("GET /turn HTTP/1.1\r\n\r\n");
    ASSERT_EQ(gone.receive_some(1), 1u);
  }
  turn_ended_.wait(false);
}

TEST_F(ServerTest, WhoTakesAnAnswerSlowlyIsNotIdle) {
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

TEST_F(ServerTest, LetsConnectionsBeyondTheLimitWait) {
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

TEST_F(ServerTest, FinishesWhatIsInHandWhenItStops) {
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

TEST_F(ServerTest, AnswersARequestThatComesJustAfterItWasStopped) {
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

TEST_F(ServerTest, FinishesABodyThatGoesOnWhenItStopsAndWaitsForNoneThatStalls) {
  HttpClient busy(path_), stuck(path_), stuck_whole(path_);
  stuck_whole.send("POST /whole HTTP/1.1\r\nContent-Length: 5\r\n\r\nab");
  busy.send("PUT /count HTTP/1.1\r\nContent-Length: 5\r\n\r\nab");
  sinks_.wait(0);
  stuck.send("PUT /count HTTP/1.1\r\nContent-Length: 5\r\n\r\nab");
  sinks_.wait(1);
  stop(std::chrono::seconds(30));
  busy.send("cde");
  EXPECT_EQ(busy.receive().body, "5");
  EXPECT_TRUE(stuck.is_closed_within(10));
  EXPECT_TRUE(stuck_whole.is_closed_within(10));
}

bool can_refuse_descriptors() {
  constexpr int kPassRights = 83;  // SO_PASSRIGHTS, Linux 6.16
  const FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  int passes = 0;
  socklen_t size = sizeof passes;
  return ::getsockopt(socket.get(), SOL_SOCKET, kPassRights, &passes, &size) == 0;
}

// To close one may take as long as its sender likes.
TEST_F(ServerTest, IsSentNoDescriptors) {
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

TEST_F(ServerTest, DropsABodyThatIsNotWaitedFor) {
  HttpClient stuck(path_);
  stuck.send("PUT /count HTTP/1.1\r\nContent-Length: 5\r\n\r\nab");
  sinks_.wait(0);
  stop(std::chrono::seconds(0));
}

}  // namespace
}  // namespace okcvm::daemon
