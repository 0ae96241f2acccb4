#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "tools/daemon/http/message.h"
#include "tools/daemon/routes/turns.h"
#include "tools/daemon/sessions/sessions.h"

namespace okcvm::daemon {

/// Counts answered requests, for /metrics. Thread-safe.
class RequestMetrics;

/// All that the routes work with. Outlives the server.
struct Service {
  Sessions& sessions;
  EventHub& events;
  RequestMetrics& metrics;
  std::int64_t session_ttl_days = 7;
  std::uint64_t max_upload_bytes = 0;
  std::function<std::string()> kept_by;  // "systemd", "keeper" or "nobody"
  timespec started_at{};
  std::chrono::steady_clock::time_point started{};
  std::function<std::size_t()> connections;
  Turns documents{};  // large JSON, as bodies and checkpoints
  Turns listings{};   // of directories, and what differs between snapshots
  // These wait for what others do with the session's snapshots.
  Turns live_comparisons{true};  // may read whole workspaces
  Turns verifications{true};     // read whole repositories
};

/// A request on its way through a route. `session` is set where the pattern has {id}; the peer may use it,
/// and a share of its gate is NOT held: handlers take it for as long as they touch the mount.
struct Exchange {
  Service& service;
  Request& request;
  SessionPointer session;

  /// Waits for one of the user's turns, as Turns::take(); who asked sees that. It ends once the answer is
  /// sent, is made and small, or when the next one is asked for: who waits for a turn holds none that others
  /// wait for.
  Result<void> take_turn(Turns& turns) {
    request.turn.reset();
    auto turn = turns.take(request.peer.uid, session ? session->id().text() : std::string(), [this] {
      return request.progress("waiting for other requests of this user", 0, 0);
    });
    if (!turn) return fail(turn.error());
    request.turn = std::move(*turn);
    return {};
  }
};

}  // namespace okcvm::daemon
