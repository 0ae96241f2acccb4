#include <algorithm>

#include "fusefs/session_mount.h"
#include "policy/iso_time.h"
#include "tools/daemon/host/clock.h"
#include "tools/daemon/routes/fields.h"
#include "tools/daemon/routes/handlers.h"
#include "tools/daemon/routes/views.h"

namespace okcvm::daemon::routes {
namespace {

constexpr std::int64_t kMaxId = UINT32_MAX - 1;  // (uid_t)-1 stands for nobody
constexpr std::size_t kMostSessions = 10'000;    // of one answer, which is held in memory
constexpr std::size_t kMostAgents = 10'000;

WorkdirRequest read_workdir(Fields& fields) {
  WorkdirRequest request;
  request.path = fields.text("workdir");
  if (request.path && request.path->find('\0') != std::string::npos)
    fields.refuse("workdir", "it contains a NUL byte");
  if (const auto policy = fields.text("workdir_policy")) {
    request.policy = workdir_policy_named(*policy);
    if (!request.policy) fields.refuse("workdir_policy", "managed, existing or repo-bound is needed");
  }
  request.device_id = fields.text("device_id", 256);
  request.git_url = fields.text("git_url");
  request.branch = fields.text("branch", 256);
  return request;
}

Result<Response> session_response(Exchange& exchange, int status = 200) {
  return json_response(view_of_session(exchange.service, *exchange.session), status);
}

/// Reads a request that may say nothing more.
Result<void> expect_empty(const Request& request) {
  return Fields(request).end();
}

}  // namespace

Result<Response> create_session(Exchange& exchange) {
  Fields fields(exchange.request);
  CreateRequest request;
  request.id = fields.text("id");
  if (auto owner = fields.object("owner")) {
    if (const auto uid = owner->integer("uid", 0, kMaxId)) request.owner_uid = static_cast<uid_t>(*uid);
    if (const auto gid = owner->integer("gid", 0, kMaxId)) request.owner_gid = static_cast<gid_t>(*gid);
    fields.adopt(*owner);
  }
  if (const auto mode = fields.text("mode")) {
    const auto parsed = parse_mode(*mode);
    if (!parsed) fields.refuse("mode", "octal digits up to 0777 are needed");
    request.mode = parsed.value_or(0700);
  }
  request.labels = fields.labels().value_or(std::map<std::string, std::string>());
  request.skills = fields.texts("skills").value_or(std::vector<std::string>());
  request.agent = fields.text("agent");
  request.parent_agent = fields.text("parent_agent");
  request.workdir = read_workdir(fields);
  request.workdir.task = fields.text("task", 256);
  if (auto ended = fields.end(); !ended) return fail(ended.error());

  const bool is_for_agent = request.agent.has_value();
  auto created = exchange.service.sessions.create(exchange.request.peer, std::move(request));
  if (!created) return fail(created.error());
  auto view = view_of_session(exchange.service, *created->session);
  if (is_for_agent) view["inherited"] = !created->is_new;
  auto response = json_response(view, created->is_new ? 201 : 200);
  response.headers.emplace_back("Location", "/v1/sessions/" + created->session->id().text());
  return response;
}

Result<Response> list_sessions(Exchange& exchange) {
  QueryFields query(exchange.request.query);
  const auto prefix = query.text("prefix").value_or("");
  const auto limit = query.limit(kMostSessions);
  const bool is_by_id = query.has("after");  // from the first one on, if it is empty
  const auto after = query.text("after").value_or("");
  const auto label = query.text("label");
  const bool with_counters = query.flag("counters");
  if (auto ended = query.end(); !ended) return fail(ended.error());
  const auto equals = label ? label->find('=') : std::string::npos;
  if (label && equals == std::string::npos)
    return fail(Code::kInvalidRequest, "?label: name=value is needed");

  const auto& sessions = exchange.service.sessions;
  const auto& peer = exchange.request.peer;
  Json list = Json::array();
  std::size_t texts = 0;
  bool is_truncated = false;
  for (const auto& session :
       is_by_id ? sessions.list_after(peer, prefix, after) : sessions.list(peer, prefix)) {
    if (label) {
      const auto labels = session->record().labels;
      const auto found = labels.find(label->substr(0, equals));
      if (found == labels.end() || found->second != label->substr(equals + 1)) continue;
    }
    is_truncated = list.size() >= limit || texts >= kMostTexts;
    if (is_truncated) break;
    list.push_back(view_of_session(exchange.service, *session, with_counters));
    texts += size_of_texts(list.back()["labels"]);
  }
  return json_response({{"sessions", std::move(list)}, {"truncated", is_truncated}});
}

Result<Response> show_session(Exchange& exchange) {
  if (auto ended = QueryFields(exchange.request.query).end(); !ended) return fail(ended.error());
  return session_response(exchange);
}

Result<Response> delete_session(Exchange& exchange) {
  if (auto ended = QueryFields(exchange.request.query).end(); !ended) return fail(ended.error());
  const auto& id = exchange.request.captures["exact"];
  auto removed = exchange.service.sessions.remove(exchange.request.peer, id);
  if (!removed) return fail(removed.error());
  return json_response({{"id", id}, {"deleted", *removed}});
}

Result<Response> mount_session(Exchange& exchange) {
  if (auto empty = expect_empty(exchange.request); !empty) return fail(empty.error());
  if (auto mounted = exchange.service.sessions.mount(*exchange.session); !mounted)
    return fail(mounted.error());
  return session_response(exchange);
}

Result<Response> unmount_session(Exchange& exchange) {
  Fields fields(exchange.request);
  const bool force = fields.flag("force");
  if (auto ended = fields.end(); !ended) return fail(ended.error());
  if (auto unmounted = exchange.service.sessions.unmount(*exchange.session, force); !unmounted)
    return fail(unmounted.error());
  return session_response(exchange);
}

Result<Response> reset_session(Exchange& exchange) {
  if (auto empty = expect_empty(exchange.request); !empty) return fail(empty.error());
  auto removed = exchange.service.sessions.reset(*exchange.session, exchange.request.goes_on());
  if (!removed) return fail(removed.error());
  return json_response(
      {{"session", view_of_session(exchange.service, *exchange.session)}, {"checkpoints_removed", *removed}});
}

Result<Response> label_session(Exchange& exchange) {
  Fields fields(exchange.request);
  const bool replaces = fields.has("labels");
  const auto labels = replaces ? fields.labels() : fields.texts_by_name("set");
  const auto removed = replaces ? std::nullopt : fields.texts("remove");
  if (!labels && !removed) fields.refuse("labels", "it is missing, or else set or remove");
  if (auto ended = fields.end(); !ended) return fail(ended.error());
  const auto change = [&](Sessions::Labels now) -> Result<Sessions::Labels> {
    if (replaces) return *labels;
    for (const auto& name : removed.value_or(std::vector<std::string>())) now.erase(name);
    for (const auto& [name, value] : labels.value_or(Sessions::Labels())) now[name] = value;
    if (const auto problem = Fields::problem_of(now); !problem.empty())
      return fail(Code::kInvalidRequest, "labels: " + std::string(problem));
    return now;
  };
  if (auto changed = exchange.service.sessions.change_labels(*exchange.session, change); !changed)
    return fail(changed.error());
  return session_response(exchange);
}

Result<Response> session_info(Exchange& exchange) {
  if (auto ended = QueryFields(exchange.request.query).end(); !ended) return fail(ended.error());
  const auto& session = *exchange.session;
  if (auto turn = exchange.take_turn(exchange.service.listings); !turn) return fail(turn.error());
  const auto pass = exchange.session->gate().share();
  if (!pass) return fail(pass.error());
  auto info = exchange.service.sessions.info(session, exchange.request.goes_on());
  if (!info) return fail(info.error());
  const auto mount = session.mount();
  const auto statistics = mount ? mount->statistics() : fusefs::MountStatistics();
  Json view;
  view["id"] = session.id().text();
  view["state"] = mount ? "mounted" : "unmounted";
  view["files"] = info->files;
  view["directories"] = info->directories;
  view["bytes"] = info->bytes;
  view["last_modified"] = info->last_modified.tv_sec ? Json(time_text(info->last_modified)) : Json();
  view["materialized"] = info->materialized;
  view["passthrough"] = statistics.passthrough;
  view["survives_daemon"] = survives(exchange.service, statistics);
  view["protocol_minor"] = statistics.protocol_minor;
  view["open_files"] = statistics.open_files;
  view["nodes"] = statistics.nodes;
  view["denials"] = statistics.denials;
  view["requests"] = Json::object();
  for (const auto& operation : statistics.operations)
    view["requests"][std::string(operation.name)] = operation.count;
  view["errors"] = Json::object();
  for (const auto& [number, count] : statistics.errors) {
    const char* name = ::strerrorname_np(number);
    view["errors"][name ? std::string(name) : std::to_string(number)] = count;
  }
  view["last_used_at"] = time_text(from_milliseconds(session.last_used()));
  return json_response(view);
}

Result<Response> switch_workdir(Exchange& exchange) {
  Fields fields(exchange.request);
  const auto request = read_workdir(fields);
  const bool force = fields.flag("force", true);
  if (auto ended = fields.end(); !ended) return fail(ended.error());
  const auto previous = exchange.session->record_as_mounted().workdir;
  const bool was_mounted = exchange.session->mount() != nullptr;
  if (auto switched = exchange.service.sessions.switch_workdir(*exchange.session, request, force); !switched)
    return fail(switched.error());
  return json_response({{"session", view_of_session(exchange.service, *exchange.session)},
                        {"remounted", was_mounted},
                        {"previous_workdir", or_null(previous)}});
}

Result<Response> list_workdirs(Exchange& exchange) {
  QueryFields query(exchange.request.query);
  const auto limit = query.integer("limit", 1, 1000).value_or(20);
  if (auto ended = query.end(); !ended) return fail(ended.error());
  auto recent = exchange.service.sessions.registry().recent_workdirs(exchange.request.peer.uid,
                                                                     static_cast<std::size_t>(limit));
  if (!recent) return fail(recent.error());
  Json list = Json::array();
  for (const auto& binding : *recent)
    list.push_back({{"path", binding.path},
                    {"policy", name_of(binding.policy)},
                    {"device_id", or_null(binding.device_id)},
                    {"git_url", or_null(binding.git_url)},
                    {"branch", or_null(binding.branch)},
                    {"last_used_at", time_text(from_milliseconds(binding.last_used))}});
  return json_response({{"workdirs", std::move(list)}});
}

Result<Response> list_agents(Exchange& exchange) {
  QueryFields query(exchange.request.query);
  const auto limit = query.limit(kMostAgents);
  const auto after = query.text("after").value_or("");
  if (auto ended = query.end(); !ended) return fail(ended.error());
  const auto slash = after.find('/');  // no session's id has one
  if (!after.empty() && slash == after.npos)
    return fail(Code::kInvalidRequest, "?after: SESSION/AGENT is needed");
  const auto page = exchange.service.sessions.agents(exchange.request.peer, after.substr(0, slash),
                                                     after.empty() ? "" : after.substr(slash + 1), limit);
  if (!page) return fail(page.error());
  Json list = Json::array();
  for (const auto& [agent, depth] : page->agents)
    list.push_back({{"agent", agent.agent},
                    {"parent_agent", agent.parent},
                    {"session", agent.session.text()},
                    {"depth", depth},
                    {"owner", {{"uid", agent.owner_uid}}}});
  return json_response({{"agents", std::move(list)}, {"truncated", page->truncated}});
}

Result<Response> show_agent(Exchange& exchange) {
  QueryFields query(exchange.request.query);
  const auto owner = query.integer("owner", 0, kMaxId);
  if (auto ended = query.end(); !ended) return fail(ended.error());
  auto found =
      exchange.service.sessions.agent(exchange.request.peer, exchange.request.captures["agent"],
                                      owner ? std::optional(static_cast<uid_t>(*owner)) : std::nullopt);
  if (!found) return fail(found.error());
  return json_response({{"agent", found->agent.agent},
                        {"parent_agent", found->agent.parent},
                        {"children", found->children},
                        {"session", view_of_session(exchange.service, *found->session)}});
}

Result<Response> clean_sessions(Exchange& exchange) {
  Fields fields(exchange.request);
  if (exchange.service.session_ttl_days == 0 && !fields.has("older_than_days"))
    fields.refuse("older_than_days",
                  "it is needed: this daemon cleans nothing by itself (--session-ttl-days)");
  const auto days = fields.integer("older_than_days", 0, 36500).value_or(exchange.service.session_ttl_days);
  const bool dry_run = fields.flag("dry_run");
  if (auto ended = fields.end(); !ended) return fail(ended.error());
  const auto cleaned = exchange.service.sessions.clean(exchange.request.peer, std::chrono::hours(24) * days,
                                                       dry_run, exchange.request.progress);
  Json skipped = Json::array();
  for (const auto& [id, reason] : cleaned.skipped) skipped.push_back({{"id", id}, {"reason", reason}});
  return json_response({{"removed", cleaned.removed}, {"skipped", std::move(skipped)}, {"dry_run", dry_run}});
}

}  // namespace okcvm::daemon::routes
