#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <variant>

#include "policy/error.h"
#include "policy/file_descriptor.h"
#include "tools/daemon/http/message.h"

namespace boost::asio {
class io_context;
}

namespace okcvm::daemon {

class WorkerPool;

/// What is to be done about a request whose header was read. `respond` or `open` runs on a worker and may
/// block.
struct Handling {
  std::string_view pattern;                                         // of the route, for the log
  std::function<Response(Request&)> respond;                        // with the whole body
  std::function<Result<std::unique_ptr<BodySink>>(Request&)> open;  // or this: piece by piece
  bool shows_progress = false;  // if the client accepts application/x-ndjson
};
/// Runs on the I/O thread, so it must not block. May fill the request's captures.
using Router = std::function<std::variant<Handling, Response>(Request&)>;

/// Told of each answer as it goes out, also of what no handler was asked for (then the pattern is "-"), with
/// the time since the request's header was there. On the I/O thread.
using AnswerObserver =
    std::function<void(std::string_view pattern, int status, std::chrono::nanoseconds taken)>;

struct ServerLimits {
  std::size_t connections = 256;           // root's, and as many of all others
  std::size_t connections_per_user = 128;  // root is not held to it
  std::chrono::seconds idle{30};
  std::chrono::seconds idle_with_turn{5};    // taking nothing of an answer whose turn others wait for
  std::chrono::seconds sending_at_stop{10};  // of a whole answer, however slowly its client takes it
  std::size_t header_bytes = 16 * 1024;
  std::size_t body_bytes = 1024 * 1024;  // of bodies that are taken whole
};

/// HTTP/1.1 on a Unix stream socket. All sockets live on the I/O context's one thread; the work is done by
/// the pool. Beyond the limit of connections as many of root's wait until others of root's end (one that has
/// asked nothing for a second is closed for them); more of root's are refused, as those of others are.
class Server final {
 public:
  Server(boost::asio::io_context& io, WorkerPool& workers, ServerLimits limits, Router router,
         AnswerObserver answered);
  ~Server();

  /// Takes a listening socket. On the I/O thread, or before it runs.
  Result<void> serve(FileDescriptor listening);
  /// Closes what is idle or stalled, lets requests in hand end, and calls `stopped` when no connection is
  /// left or `timeout` is over. The listening socket is left as it is for who else holds it. On the I/O
  /// thread.
  void stop(std::chrono::seconds timeout, std::function<void()> stopped);

  std::size_t connections() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace okcvm::daemon
