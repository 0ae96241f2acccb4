#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "policy/error.h"
#include "tools/daemon/http/server.h"
#include "tools/daemon/routes/service.h"

namespace okcvm::daemon {

using RespondHandler = Result<Response> (*)(Exchange&);
using StreamHandler = Result<std::unique_ptr<BodySink>> (*)(Exchange&);

/// How a route words its errors.
enum class ErrorStyle : std::uint8_t { kOwn, kSeed };

/// One route. Patterns: "{name}" is one component, "{path*}" the rest. A route with {id} is given the session
/// of that id or unique prefix, and only if the peer may use it; one with ?session= likewise.
struct Route {
  Method method;
  std::string_view pattern;
  RespondHandler respond = nullptr;
  StreamHandler open = nullptr;  // instead, for bodies that are streamed
  bool shows_progress = false;
  ErrorStyle errors = ErrorStyle::kOwn;
};
/// Every route of the control socket; the table is what the OpenAPI file is held against.
std::span<const Route> route_table();

/// The router over the table. `service` must outlive it.
Router make_router(Service& service);

}  // namespace okcvm::daemon
