#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "policy/error.h"
#include "policy/file_descriptor.h"
#include "tools/daemon/sessions/peer.h"

namespace okcvm::daemon {

/// kOther: one that no route serves, for which the router still knows what is allowed.
enum class Method : std::uint8_t { kGet, kPost, kPut, kDelete, kOther };

/// Told now and then during long work; false asks to stop: the client that reads it is gone, the session is
/// to be deleted, or the daemon has to end.
using ProgressSink = std::function<bool(std::string_view phase, std::uint64_t done, std::uint64_t total)>;

/// One of the few places a user has for requests with large answers. It is given back when this goes.
class HeldTurn {
 public:
  virtual ~HeldTurn() = default;
  /// Whether another request waits for it. From any thread.
  virtual bool is_wanted() const = 0;
};

/// A request as a route sees it: parsed, bounded and decoded.
struct Request {
  std::string id;  // of the request, for the log
  Method method = Method::kGet;
  bool is_head = false;
  std::string path;                                          // still percent-encoded, without the query
  std::map<std::string, std::string, std::less<>> query;     // decoded
  std::map<std::string, std::string, std::less<>> headers;   // names in lower case
  std::map<std::string, std::string, std::less<>> captures;  // the pattern's {names}, decoded
  std::string body;                                          // of routes that take it whole
  std::optional<std::uint64_t> body_size;                    // announced, if it was
  Peer peer;
  ProgressSink progress;           // never empty
  std::shared_ptr<HeldTurn> turn;  // Turns::take(); kept as long as a large answer is in memory

  std::string_view header(std::string_view name) const;
  /// `progress` for work that has none to tell.
  std::function<bool()> goes_on() const {
    return [progress = progress] { return progress({}, 0, 0); };
  }
};

/// A part of an open file, sent as it is read.
struct FileBody {
  FileDescriptor file;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
};

/// A stream without an end: `start` is given a function that takes text to send (from any thread; false: the
/// client reads too slowly, the text was dropped), and answers a handle that is dropped when the client is
/// gone.
struct LiveBody {
  using Send = std::function<bool(std::string)>;
  std::function<std::shared_ptr<void>(Send)> start;
  std::function<std::string()> keep_alive;  // what to send now and then as a sign of life
};

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;
  std::variant<std::string, FileBody, LiveBody> body;
};

/// Takes a body that is too large to hold, piece by piece. The calls come one after the other, from changing
/// threads. Dropped before finish(), it leaves nothing behind.
class BodySink {
 public:
  virtual ~BodySink() = default;
  virtual Result<void> write(std::string_view bytes) = 0;
  virtual Result<Response> finish() = 0;
};

/// Where the routes of the older API begin.
inline constexpr std::string_view kOlderRoutes = "/api/";

/// The answer to `request`: {"error": {...}} with the error's own status (its code's; errno ECANCELED 412,
/// EFBIG 413), or with `status` if it is not 0. Clients of the older API read `detail`, which stands beside
/// it.
Response error_response(const Error& error, const Request& request, int status = 0);

}  // namespace okcvm::daemon
