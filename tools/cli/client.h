#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/cli/outcome.h"

namespace okcvm::cli {

struct Response {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;

  std::string header(const std::string& lower_case_name) const;
};

/// One request. The body is `body`, or, where `source` is set, what that descriptor gives: as long as
/// `source_size` says, or chunked until its end where that is not known.
struct Request {
  std::string method = "GET";
  std::string target;
  std::string body;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;
  int source = -1;
  std::optional<std::uint64_t> source_size;
  std::string source_name;                                  // for messages: "report.pdf"
  std::function<void(std::uint64_t bytes)> sent;            // told how much of the body has been sent
  std::function<Outcome<void>(const Response&)> on_header;  // sees a good answer before its body
  std::chrono::milliseconds timeout{0};  // longest wait for a byte; 0: for as long as it takes
};

/// What an answer that is an error says: the daemon's own code and message, with the path that they are
/// about.
Failure refusal_in(const std::string& body, int status);

/// Takes a piece of an answer's body as it arrives; a failure ends the request with that failure.
using Sink = std::function<Outcome<void>(std::string_view piece)>;

/// Speaks HTTP/1.1 to the daemon, one connection a request. Not thread-safe.
class Client {
 public:
  explicit Client(std::string socket_path) : socket_path_(std::move(socket_path)) {}

  const std::string& socket_path() const { return socket_path_; }

  /// The answer, if its status is below 400. Otherwise the daemon's own code and message. `not_found` when no
  /// daemon listens, `forbidden` when the socket may not be opened, `internal` when the connection breaks,
  /// `busy` when the daemon does not answer within the request's timeout.
  Outcome<Response> send(const Request& request) const;
  /// The same, with the body of a good answer given to `sink` piece by piece (its `body` stays empty).
  Outcome<Response> send(const Request& request, const Sink& sink) const;

 private:
  std::string socket_path_;
};

}  // namespace okcvm::cli
