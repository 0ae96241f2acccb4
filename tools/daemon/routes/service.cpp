#include "tools/daemon/routes/service.h"

#include <unistd.h>

#include <atomic>

#include "fusefs/session_mount.h"
#include "policy/iso_time.h"
#include "tools/daemon/routes/fields.h"
#include "tools/daemon/routes/handlers.h"
#include "tools/daemon/routes/views.h"

namespace okcvm::daemon::routes {
namespace {

std::string event_text(const Event& event) {
  return "event: " + event.type + "\ndata: " + event.data + "\n\n";
}

}  // namespace

Result<Response> show_health(Exchange& exchange) {
  if (auto ended = QueryFields(exchange.request.query).end(); !ended) return fail(ended.error());
  const auto& service = exchange.service;
  const auto& peer = exchange.request.peer;
  std::size_t total = 0, mounted = 0;
  for (const auto& session : service.sessions.list(peer, {})) {
    ++total;
    if (session->mount()) ++mounted;
  }
  Json affected = Json::array();
  for (const auto& entry : service.sessions.affected())
    if (peer.may_use(entry.owner))
      affected.push_back({{"id", entry.id.text()}, {"reason", entry.reason}, {"at", time_text(entry.at)}});
  const auto& config = service.sessions.config();
  const auto uptime = std::chrono::steady_clock::now() - service.started;
  Json view;
  view["status"] = affected.empty() ? "ok" : "degraded";
  view["version"] = OKCVM_VERSION;
  view["pid"] = ::getpid();
  view["started_at"] = time_text(service.started_at);
  view["uptime_seconds"] = std::chrono::duration_cast<std::chrono::seconds>(uptime).count();
  view["sessions"] = {{"total", total}, {"mounted", mounted}};
  view["snapshots"] = config.snapshots ? "on" : "off";
  view["passthrough"] = config.passthrough ? "auto" : "off";
  view["mount_root"] = config.mount_root.string();
  view["kept_by"] = service.kept_by();
  view["connections"] = service.connections();
  view["affected"] = std::move(affected);
  return json_response(view);
}

Result<Response> follow_events(Exchange& exchange) {
  QueryFields query(exchange.request.query);
  const auto wanted = query.text("session");
  if (auto ended = query.end(); !ended) return fail(ended.error());
  std::string only;
  if (wanted) {
    auto session = exchange.service.sessions.find(exchange.request.peer, *wanted);
    if (!session) return fail(session.error());
    only = (*session)->id().text();
  }
  const auto peer = exchange.request.peer;
  const auto dropped = std::make_shared<std::atomic<std::int64_t>>(0);
  const auto text_of_dropped = [=](std::int64_t missed) {
    if (missed == 0) return std::string();
    return event_text(EventHub::event_of("dropped", only, peer.uid, {EventHub::number("dropped", missed)}));
  };
  LiveBody body;
  body.keep_alive = [=] {
    auto text = text_of_dropped(dropped->exchange(0));
    return text.empty() ? ": keep-alive\n\n" : text;
  };
  body.start = [=, &events = exchange.service.events](const LiveBody::Send& send) {
    send(": okcvm events\n\n");
    return events.listen([=](const Event& event) {
      if (!peer.may_use(event.owner) || (!only.empty() && event.session != only)) return;
      const auto missed = dropped->exchange(0);
      if (!send(text_of_dropped(missed) + event_text(event))) dropped->fetch_add(missed + 1);
    });
  };
  Response response;
  response.content_type = "text/event-stream";
  response.body = std::move(body);
  return response;
}

}  // namespace okcvm::daemon::routes
