#include <algorithm>
#include <charconv>
#include <ctime>
#include <filesystem>

#include "policy/percent_encoding.h"
#include "tools/cli/handlers.h"
#include "tools/cli/text.h"

namespace okcvm::cli::run {

namespace {

constexpr std::size_t kMostOfLabels = 40;  // columns of a table

/// Copies an option's value into the request under the API's name, if it was given.
void copy_option(const Context& context, Json& body, const char* option, const char* field) {
  if (auto value = context.args().option(option)) body[field] = *value;
}

Outcome<Json> labels_of(const Context& context, const std::vector<std::string>& pairs) {
  Json labels = Json::object();
  for (const auto& pair : pairs) {
    const auto equals = pair.find('=');
    if (equals == 0 || equals == std::string::npos)
      return usage("a label is KEY=VALUE, not '" + pair + "'; see 'okcvm help " +
                   std::string(context.args().verb->name) + "'");
    labels[pair.substr(0, equals)] = pair.substr(equals + 1);
  }
  return labels;
}

/// "1000" or "1000:100"; without a group, the daemon takes the one that the user belongs to.
Outcome<Json> owner_of(const std::string& text) {
  const auto colon = text.find(':');
  const std::string user = text.substr(0, colon);
  const std::string group = colon == std::string::npos ? user : text.substr(colon + 1);
  const auto number = [](const std::string& digits, std::uint32_t& value) {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return !digits.empty() && error == std::errc() && end == digits.data() + digits.size();
  };
  std::uint32_t uid = 0;
  std::uint32_t gid = 0;
  if (!number(user, uid) || !number(group, gid))
    return usage("--owner takes UID or UID:GID as numbers, not '" + text + "'; see 'okcvm help create'");
  Json owner{{"uid", uid}};
  if (colon != std::string::npos) owner["gid"] = gid;
  return owner;
}

/// The daemon does not know our working directory, so a relative path is made absolute here.
std::string absolute(const std::string& path) {
  if (path.starts_with('~')) return path;
  std::error_code error;
  const auto whole = std::filesystem::absolute(path, error);
  return error ? path : whole.string();
}

void copy_workdir_options(const Context& context, Json& body) {
  copy_option(context, body, "workdir-policy", "workdir_policy");
  copy_option(context, body, "device-id", "device_id");
  copy_option(context, body, "git-url", "git_url");
  copy_option(context, body, "branch", "branch");
}

void note_fallback(const Context& context, const Json& session) {
  const auto& fallback = member_in(session, "workdir_fallback");
  if (fallback.is_object())
    context.note("the workdir " + text_in(fallback, "requested") +
                 " is not used: " + text_in(fallback, "reason"));
}

/// The answer for a verb that leaves one with a session: its mount point, alone on a line, for `cd $(...)`.
Outcome<void> print_session(const Context& context, const Json& session) {
  note_fallback(context, session);
  if (context.json()) return context.print_json(session);
  return context.print(visible(text_in(session, "mount")) + "\n");
}

/// "key=value" of each.
std::vector<std::string> label_pairs(const Json& session) {
  std::vector<std::string> pairs;
  const auto& labels = member_in(session, "labels");
  if (labels.is_object())
    for (const auto& [key, value] : labels.items())
      pairs.push_back(key + "=" + (value.is_string() ? value.get<std::string>() : value.dump()));
  return pairs;
}

std::string label_text(const Json& session) {
  std::string text;
  for (const auto& pair : label_pairs(session)) text += (text.empty() ? "" : " ") + pair;
  return text;
}

Outcome<void> print_labels(const Context& context, const Json& session) {
  if (context.json())
    return context.print_json(Json{{"id", text_in(session, "id")}, {"labels", member_in(session, "labels")}});
  std::string text;
  for (const auto& pair : label_pairs(session)) text += visible(pair) + "\n";
  return context.print(text);
}

/// More sessions than the daemon tells at once, page by page and then in the order of their last use.
Outcome<Json> all_sessions(const Context& context, const std::string& prefix, const std::string& label,
                           const std::string& limit) {
  auto answer =
      context.get_pages("/v1/sessions", {{"prefix", prefix}, {"label", label}}, "sessions",
                        [](const Json& session) { return percent_encoded(text_in(session, "id")); });
  if (!answer) return answer;
  auto& all = (*answer)["sessions"];
  std::stable_sort(all.begin(), all.end(), [](const Json& a, const Json& b) {
    return text_in(a, "last_used_at") > text_in(b, "last_used_at");
  });
  const bool is_cut = !limit.empty() && all.size() > std::stoul(limit);
  if (is_cut) all.erase(all.begin() + static_cast<std::ptrdiff_t>(std::stoul(limit)), all.end());
  (*answer)["truncated"] = is_cut;
  return answer;
}

std::string yes_no(bool value) {
  return value ? "yes" : "no";
}

/// A session with what its zones and its mount hold now.
Outcome<Json> with_use(const Context& context, Json session) {
  auto use = context.get(session_target(text_in(session, "id"), "/info"));
  if (!use) return use;
  session.update(*use);
  return session;
}

std::string info_text(const Json& info) {
  std::string text;
  const auto line = [&](std::string_view name, const std::string& value) {
    if (value.empty()) return;
    std::string label(name);
    label.resize(17, ' ');
    text += label + visible(value) + "\n";
  };
  line("session", text_in(info, "id"));
  line("state", text_in(info, "state"));
  line("mount", text_in(info, "mount"));
  line("cwd", text_in(info, "cwd"));
  line("owner", owner_text(info) + ", mode " + text_in(info, "mode"));
  line("created", local_time(text_in(info, "created_at")));
  line("last used", local_time(text_in(info, "last_used_at")));
  line("labels", label_text(info));
  line("skills", joined(list_in(info, "skills")));
  line("agent", text_in(info, "agent"));
  line("parent agent", text_in(info, "parent_agent"));
  line("task", text_in(info, "task"));
  line("workdir", text_in(info, "workdir"));
  if (const auto& fallback = member_in(info, "workdir_fallback"); !fallback.is_null())
    line("workdir unbound", text_in(fallback, "requested") + ": " + text_in(fallback, "reason"));
  line("workdir policy", text_in(info, "workdir_policy"));
  line("device", text_in(info, "device_id"));
  line("git url", text_in(info, "git_url"));
  line("branch", text_in(info, "branch"));
  line("contents", count_of(number_in(info, "files"), "file") + ", " +
                       count_of(number_in(info, "directories"), "directory", "directories") + ", " +
                       human_size(number_in(info, "bytes")));
  line("last modified", local_time(text_in(info, "last_modified")));
  line("on disk", flag_in(info, "materialized") ? "yes" : "no (nothing was written yet)");
  line("open files", std::to_string(number_in(info, "open_files")));
  line("denials", std::to_string(number_in(info, "denials")));
  line("passthrough", yes_no(flag_in(info, "passthrough")));
  line("snapshots", text_in(info, "snapshots"));
  line("survives okcvmd", yes_no(flag_in(info, "survives_daemon")));
  return text;
}

}  // namespace

Outcome<void> create(Context& context) {
  Json body = Json::object();
  copy_option(context, body, "id", "id");
  copy_option(context, body, "mode", "mode");
  copy_option(context, body, "agent", "agent");
  copy_option(context, body, "parent-agent", "parent_agent");
  copy_option(context, body, "task", "task");
  copy_workdir_options(context, body);
  if (auto workdir = context.args().option("workdir")) body["workdir"] = absolute(*workdir);
  if (const auto skills = context.args().each("skill"); !skills.empty()) body["skills"] = skills;
  auto labels = labels_of(context, context.args().each("label"));
  if (!labels) return tl::unexpected(labels.error());
  if (!labels->empty()) body["labels"] = *labels;
  if (auto owner = context.args().option("owner")) {
    auto numbers = owner_of(*owner);
    if (!numbers) return tl::unexpected(numbers.error());
    body["owner"] = *numbers;
  }
  auto session = context.post("/v1/sessions", body);
  if (!session) return tl::unexpected(session.error());
  return print_session(context, *session);
}

Outcome<void> list(Context& context) {
  const auto prefix = context.args().option("prefix").value_or("");
  const auto label_given = context.args().option("label");
  const auto label = label_given.value_or("");
  if (label_given && label.find('=') == label.npos)
    return usage("--label takes KEY=VALUE, not '" + label + "'; see 'okcvm help list'");
  const auto limit = context.args().option("limit").value_or("");
  auto answer = context.get("/v1/sessions" + query({{"prefix", prefix}, {"label", label}, {"limit", limit}}));
  const bool is_short = answer && flag_in(*answer, "truncated") &&
                        (limit.empty() || list_in(*answer, "sessions").size() < std::stoul(limit));
  if (is_short) answer = all_sessions(context, prefix, label, limit);
  if (!answer) return tl::unexpected(answer.error());
  if (context.json()) return context.print_json(*answer);
  Table table({"SESSION", "STATE", "OWNER", "LAST USED", "SKILLS", "AGENT", "LABELS", "MOUNT"});
  for (const auto& session : list_in(*answer, "sessions"))
    table.row({text_in(session, "id"), text_in(session, "state"), owner_text(session),
               age(text_in(session, "last_used_at"), std::time(nullptr)),
               joined(list_in(session, "skills"), "-"),
               text_in(session, "agent").empty() ? "-" : text_in(session, "agent"),
               or_dash(shortened(label_text(session), kMostOfLabels)), text_in(session, "mount")});
  return context.print(table.text());
}

Outcome<void> info(Context& context) {
  auto session = context.get(context.session());
  if (session) session = with_use(context, *std::move(session));
  if (!session) return tl::unexpected(session.error());
  return context.json() ? context.print_json(*session) : context.print(info_text(*session));
}

Outcome<void> path(Context& context) {
  const auto session = context.get(context.session());
  if (!session) return tl::unexpected(session.error());
  if (context.json())
    return context.print_json(Json{{"id", text_in(*session, "id")}, {"mount", text_in(*session, "mount")}});
  return context.print(text_in(*session, "mount") + "\n");
}

Outcome<void> label(Context& context) {
  const auto set = labels_of(context, context.args().all("KEY=VALUE"));
  if (!set) return tl::unexpected(set.error());
  const auto removed = context.args().each("remove");
  const auto session = set->empty() && removed.empty()
                           ? context.get(context.session())
                           : context.post(context.session("/labels"), {{"set", *set}, {"remove", removed}});
  if (!session) return tl::unexpected(session.error());
  return print_labels(context, *session);
}

Outcome<void> load(Context& context) {
  const auto session =
      context.post(session_target(context.args().argument("PREFIX"), "/mount"), Json::object());
  if (!session) return tl::unexpected(session.error());
  return print_session(context, *session);
}

Outcome<void> unmount(Context& context) {
  const auto session = context.post(context.session("/unmount"), {{"force", context.args().has("force")}});
  if (!session) return tl::unexpected(session.error());
  if (context.json()) return context.print_json(*session);
  return context.print("unmounted " + visible(text_in(*session, "id")) + "; 'okcvm load' mounts it again\n");
}

Outcome<void> reset(Context& context) {
  const auto answer = context.post(context.session("/reset"), Json::object());
  if (!answer) return tl::unexpected(answer.error());
  if (context.json()) return context.print_json(*answer);
  return context.print("reset " + visible(text_in(member_in(*answer, "session"), "id")) +
                       ": temp/ is empty, " +
                       count_of(number_in(*answer, "checkpoints_removed"), "checkpoint") + " dropped\n");
}

/// The daemon deletes by whole id only, so that no slip deletes another session. A prefix is looked up first,
/// but stands only for an id that was made up (8 hex digits), and with half of it: "job-1" given twice must
/// not delete "job-10", nor "2" a session that nobody named.
Outcome<void> remove(Context& context) {
  constexpr std::size_t kMadeUp = 8, kEnough = 4;
  std::string id = context.args().argument("ID");
  const auto found = context.get(context.session());
  const auto is_hexadecimal = [](const std::string& text) {
    return text.find_first_not_of("0123456789abcdef") == text.npos;
  };
  // What others' ids begin with is not there itself, unless it may stand for one that was made up.
  const bool is_absent = !found && (found.error().code == "not_found" ||
                                    (found.error().code == "ambiguous_prefix" && !is_hexadecimal(id)));
  if (!found && !is_absent) return tl::unexpected(found.error());
  std::string longer;
  if (found) {
    const auto whole = text_in(*found, "id");
    const bool is_made_up = whole.size() == kMadeUp && is_hexadecimal(whole);
    const bool is_meant = whole == id || (is_made_up && id.size() >= kEnough);
    (is_meant ? id : longer) = whole;
  }

  Request request;
  request.method = "DELETE";
  request.target = session_target(id);
  const auto answer = context.send(request);
  if (!answer) return tl::unexpected(answer.error());
  if (context.json()) return context.print_json(*answer);
  if (!flag_in(*answer, "deleted"))
    return context.print("there is no session " + visible(id) + ": nothing to do" +
                         (longer.empty() ? "" : " (to delete " + visible(longer) + ", name it in full)") +
                         "\n");
  return context.print("deleted " + visible(id) + "\n");
}

Outcome<void> clean(Context& context) {
  Json body = Json::object();
  if (auto days = context.args().option("older-than-days")) body["older_than_days"] = std::stol(*days);
  if (context.args().has("dry-run")) body["dry_run"] = true;
  const auto answer = context.post_with_progress("/v1/clean", body, "clean");
  if (!answer) return tl::unexpected(answer.error());
  if (context.json()) return context.print_json(*answer);
  const auto& removed = list_in(*answer, "removed");
  std::string text = (flag_in(*answer, "dry_run") ? "would remove " : "removed ") +
                     count_of(removed.size(), "session") +
                     (removed.empty() ? "" : ": " + visible(joined(removed))) + "\n";
  for (const auto& kept : list_in(*answer, "skipped"))
    text += "kept " + visible(text_in(kept, "id")) + ": " + visible(text_in(kept, "reason")) + "\n";
  return context.print(text);
}

Outcome<void> agents(Context& context) {
  if (const auto agent = context.args().argument("AGENT"); !agent.empty()) {
    const auto owner = context.args().option("owner");
    const auto answer =
        context.get("/v1/agents/" + percent_encoded(agent) + (owner ? "?owner=" + *owner : ""));
    if (!answer) return tl::unexpected(answer.error());
    if (context.json()) return context.print_json(*answer);
    const auto session = with_use(context, member_in(*answer, "session"));
    if (!session) return tl::unexpected(session.error());
    return context.print("agent            " + visible(text_in(*answer, "agent")) + "\n" +
                         "parent           " + visible(text_in(*answer, "parent_agent")) + "\n" +
                         "children         " + visible(joined(list_in(*answer, "children"), "none")) + "\n" +
                         info_text(*session));
  }
  if (context.args().has("owner"))
    return usage("--owner says whose AGENT is meant, and none is named; see 'okcvm help agents'");
  const auto answer = context.get_pages("/v1/agents", {}, "agents", [](const Json& agent) {
    return percent_encoded(text_in(agent, "session") + "/" + text_in(agent, "agent"));
  });
  if (!answer) return tl::unexpected(answer.error());
  if (context.json()) return context.print_json(*answer);
  Table table({"AGENT", "PARENT", "SESSION", ">UID"});
  for (const auto& agent : list_in(*answer, "agents")) {
    const auto depth = std::min<std::uint64_t>(number_in(agent, "depth"), 32);
    const auto parent = text_in(agent, "parent_agent");
    table.row({std::string(depth > 0 ? (depth - 1) * 2 : 0, ' ') + text_in(agent, "agent"),
               parent.empty() ? "-" : parent, text_in(agent, "session"),
               std::to_string(number_in(member_in(agent, "owner"), "uid"))});
  }
  return context.print(table.text());
}

Outcome<void> workdir(Context& context) {
  Json body = Json::object();
  if (const auto path = context.args().argument("PATH"); !path.empty()) body["workdir"] = absolute(path);
  copy_workdir_options(context, body);
  body["force"] = context.args().has("force");
  const auto answer = context.post(context.session("/workdir"), body);
  if (!answer) return tl::unexpected(answer.error());
  const auto& session = member_in(*answer, "session");
  note_fallback(context, session);
  if (context.json()) return context.print_json(*answer);
  return context.print(visible(text_in(session, "cwd")) + "\n");
}

Outcome<void> workdirs(Context& context) {
  const auto answer =
      context.get("/v1/workdirs" + query({{"limit", context.args().option("limit").value_or("")}}));
  if (!answer) return tl::unexpected(answer.error());
  if (context.json()) return context.print_json(*answer);
  Table table({"LAST USED", "POLICY", "DEVICE", "PATH", "GIT URL", "BRANCH"});
  for (const auto& row : list_in(*answer, "workdirs"))
    table.row({age(text_in(row, "last_used_at"), std::time(nullptr)), text_in(row, "policy"),
               text_in(row, "device_id"), text_in(row, "path"), text_in(row, "git_url"),
               text_in(row, "branch")});
  return context.print(table.text());
}

}  // namespace okcvm::cli::run
