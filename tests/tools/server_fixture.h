#pragma once

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
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "tests/tools/http_client.h"
#include "tools/daemon/host/log.h"
#include "tools/daemon/http/server.h"
#include "tools/daemon/http/worker_pool.h"

namespace okcvm::daemon {

using test::HttpAnswer;
using test::HttpClient;

inline Response text_response(std::string text) {
  Response response;
  response.content_type = "text/plain";
  response.body = std::move(text);
  return response;
}

inline constexpr std::size_t kLargeAnswer = 16 << 20;
inline constexpr std::size_t kSmallAnswer = 16 << 10;

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

/// Tells when it ends.
class ShownTurn final : public HeldTurn {
 public:
  ShownTurn(const std::atomic<bool>& is_wanted, std::function<void()> ended)
      : is_wanted_(is_wanted), ended_(std::move(ended)) {}
  ~ShownTurn() override { ended_(); }
  bool is_wanted() const override { return is_wanted_; }

 private:
  const std::atomic<bool>& is_wanted_;
  const std::function<void()> ended_;
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

  void stop(std::chrono::seconds timeout) {
    boost::asio::post(*io_, [=, this] { server_->stop(timeout, [this] { io_->stop(); }); });
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
    server_ = std::make_unique<Server>(
        *io_, *workers_, limits, [this](Request& request) { return route(request); },
        [this](std::string_view, int, std::chrono::nanoseconds) {
          turn_ended_before_answer_ = turn_ended_.load();
        });
    ASSERT_TRUE(server_->serve(std::move(listening)));
    thread_ = std::thread([this] { io_->run(); });
  }

  std::variant<Handling, Response> route(Request& request) {
    Handling handling;
    handling.pattern = "test";
    if (request.path == "/refuse") return error_response(Error::of(Code::kForbidden, "no"), request);
    if (request.path == "/fail") return error_response(Error::of(Code::kInternal, "it\nbroke"), request);
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
    } else if (request.path == "/turn" || request.path == "/small-turn") {
      handling.respond = [this](Request& asked) {
        asked.turn = std::make_shared<ShownTurn>(turn_is_wanted_, [this] {
          turn_ended_ = true;
          turn_ended_.notify_all();
          turn_end_.set_value();
        });
        return text_response(std::string(asked.path == "/turn" ? kLargeAnswer : kSmallAnswer, 't'));
      };
    } else if (request.path == "/wait") {
      handling.respond = [this](Request&) {
        waiting_.set_value();
        released_.get_future().wait();
        return text_response("released");
      };
    } else if (request.path == "/long") {
      handling.respond = [this](Request& asked) {
        waiting_.set_value();
        while (asked.progress("working", 0, 0) && !is_enough_) std::this_thread::yield();
        given_up_ = true;
        given_up_.notify_all();
        return text_response("given up");
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
  std::promise<void> waiting_, released_, live_ended_, turn_end_;
  std::atomic<bool> turn_is_wanted_{false}, turn_ended_{false}, turn_ended_before_answer_{false};
  std::atomic<bool> given_up_{false}, is_enough_{false};
};

}  // namespace okcvm::daemon
