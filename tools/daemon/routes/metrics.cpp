#include "tools/daemon/routes/metrics.h"

#include <sys/statvfs.h>

#include <span>

#include "fusefs/session_mount.h"
#include "tools/daemon/routes/exposition.h"
#include "tools/daemon/routes/fields.h"
#include "tools/daemon/routes/handlers.h"

namespace okcvm::daemon {

void RequestMetrics::count(std::string_view route, int status, std::chrono::nanoseconds taken) {
  const MutexLock lock(mutex_);
  ++requests_[{route, status}];
  times_[route].add(taken);
}

void RequestMetrics::print(Exposition& out) const {
  const MutexLock lock(mutex_);
  out.metric("okcvm_control_requests_total", "counter", "Answered requests of the control socket.");
  for (const auto& [key, count] : requests_)
    out.sample(count, {{"route", key.first}, {"status", std::to_string(key.second)}});
  out.metric("okcvm_control_request_seconds", "histogram", "Time to answer.");
  for (const auto& [route, times] : times_) out.times(times, {{"route", route}});
}

namespace routes {
namespace {

std::string errno_text(int number) {
  const char* name = ::strerrorname_np(number);
  return name ? name : std::to_string(number);
}

void print_totals(Exposition& out, const MountTotals& totals) {
  out.gauge("okcvm_sessions_mounted", totals.mounted, "Sessions that are mounted.");
  out.gauge("okcvm_nodes", totals.nodes, "Inodes that the kernel knows, of all mounts.");
  out.gauge("okcvm_open_files", totals.open_files, "Open files, of all mounts.");
  out.counter("okcvm_denials_total", totals.denials, "Calls that a session's rules refused.");
  out.metric("okcvm_fuse_errors_total", "counter", "Calls that were answered with an error.");
  for (const auto& [number, count] : totals.errors) out.sample(count, {{"errno", errno_text(number)}});
  out.metric("okcvm_fuse_request_seconds", "histogram", "Time to answer a call, by FUSE operation.");
  for (const auto& [name, operation] : totals.operations) {
    std::uint64_t within = 0;
    double bound = 1e-6;
    for (const auto count : std::span(operation.latency).first(operation.latency.size() - 1)) {
      within += count;
      out.sample(within, {{"operation", name}, {"le", number_text(bound)}}, "_bucket");
      bound *= 2;
    }
    out.sample(operation.count, {{"operation", name}, {"le", "+Inf"}}, "_bucket");
    out.sample(static_cast<double>(operation.nanoseconds) / 1e9, {{"operation", name}}, "_sum");
    out.sample(operation.count, {{"operation", name}}, "_count");
  }
}

void print_work(Exposition& out, std::string_view what, std::string_view verb,
                const WorkMetrics::Work& work) {
  out.metric("okcvm_" + std::string(what) + "_seconds", "histogram", "Time to " + std::string(verb) + ".");
  out.times(work.times);
  out.metric("okcvm_" + std::string(what) + "_failures_total", "counter",
             "Failures to " + std::string(verb) + ", by error code.");
  for (const auto& [code, count] : work.refused) out.sample(count, {{"code", code}});
}

void print_figures(Exposition& out, const WorkMetrics::Figures& figures) {
  print_work(out, "session_create", "create and mount a session", figures.creations);
  print_work(out, "session_delete", "delete a session", figures.deletions);
  print_work(out, "snapshot", "take a snapshot", figures.snapshots);
  print_work(out, "restore", "restore a snapshot, or undo that", figures.restores);
  out.counter("okcvm_snapshot_bytes_total", figures.snapshot_bytes, "Bytes of files read for snapshots.");
  out.counter("okcvm_snapshot_entries_total", figures.snapshot_entries,
              "Files, directories and links read for snapshots.");
  out.counter("okcvm_snapshot_rescans_total", figures.rescans,
              "Snapshots that compared everything, as the record of changes had a gap.");
  out.counter("okcvm_restore_entries_total", figures.restored_entries, "Entries that restores changed.");
  out.counter("okcvm_received_bytes_total", figures.received_bytes,
              "Bytes of files taken over the control socket.");
}

/// What fills up: the file system that holds workspaces, snapshots and the registry.
void print_space(Exposition& out, const std::filesystem::path& state_dir) {
  struct statvfs space {};
  if (::statvfs(state_dir.c_str(), &space) != 0) return;
  out.gauge("okcvm_state_size_bytes", space.f_blocks * space.f_frsize,
            "Size of the file system of the state directory.");
  out.gauge("okcvm_state_free_bytes", space.f_bavail * space.f_frsize,
            "Free space in the file system of the state directory.");
  out.gauge("okcvm_state_free_inodes", space.f_favail, "Free inodes in it.");
}

/// The sessions used last, one by one, for who asks for that: their ids are their owners', and each makes new
/// series, so there are none unasked.
void print_sessions(Exposition& out, const std::vector<SessionPointer>& sessions) {
  struct Row {
    std::string id;
    fusefs::MountStatistics statistics;
    std::int64_t last_used;
  };
  std::vector<Row> rows;
  for (const auto& session : sessions) {
    const auto mount = session->mount();
    rows.push_back({session->id().text(), mount ? mount->statistics() : fusefs::MountStatistics(),
                    session->last_used()});
  }
  const auto print = [&](std::string_view name, std::string_view type, std::string_view help, auto value) {
    out.metric(name, type, help);
    for (const auto& row : rows) out.sample(value(row), {{"session", row.id}});
  };
  print("okcvm_session_requests_total", "counter", "Calls that a session's mount answered.",
        [](const Row& row) { return request_count(row.statistics); });
  print("okcvm_session_errors_total", "counter", "Of them with an error.",
        [](const Row& row) { return error_count(row.statistics); });
  print("okcvm_session_denials_total", "counter", "Of them refused by a session's rules.",
        [](const Row& row) { return row.statistics.denials; });
  print("okcvm_session_open_files", "gauge", "Open files of a session.",
        [](const Row& row) { return row.statistics.open_files; });
  print("okcvm_session_nodes", "gauge", "Inodes of a session that the kernel knows.",
        [](const Row& row) { return row.statistics.nodes; });
  print("okcvm_session_last_used_timestamp_seconds", "gauge", "When a session was last used.",
        [](const Row& row) { return static_cast<double>(row.last_used) / 1000; });
}

}  // namespace

Result<Response> show_metrics(Exchange& exchange) {
  QueryFields query(exchange.request.query);
  const auto most = query.integer("sessions", 0, 1000).value_or(0);
  if (auto ended = query.end(); !ended) return fail(ended.error());
  if (!exchange.request.peer.is_root())
    return fail(Code::kForbidden, "the metrics are of all users' sessions: only root may see them");
  auto& sessions = exchange.service.sessions;
  Exposition out;
  out.gauge("okcvm_sessions", sessions.count(), "Sessions that exist.");
  print_totals(out, sessions.mount_totals());
  print_figures(out, sessions.work().figures());
  print_space(out, sessions.config().state_dir);
  out.gauge("okcvm_connections", exchange.service.connections(), "Open control connections.");
  exchange.service.metrics.print(out);
  if (most > 0) {
    auto shown = sessions.list(exchange.request.peer, {});
    shown.resize(std::min(shown.size(), static_cast<std::size_t>(most)));
    print_sessions(out, shown);
  }
  Response response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = out.text();
  return response;
}

}  // namespace routes
}  // namespace okcvm::daemon
