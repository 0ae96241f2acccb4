#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <map>
#include <thread>

#include "tools/cli/event_stream.h"
#include "tools/cli/handlers.h"
#include "tools/cli/host_checks.h"
#include "tools/cli/text.h"

namespace okcvm::cli::run {

namespace {

constexpr std::chrono::milliseconds kHealthTimeout{3000};
constexpr std::size_t kRowsOfTop = 20;
constexpr const char* kAllSessions = "10000";  // as many as the daemon lists at once
constexpr std::uint64_t kHour = 3600;
constexpr std::uint64_t kDay = 24 * kHour;

Outcome<Json> ask_health(const Context& context) {
  Request request;
  request.target = "/v1/health";
  request.timeout = kHealthTimeout;
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
  if (context.json()) {
    const auto text = event.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    return context.print(context.out().is_terminal() ? visible_json(text) : text);
  }
  std::string type = text_in(event, "type");
  type.resize(std::max<std::size_t>(type.size(), 9), ' ');
  return context.print(visible(local_time(text_in(event, "at")) + "  " + type + " " +
                               text_in(event, "session") + "  " + details_of(event)) +
                       "\n");
}

/// What was known of a session at the look before.
struct Load {
  std::uint64_t requests = 0;
  std::chrono::steady_clock::time_point at;
};
using Loads = std::map<std::string, Load>;

/// One look: a row a session with its use now and, if it was there at the look before, the rate since then.
/// Busiest first. It costs the daemon one request, which touches no workspace.
Outcome<Json> look(const Context& context, std::size_t limit, Loads& before) {
  const auto answer = context.get("/v1/sessions" + query({{"counters", "true"}, {"limit", kAllSessions}}));
  if (!answer) return tl::unexpected(answer.error());
  const auto at = std::chrono::steady_clock::now();
  std::vector<Json> rows;
  Loads loads;
  for (const auto& session : list_in(*answer, "sessions")) {
    const auto id = text_in(session, "id");
    Json row{{"id", id},
             {"state", member_in(session, "state")},
             {"owner", member_in(session, "owner")},
             {"requests_per_second", nullptr}};
    if (const auto& counters = member_in(session, "counters"); counters.is_object()) row.update(counters);
    row["last_used_at"] = member_in(session, "last_used_at");
    const Load now{number_in(row, "requests"), at};
    if (const auto last = before.find(id); last != before.end() && now.requests >= last->second.requests) {
      const std::chrono::duration<double> passed = at - last->second.at;
      const auto more = static_cast<double>(now.requests - last->second.requests);
      row["requests_per_second"] = std::round(more / std::max(passed.count(), 0.001) * 10) / 10;
    }
    loads[id] = now;
    rows.push_back(std::move(row));
  }
  before = std::move(loads);
  const auto rate = [](const Json& row) {
    const auto& value = member_in(row, "requests_per_second");
    return value.is_number() ? value.get<double>() : 0;
  };
  std::stable_sort(rows.begin(), rows.end(), [&](const Json& a, const Json& b) { return rate(a) > rate(b); });
  if (rows.size() > limit) rows.resize(limit);
  return Json(std::move(rows));
}

std::string top_table(const Json& rows) {
  Table table({"SESSION", "STATE", "OWNER", ">REQ/S", ">REQUESTS", ">ERRORS", ">DENIALS", ">OPEN", ">INODES",
               "LAST USED"});
  for (const auto& row : rows) {
    const auto& rate = member_in(row, "requests_per_second");
    table.row({text_in(row, "id"), text_in(row, "state"), owner_text(row),
               rate.is_number() ? std::to_string(std::llround(rate.get<double>())) : "-",
               std::to_string(number_in(row, "requests")), std::to_string(number_in(row, "errors")),
               std::to_string(number_in(row, "denials")), std::to_string(number_in(row, "open_files")),
               std::to_string(number_in(row, "nodes")),
               age(text_in(row, "last_used_at"), std::time(nullptr))});
  }
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
  bool is_over = false;  // enough was printed, or nothing more can be
  for (;;) {
    bool was_heard = false;
    EventStream stream([&](const std::string& data) -> Outcome<void> {
      if (is_over) return {};
      auto printed = print_event(context, data);
      is_over = !printed || (most && --left == 0);
      return printed;
    });
    const auto response = context.client().send(request, [&](std::string_view piece) -> Outcome<void> {
      was_heard = true;
      if (auto taken = stream.take(piece); !taken) return taken;
      if (!is_over) return {};
      return tl::unexpected(Failure{"", "", kDone, true});  // ends the request, not the work
    });
    if (response) return refuse("busy", "the daemon ended the stream: it is stopping or being replaced");
    if (is_over && response.error().status == kDone) return {};
    if (is_over || !was_heard) return tl::unexpected(response.error());
    context.note("the connection broke: reconnecting; events in between may be missing");
  }
}

Outcome<void> top(Context& context) {
  const auto count = context.args().option("count");
  const std::chrono::seconds interval(
      std::max(std::stol(context.args().option("interval").value_or("2")), 1L));
  const auto limit = std::stoul(context.args().option("limit").value_or(std::to_string(kRowsOfTop)));
  const bool is_live = context.out().is_terminal() && !context.json() && !is_dumb_terminal();
  const bool forever = !count && context.out().is_terminal();
  const long tables = count ? std::stol(*count) : 1;
  Loads before;
  // A rate needs two looks. Who watches a terminal sees the first at once, without rates.
  if (!is_live && tables > 0) {
    if (const auto first = look(context, limit, before); !first) return tl::unexpected(first.error());
    std::this_thread::sleep_for(interval);
  }
  for (long shown = 0; forever || shown < tables; ++shown) {
    if (shown > 0) std::this_thread::sleep_for(interval);
    const auto rows = look(context, limit, before);
    if (!rows) return tl::unexpected(rows.error());
    auto printed = context.json() ? context.print_json(Json{{"sessions", *rows}})
                                  : context.print((is_live ? "\x1b[H\x1b[2J" : "") + top_table(*rows));
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
                                 " marked fail " + (failures == 1 ? "is" : "are") + " fixed");
}

}  // namespace okcvm::cli::run
