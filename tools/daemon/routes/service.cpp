#include "tools/daemon/routes/service.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <map>
#include <sstream>

#include "fusefs/session_mount.h"
#include "tools/daemon/host/clock.h"
#include "tools/daemon/routes/fields.h"
#include "tools/daemon/routes/handlers.h"
#include "tools/daemon/routes/metrics.h"
#include "tools/daemon/routes/views.h"

namespace okcvm::daemon::routes {
namespace {

/// What all mounts did together. Sessions are not told apart: their number has no bound, and their ids are
/// their owners'.
struct MountTotals {
  struct Operation {
    std::uint64_t count = 0;
    std::uint64_t nanoseconds = 0;
    std::array<std::uint64_t, 24> latency{};
  };
  std::map<std::string_view, Operation> operations;
  std::map<int, std::uint64_t> errors;
  std::uint64_t sessions = 0, mounted = 0, denials = 0, nodes = 0, open_files = 0;

  void add(const fusefs::MountStatistics& statistics) {
    ++mounted;
    denials += statistics.denials;
    nodes += statistics.nodes;
    open_files += statistics.open_files;
    for (const auto& [number, count] : statistics.errors) errors[number] += count;
    for (const auto& operation : statistics.operations) {
      auto& total = operations[operation.name];
      total.count += operation.count;
      total.nanoseconds += operation.nanoseconds;
      for (std::size_t i = 0; i < total.latency.size(); ++i) total.latency[i] += operation.latency[i];
    }
  }
};

void head(std::ostream& out, std::string_view name, std::string_view type, std::string_view help) {
  out << "# HELP " << name << " " << help << "\n# TYPE " << name << " " << type << "\n";
}

void gauge(std::ostream& out, std::string_view name, std::uint64_t value, std::string_view help) {
  head(out, name, "gauge", help);
  out << name << " " << value << "\n";
}

void print_totals(std::ostream& out, const MountTotals& totals) {
  gauge(out, "okcvm_sessions", totals.sessions, "Sessions that exist.");
  gauge(out, "okcvm_sessions_mounted", totals.mounted, "Sessions that are mounted.");
  gauge(out, "okcvm_nodes", totals.nodes, "Inodes that the kernel knows, of all mounts.");
  gauge(out, "okcvm_open_files", totals.open_files, "Open files, of all mounts.");
  head(out, "okcvm_denials_total", "counter",
       "Calls that a session's rules refused, of the mounts there are.");
  out << "okcvm_denials_total " << totals.denials << "\n";
  head(out, "okcvm_fuse_errors_total", "counter", "Calls that were answered with an error.");
  for (const auto& [number, count] : totals.errors) {
    const char* name = ::strerrorname_np(number);
    out << "okcvm_fuse_errors_total{errno=\"" << (name ? name : "?") << "\"} " << count << "\n";
  }
  head(out, "okcvm_fuse_request_seconds", "histogram", "Time to answer a call, by FUSE operation.");
  for (const auto& [name, operation] : totals.operations) {
    std::uint64_t within = 0;
    double bound = 1e-6;
    for (const auto count : operation.latency) {
      within += count;
      out << "okcvm_fuse_request_seconds_bucket{operation=\"" << name << "\",le=\"" << bound << "\"} "
          << within << "\n";
      bound *= 2;
    }
    out << "okcvm_fuse_request_seconds_bucket{operation=\"" << name << "\",le=\"+Inf\"} " << operation.count
        << "\n"
        << "okcvm_fuse_request_seconds_sum{operation=\"" << name << "\"} "
        << static_cast<double>(operation.nanoseconds) / 1e9 << "\n"
        << "okcvm_fuse_request_seconds_count{operation=\"" << name << "\"} " << operation.count << "\n";
  }
}

std::string event_text(const Event& event) {
  return "id: " + std::to_string(event.number) + "\nevent: " + event.type + "\ndata: " + event.data + "\n\n";
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
  view["kept_by"] = service.kept_by;
  view["connections"] = service.connections();
  view["affected"] = std::move(affected);
  return json_response(view);
}

Result<Response> show_metrics(Exchange& exchange) {
  if (auto ended = QueryFields(exchange.request.query).end(); !ended) return fail(ended.error());
  const Peer everybody;  // root's view: the totals name no session
  MountTotals totals;
  for (const auto& session : exchange.service.sessions.list(everybody, {})) {
    ++totals.sessions;
    if (const auto mount = session->mount()) totals.add(mount->statistics());
  }
  std::ostringstream out;
  print_totals(out, totals);
  gauge(out, "okcvm_connections", exchange.service.connections(), "Open control connections.");
  out << exchange.service.metrics.text();
  Response response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = out.str();
  return response;
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
  LiveBody body;
  body.keep_alive = ": keep-alive\n\n";
  body.start = [&events = exchange.service.events, peer = exchange.request.peer, only](LiveBody::Send send) {
    send(": okcvm events\n\n");
    auto dropped = std::make_shared<std::atomic<std::int64_t>>(0);
    return events.listen([peer, only, send, dropped](const Event& event) {
      if (!peer.may_use(event.owner) || (!only.empty() && event.session != only)) return;
      if (const auto missed = dropped->exchange(0); missed > 0)
        if (!send("event: dropped\ndata: {\"dropped\":" + std::to_string(missed) + "}\n\n"))
          dropped->fetch_add(missed);
      if (!send(event_text(event))) dropped->fetch_add(1);
    });
  };
  Response response;
  response.content_type = "text/event-stream";
  response.body = std::move(body);
  return response;
}

}  // namespace okcvm::daemon::routes
