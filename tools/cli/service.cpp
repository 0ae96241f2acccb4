#include <unistd.h>

#include <cstring>
#include <ctime>
#include <map>
#include <thread>

#include "tools/cli/event_stream.h"
#include "tools/cli/handlers.h"
#include "tools/cli/host_checks.h"
#include "tools/cli/text.h"

namespace okcvm::cli::run {

namespace {

constexpr std::chrono::milliseconds kHealthPatience{3000};
constexpr std::size_t kRowsOfTop = 20;
constexpr std::uint64_t kHour = 3600;
constexpr std::uint64_t kDay = 24 * kHour;

Outcome<Json> ask_health(const Context& context) {
  Request request;
  request.target = "/v1/health";
  request.patience = kHealthPatience;
  return context.send(request);
}

std::string long_time(std::uint64_t seconds) {
  if (seconds < 120) return std::to_string(seconds) + " s";
  if (seconds < 2 * kHour) return std::to_string(seconds / 60) + " min";
  if (seconds < 2 * kDay) return std::to_string(seconds / kHour) + " h";
  return std::to_string(seconds / kDay) + " days";
}

/// An event's own fields, after those that every event has: "label=first milliseconds=12".
std::string details_of(const Json& event) {
  std::string text;
  if (!event.is_object()) return text;
  for (const auto& [key, value] : event.items()) {
    if (key == "type" || key == "session" || key == "at") continue;
    text +=
        (text.empty() ? "" : " ") + key + "=" + (value.is_string() ? value.get<std::string>() : value.dump());
  }
  return text;
}

Outcome<void> print_event(const Context& context, const std::string& data) {
  const auto event = Json::parse(data, nullptr, false);
  if (event.is_discarded()) return {};
  if (context.json()) return context.print(event.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  std::string type = text_in(event, "type");
  type.resize(std::max<std::size_t>(type.size(), 9), ' ');
  return context.print(visible(local_time(text_in(event, "at")) + "  " + type + " " +
                               text_in(event, "session") + "  " + details_of(event)) +
                       "\n");
}

struct Load {
  std::uint64_t requests = 0;
  std::chrono::steady_clock::time_point at;
};

std::uint64_t total_requests(const Json& info) {
  std::uint64_t total = 0;
  const auto& requests = member_in(info, "requests");
  if (requests.is_object())
    for (const auto& [opcode, count] : requests.items())
      if (count.is_number()) total += count.get<std::uint64_t>();
  return total;
}

/// One look: a row a session with its use now and the rate since the look before.
Outcome<Json> look(const Context& context, const std::string& limit, std::map<std::string, Load>& before) {
  const auto sessions = context.get("/v1/sessions" + query({{"limit", limit}}));
  if (!sessions) return tl::unexpected(sessions.error());
  Json rows = Json::array();
  for (const auto& session : list_in(*sessions, "sessions")) {
    const auto id = text_in(session, "id");
    auto info = context.get(session_target(id, "/info"));
    if (!info) continue;  // deleted meanwhile
    const Load now{total_requests(*info), std::chrono::steady_clock::now()};
    const auto last = before.find(id);
    Json row = std::move(*info);
    row["requests_per_second"] = 0;
    if (last != before.end() && now.requests >= last->second.requests) {
      const std::chrono::duration<double> passed = now.at - last->second.at;
      row["requests_per_second"] = static_cast<std::uint64_t>(
          static_cast<double>(now.requests - last->second.requests) / passed.count());
    }
    before[id] = now;
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string top_table(const Json& rows) {
  Table table({"SESSION", "STATE", ">REQ/S", ">REQUESTS", ">OPEN", ">INODES", ">DENIALS", ">FILES", ">SIZE",
               "LAST USED"});
  for (const auto& row : rows)
    table.row({text_in(row, "id"), text_in(row, "state"),
               std::to_string(number_in(row, "requests_per_second")), std::to_string(total_requests(row)),
               std::to_string(number_in(row, "open_files")), std::to_string(number_in(row, "nodes")),
               std::to_string(number_in(row, "denials")), std::to_string(number_in(row, "files")),
               human_size(number_in(row, "bytes")), age(text_in(row, "last_used_at"), std::time(nullptr))});
  return table.text();
}

Finding daemon_finding(const Outcome<Json>& health, const std::string& socket) {
  if (health)
    return {
        text_in(*health, "status") == "ok" ? Level::kOk : Level::kWarn, "daemon",
        "okcvmd " + text_in(*health, "version") + " (pid " + std::to_string(number_in(*health, "pid")) +
            ") answers on " + socket + ", status " + text_in(*health, "status"),
        text_in(*health, "status") == "ok" ? "" : "see 'okcvm status' and its log (journalctl -u okcvmd)"};
  const bool absent = health.error().code == "not_found";
  return {absent ? Level::kWarn : Level::kFail, "daemon", health.error().message,
          absent ? "systemctl start okcvmd, or run okcvmd as root" : "see its log (journalctl -u okcvmd)"};
}

}  // namespace

Outcome<void> status(Context& context) {
  const auto health = ask_health(context);
  if (!health) return tl::unexpected(health.error());
  if (context.json()) return context.print_json(*health);
  const auto& sessions = member_in(*health, "sessions");
  std::string text = "okcvmd " + text_in(*health, "version") + ": " + text_in(*health, "status") + "\n" +
                     "pid          " + std::to_string(number_in(*health, "pid")) + ", up " +
                     long_time(number_in(*health, "uptime_seconds")) + "\n" + "sessions     " +
                     std::to_string(number_in(sessions, "total")) + ", of them mounted " +
                     std::to_string(number_in(sessions, "mounted")) + "\n" + "mount root   " +
                     text_in(*health, "mount_root") + "\n" + "snapshots    " + text_in(*health, "snapshots") +
                     "\n" + "passthrough  " + text_in(*health, "passthrough") + "\n" + "kept by      " +
                     text_in(*health, "kept_by") + "\n";
  for (const auto& affected : list_in(*health, "affected"))
    text += "affected     " + text_in(affected, "id") + ": " + text_in(affected, "reason") + "\n";
  return context.print(visible(text, true));
}

Outcome<void> events(Context& context) {
  Request request;
  request.target = "/v1/events" + query({{"session", context.args().argument("ID")}});
  const auto most = context.args().option("count");
  std::uint64_t left = most ? std::stoull(*most) : 0;
  bool enough = most && left == 0;
  if (enough) return {};
  EventStream stream([&](const std::string& data) -> Outcome<void> {
    if (enough) return {};
    auto printed = print_event(context, data);
    enough = most && --left == 0;
    return printed;
  });
  const auto response = context.client().send(request, [&](std::string_view piece) -> Outcome<void> {
    if (auto taken = stream.take(piece); !taken) return taken;
    if (!enough) return {};
    return tl::unexpected(Failure{"", "", kDone, true});  // ends the request, not the work
  });
  if (response) return refuse("busy", "the daemon ended the stream: it is stopping, or the session is gone");
  if (enough) return {};
  return tl::unexpected(response.error());
}

Outcome<void> top(Context& context) {
  const auto count = context.args().option("count");
  const long interval = std::stol(context.args().option("interval").value_or("2"));
  const auto limit = context.args().option("limit").value_or(std::to_string(kRowsOfTop));
  const bool forever = !count && context.out().is_terminal();
  const long looks = count ? std::stol(*count) : 1;
  std::map<std::string, Load> before;
  for (long i = 0; forever || i < looks; ++i) {
    if (i > 0) std::this_thread::sleep_for(std::chrono::seconds(std::max(interval, 1L)));
    const auto rows = look(context, limit, before);
    if (!rows) return tl::unexpected(rows.error());
    const bool redraw = context.out().is_terminal() && !context.json();
    auto printed = context.json() ? context.print_json(Json{{"sessions", *rows}})
                                  : context.print((redraw ? "\x1b[H\x1b[2J" : "") + top_table(*rows));
    if (!printed) return printed;
  }
  return {};
}

Outcome<void> doctor(Context& context) {
  const auto health = ask_health(context);
  HostLayout layout;
  layout.daemon_answers = health.has_value();
  layout.state_dir = context.args().option("state-dir").value_or("/var/lib/okcvm");
  const std::string known_root = health ? text_in(*health, "mount_root") : std::string();
  layout.mount_root = context.args().option("mount-root").value_or(known_root.empty() ? "/mnt" : known_root);

  auto findings = check_host(layout);
  findings.push_back(daemon_finding(health, context.client().socket_path()));
  std::size_t failures = 0;
  std::string text;
  Json rows = Json::array();
  for (const auto& finding : findings) {
    failures += finding.level == Level::kFail;
    rows.push_back({{"level", name_of(finding.level)},
                    {"check", finding.check},
                    {"text", finding.text},
                    {"remedy", finding.remedy}});
    std::string level(name_of(finding.level));
    level.resize(5, ' ');
    text += level + visible(finding.text) + "\n";
    if (!finding.remedy.empty()) text += wrapped("-> " + visible(finding.remedy), 5, 100);
  }
  auto printed = context.json() ? context.print_json(Json{{"ok", failures == 0}, {"findings", rows}})
                                : context.print(text);
  if (!printed || failures == 0) return printed;
  return refuse("forbidden", "okcvmd cannot work on this host until " + count_of(failures, "finding") +
                                 " marked fail " + (failures == 1 ? "is" : "are") + " mended");
}

}  // namespace okcvm::cli::run
