#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>

#include "policy/percent_encoding.h"
#include "tests/fuzz/expect.h"
#include "tools/daemon/host/log.h"
#include "tools/daemon/http/server.h"
#include "tools/daemon/http/worker_pool.h"
#include "tools/daemon/routes/fields.h"

/// What a client may send, byte for byte, to the real server; its routes read the body as the daemon's do.
namespace {

using namespace okcvm;
using namespace okcvm::daemon;

Response answer_fields(Request& request) {
  Fields fields(request.body);
  fields.text("id");
  fields.integer("limit", 0, 10);
  Response response;
  response.headers.emplace_back("X-Path", percent_encoded(request.path));
  const auto ended = fields.end();
  if (!ended) return error_response(ended.error(), request);
  return response;
}

class CountingSink final : public BodySink {
 public:
  Result<void> write(std::string_view bytes) override {
    if (bytes.starts_with('x')) return fail(Code::kNoSpace, "there is no room for x");
    return {};
  }
  Result<Response> finish() override { return Response(); }
};

std::variant<Handling, Response> route(Request& request) {
  Handling handling;
  handling.pattern = "/";
  handling.shows_progress = true;
  if (request.method == Method::kPut)
    handling.open = [](Request&) -> Result<std::unique_ptr<BodySink>> {
      return std::make_unique<CountingSink>();
    };
  else
    handling.respond = answer_fields;
  return handling;
}

/// Serves for as long as the program runs: every input is one connection.
class FuzzedServer {
 public:
  FuzzedServer() {
    set_up_log("error", "text");
    FileDescriptor listening(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    address_.sun_family = AF_UNIX;
    // An abstract name (its first byte is NUL): nothing to clear away.
    std::snprintf(address_.sun_path + 1, sizeof address_.sun_path - 1, "okcvm-fuzz-%d", ::getpid());
    FUZZ_EXPECT(::bind(listening.get(), reinterpret_cast<const sockaddr*>(&address_), sizeof address_) == 0);
    FUZZ_EXPECT(::listen(listening.get(), 64) == 0);
    FUZZ_EXPECT(server_.serve(std::move(listening)).has_value());
    std::thread([this] { io_.run(); }).detach();
  }

  FileDescriptor connect() const {
    FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    FUZZ_EXPECT(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address_), sizeof address_) == 0);
    return socket;
  }

 private:
  sockaddr_un address_{};
  boost::asio::io_context io_{1};
  WorkerPool workers_{16};
  Server server_{io_,
                 workers_,
                 {.header_bytes = 2048, .body_bytes = 4096},
                 route,
                 [](std::string_view, int, std::chrono::nanoseconds) {}};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto* server = new FuzzedServer;  // its threads outlive main()
  const auto socket = server->connect();
  // The first byte says where the bytes are cut in two, so that requests also arrive in pieces.
  const std::size_t cut = size > 1 ? data[0] % size : 0;
  if (size > 0) {
    ::send(socket.get(), data + 1, cut, MSG_NOSIGNAL);
    ::send(socket.get(), data + 1 + cut, size - 1 - cut, MSG_NOSIGNAL);
  }
  ::shutdown(socket.get(), SHUT_WR);
  // A connection whose client says no more must end; libFuzzer's -timeout finds the one that does not.
  std::string answers;
  std::array<char, 4096> bytes{};
  for (;;) {
    const auto got = ::recv(socket.get(), bytes.data(), bytes.size(), 0);
    if (got <= 0) break;
    answers.append(bytes.data(), static_cast<std::size_t>(got));
  }
  FUZZ_EXPECT(answers.empty() || answers.starts_with("HTTP/1."));
  FUZZ_EXPECT(answers.find(" 500 Internal") == answers.npos);
  return 0;
}
