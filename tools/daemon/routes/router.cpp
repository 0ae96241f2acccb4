#include "tools/daemon/routes/router.h"

#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "tools/daemon/http/uri.h"
#include "tools/daemon/routes/handlers.h"
#include "tools/daemon/routes/metrics.h"

namespace okcvm::daemon {
namespace {

using M = Method;

constexpr std::size_t kSmallBody = 64 << 10;  // parsed, JSON takes some ten times its size

constexpr std::array kRoutes{
    Route{M::kPost, "/v1/sessions", routes::create_session},
    Route{M::kGet, "/v1/sessions", routes::list_sessions},
    Route{M::kGet, "/v1/sessions/{id}", routes::show_session},
    Route{M::kDelete, "/v1/sessions/{exact}", routes::delete_session},
    Route{M::kPost, "/v1/sessions/{id}/mount", routes::mount_session},
    Route{M::kPost, "/v1/sessions/{id}/unmount", routes::unmount_session},
    Route{M::kPost, "/v1/sessions/{id}/reset", routes::reset_session},
    Route{M::kPost, "/v1/sessions/{id}/labels", routes::label_session},
    Route{M::kPost, "/v1/sessions/{id}/workdir", routes::switch_workdir},
    Route{M::kGet, "/v1/sessions/{id}/info", routes::session_info},
    Route{M::kGet, "/v1/skills", routes::list_skills},
    Route{M::kGet, "/v1/sessions/{id}/skills", routes::session_skills},
    Route{M::kPost, "/v1/sessions/{id}/skills", routes::load_skill},
    Route{M::kDelete, "/v1/sessions/{id}/skills/{name}", routes::unload_skill},
    Route{M::kGet, "/v1/sessions/{id}/files/{path*}", routes::get_file},
    Route{M::kPut, "/v1/sessions/{id}/files/{path*}", nullptr, routes::put_file},
    Route{M::kDelete, "/v1/sessions/{id}/files/{path*}", routes::delete_file},
    Route{M::kPost, "/v1/sessions/{id}/uploads", nullptr, routes::upload_file},
    Route{M::kPost, "/v1/sessions/{id}/resolve", routes::resolve_path},
    Route{M::kPost, "/v1/sessions/{id}/adapt-prompt", routes::adapt_session_prompt},
    Route{M::kPost, "/v1/sessions/{id}/snapshots", routes::take_snapshot, nullptr, true},
    Route{M::kGet, "/v1/sessions/{id}/snapshots", routes::list_snapshots},
    Route{M::kGet, "/v1/sessions/{id}/snapshots/{snapshot}", routes::show_snapshot},
    Route{M::kGet, "/v1/sessions/{id}/diff", routes::diff_snapshots, nullptr, true},
    Route{M::kPost, "/v1/sessions/{id}/restore", routes::restore_snapshot, nullptr, true},
    Route{M::kPost, "/v1/sessions/{id}/undo", routes::undo_restore, nullptr, true},
    Route{M::kPost, "/v1/sessions/{id}/fork", routes::fork_session, nullptr, true},
    Route{M::kGet, "/v1/sessions/{id}/verify", routes::verify_snapshot, nullptr, true},
    Route{M::kPost, "/v1/sessions/{id}/checkpoints", routes::save_checkpoint},
    Route{M::kGet, "/v1/sessions/{id}/checkpoints", routes::list_checkpoints},
    Route{M::kGet, "/v1/sessions/{id}/checkpoints/{checkpoint}", routes::load_checkpoint},
    Route{M::kPost, "/v1/sessions/{id}/checkpoints/{checkpoint}/restore", routes::restore_checkpoint, nullptr,
          true},
    Route{M::kGet, "/v1/agents", routes::list_agents},
    Route{M::kGet, "/v1/agents/{agent}", routes::show_agent},
    Route{M::kGet, "/v1/workdirs", routes::list_workdirs},
    Route{M::kPost, "/v1/clean", routes::clean_sessions, nullptr, true},
    Route{M::kGet, "/v1/health", routes::show_health},
    Route{M::kGet, "/metrics", routes::show_metrics},
    Route{M::kGet, "/v1/events", routes::follow_events},
    Route{M::kGet, "/api/session/workspace/snapshots", routes::seed_list_snapshots, nullptr, false,
          ErrorStyle::kSeed},
    Route{M::kPost, "/api/session/workspace/snapshots", routes::seed_take_snapshot, nullptr, false,
          ErrorStyle::kSeed},
    Route{M::kPost, "/api/session/workspace/restore", routes::seed_restore, nullptr, false,
          ErrorStyle::kSeed},
};

std::string_view take_component(std::string_view& rest) {
  const auto part = rest.substr(0, rest.find('/'));
  rest.remove_prefix(std::min(part.size() + 1, rest.size()));
  return part;
}

using Captures = std::map<std::string, std::string, std::less<>>;

/// Whether a path, still encoded, fits a pattern; what its names stand for goes to `captures`, still encoded.
bool fits(std::string_view pattern, std::string_view path, Captures& captures) {
  captures.clear();
  pattern.remove_prefix(1);
  path.remove_prefix(1);
  bool path_ended = false;
  while (!pattern.empty()) {
    const auto expected = take_component(pattern);
    if (expected == "{path*}") {
      captures["path"] = path;
      return true;
    }
    if (path_ended) return false;
    const bool is_last = path.find('/') == path.npos;
    const auto part = take_component(path);
    path_ended = is_last;
    if (part.empty()) return false;
    if (!expected.starts_with('{')) {
      if (part != expected) return false;
    } else {
      captures[std::string(expected.substr(1, expected.size() - 2))] = part;
    }
  }
  return path_ended;
}

std::string_view name_of(Method method) {
  constexpr std::array<std::string_view, 4> kNames{"GET", "POST", "PUT", "DELETE"};
  return kNames[static_cast<std::size_t>(method)];
}

/// The session that a request names, checked against its peer; none where the pattern has none.
Result<SessionPointer> session_of(Service& service, const Route& route, Request& request) {
  std::string name;
  if (const auto id = request.captures.find("id"); id != request.captures.end()) {
    name = id->second;
  } else if (route.errors == ErrorStyle::kSeed) {
    const auto given = request.query.find("session");
    if (given == request.query.end()) return fail(Code::kInvalidRequest, "?session: it is missing");
    name = given->second;
    request.query.erase(given);
  } else {
    return SessionPointer();
  }
  auto session = service.sessions.find(request.peer, name);
  if (session) {
    (*session)->touch();
    request.captures["id"] = (*session)->id().text();
  }
  return session;
}

/// The seeds' service makes every error of a workspace a 400.
Response refusal(const Route& route, const Error& error, const Request& request) {
  const bool is_about_access = error.code == Code::kNotFound || error.code == Code::kForbidden;
  return error_response(error, request, route.errors == ErrorStyle::kSeed && !is_about_access ? 400 : 0);
}

/// Counts the bytes that come in.
class CountedSink final : public BodySink {
 public:
  CountedSink(WorkMetrics& work, std::unique_ptr<BodySink> inner) : work_(work), inner_(std::move(inner)) {}

  Result<void> write(std::string_view bytes) override {
    auto written = inner_->write(bytes);
    if (written) work_.received(bytes.size());
    return written;
  }
  Result<Response> finish() override { return inner_->finish(); }

 private:
  WorkMetrics& work_;
  const std::unique_ptr<BodySink> inner_;
};

Result<std::unique_ptr<BodySink>> open_sink(Service& service, const Route& route, Request& request) {
  auto session = session_of(service, route, request);
  if (!session) return fail(session.error());
  Exchange exchange{service, request, std::move(*session)};
  return route.open(exchange);
}

Handling handling_of(Service& service, const Route& route) {
  Handling handling;
  handling.pattern = route.pattern;
  handling.shows_progress = route.shows_progress;
  if (route.open) {
    handling.open = [&service, &route](Request& request) -> Result<std::unique_ptr<BodySink>> {
      auto opened = open_sink(service, route, request);
      if (!opened) return opened;
      return std::make_unique<CountedSink>(service.sessions.work(), std::move(*opened));
    };
    return handling;
  }
  handling.respond = [&service, &route](Request& request) {
    auto session = session_of(service, route, request);
    auto answered = [&]() -> Result<Response> {
      if (!session) return fail(session.error());
      if (*session)
        request.progress = [session = *session, tell = std::move(request.progress)](
                               std::string_view phase, std::uint64_t done, std::uint64_t total) {
          return tell(phase, done, total) && !session->gate().is_ending();
        };
      Exchange exchange{service, request, std::move(*session)};
      if (request.body.size() > kSmallBody)
        if (auto turn = exchange.take_turn(service.documents); !turn) return fail(turn.error());
      return route.respond(exchange);
    }();
    return answered ? std::move(*answered) : refusal(route, answered.error(), request);
  };
  return handling;
}

}  // namespace

std::span<const Route> route_table() {
  return kRoutes;
}

namespace {

/// What is answered where no route was found; `allowed` are the methods that the path has.
Response no_route(const Request& request, std::string allowed) {
  if (allowed.empty())
    return error_response(Error::of(Code::kNotFound, "there is no such route: see okcvmd(8)"), request);
  auto response =
      error_response(Error::of(Code::kInvalidRequest, "this route serves " + allowed), request, 405);
  if (allowed.find("GET") != allowed.npos) allowed += ", HEAD";
  response.headers.emplace_back("Allow", std::move(allowed));
  return response;
}

}  // namespace

Router make_router(Service& service) {
  return [&service](Request& request) -> std::variant<Handling, Response> {
    std::string allowed;
    Captures captures;
    for (const auto& route : kRoutes) {
      if (!fits(route.pattern, request.path, captures)) continue;
      if (route.method != request.method) {
        if (allowed.find(name_of(route.method)) == allowed.npos)
          allowed.append(allowed.empty() ? "" : ", ").append(name_of(route.method));
        continue;
      }
      for (auto& [name, value] : captures) {
        auto decoded = percent_decoded(value);
        if (!decoded) return error_response(decoded.error(), request);
        value = std::move(*decoded);
      }
      request.captures = std::move(captures);
      return handling_of(service, route);
    }
    return no_route(request, std::move(allowed));
  };
}

}  // namespace okcvm::daemon
