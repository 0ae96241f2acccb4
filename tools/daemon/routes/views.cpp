#include "tools/daemon/routes/views.h"

#include <algorithm>
#include <array>

#include "fusefs/session_mount.h"
#include "policy/iso_time.h"
#include "policy/percent_encoding.h"
#include "policy/utf8.h"
#include "tools/daemon/host/clock.h"
#include "tools/daemon/routes/fields.h"

namespace okcvm::daemon {
namespace {

constexpr std::size_t kMostDifferences = 10'000;  // of one answer, which is held in memory
constexpr std::size_t kMostNotes = 1000;          // of one snapshot; an answer may list many

void add_paths(Json& view, const char* name, const std::vector<RelPath>& paths) {
  std::vector<std::string> texts, encoded;
  bool are_text = true;
  for (const auto& path : paths) {
    texts.push_back(path.text());
    encoded.push_back(percent_encoded_path(path.text()));
    are_text = are_text && is_utf8(path.text());
  }
  add_notes(view, name, texts);
  if (are_text) return;
  encoded.resize(std::min(encoded.size(), kMostNotes));
  view["encoded_" + std::string(name)] = std::move(encoded);
}

std::string_view kind_name(snapshots::DifferenceKind kind) {
  constexpr std::array<std::string_view, 5> kNames{"added", "removed", "changed", "metadata", "renamed"};
  return kNames[static_cast<std::size_t>(kind)];
}

}  // namespace

std::string_view type_name(fusefs::FileType type) {
  constexpr std::array<std::string_view, 4> kNames{"file", "directory", "symlink", "other"};
  return kNames[static_cast<std::size_t>(type)];
}

Response json_response(const Json& value, int status) {
  Response response;
  response.status = status;
  response.body = value.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  return response;
}

bool survives(const Service& service, const fusefs::MountStatistics& mount) {
  return mount.survives_daemon && service.kept_by() != "nobody";
}

std::size_t size_of_texts(const Json& row) {
  std::size_t size = 0;
  for (const auto& [name, value] : row.items())
    size += name.size() + (value.is_string() ? value.get_ref<const std::string&>().size() : 0);
  return size;
}

void add_encoded_path(Json& view, const RelPath& path, const char* name) {
  if (!is_utf8(path.text())) view[name] = percent_encoded_path(path.text());
}

Json view_of_session(const Service& service, const Session& session, bool counters) {
  const Sessions& sessions = service.sessions;
  const auto record = session.record_as_mounted();
  const auto mount = session.mount();
  const auto statistics = mount ? mount->statistics() : fusefs::MountStatistics();
  const auto point = sessions.mount_point_of(record.id).string();
  const auto owner = host_user_name(record.owner_uid);
  Json view;
  view["id"] = record.id.text();
  view["mount"] = point;
  view["state"] = mount ? "mounted" : "unmounted";
  view["owner"] = {{"uid", record.owner_uid}, {"gid", record.owner_gid}, {"name", or_null(owner)}};
  view["mode"] = mode_text(record.root_mode);
  view["created_at"] = time_text(record.created_at);
  view["last_used_at"] = time_text(from_milliseconds(session.last_used()));
  view["labels"] = record.labels;
  view["skills"] = record.skills;
  view["agent"] = or_null(record.agent);
  view["parent_agent"] = record.agent ? Json("root") : Json();
  view["workdir"] = or_null(record.workdir);
  view["workdir_policy"] = name_of(record.workdir_policy);
  view["device_id"] = or_null(record.device_id);
  view["git_url"] = or_null(record.git_url);
  view["branch"] = or_null(record.branch);
  view["task"] = or_null(record.task);
  view["cwd"] = point + (record.workdir ? "/workdir" : "/outputs");
  view["workdir_fallback"] = Json();
  if (const auto& fallback = record.workdir_fallback)
    view["workdir_fallback"] = {{"requested", fallback->requested}, {"reason", fallback->reason}};
  view["forked_from"] = Json();
  if (const auto& origin = record.forked_from)
    view["forked_from"] = {{"session", origin->session}, {"snapshot", origin->snapshot}};
  view["passthrough"] = statistics.passthrough;
  view["snapshots"] = session.store() ? "on" : sessions.config().snapshots ? "unavailable" : "off";
  view["survives_daemon"] = survives(service, statistics);
  if (counters)
    view["counters"] = {{"requests", request_count(statistics)},
                        {"errors", error_count(statistics)},
                        {"denials", statistics.denials},
                        {"open_files", statistics.open_files},
                        {"nodes", statistics.nodes}};
  return view;
}

Json view_of_snapshot(const snapshots::Snapshot& snapshot) {
  Json view;
  view["id"] = snapshot.id.text();
  if (snapshot.damaged) {
    view["damaged"] = true;
    return view;
  }
  view["label"] = snapshot.label;
  view["created_at"] = time_text(snapshot.created_at);
  view["parent"] = snapshot.parent ? Json(snapshot.parent->text()) : Json();
  const auto& stats = snapshot.stats;
  view["stats"] = {{"files", stats.files},           {"directories", stats.directories},
                   {"bytes", stats.bytes},           {"changed", stats.changed},
                   {"bytes_read", stats.bytes_read}, {"rescanned", stats.rescanned}};
  add_paths(view, "in_flight", snapshot.in_flight);
  add_paths(view, "left_out", snapshot.left_out);
  return view;
}

void add_notes(Json& view, const char* name, const std::vector<std::string>& notes) {
  const auto end = notes.begin() + static_cast<std::ptrdiff_t>(std::min(notes.size(), kMostNotes));
  view[name] = std::vector(notes.begin(), end);
  view[std::string(name) + "_total"] = notes.size();
}

void add_differences(Json& view, const char* name, const std::vector<snapshots::Difference>& differences) {
  Json rows = Json::array();
  std::size_t texts = 0;
  for (const auto& difference : differences) {
    if (rows.size() == kMostDifferences || texts >= kMostTexts) break;
    Json row;
    row["kind"] = kind_name(difference.kind);
    row["path"] = difference.path.text();
    add_encoded_path(row, difference.path);
    if (const auto& from = difference.renamed_from) {
      row["renamed_from"] = from->text();
      add_encoded_path(row, *from, "encoded_renamed_from");
    }
    if (difference.old_size) row["old_size"] = *difference.old_size;
    if (difference.new_size) row["new_size"] = *difference.new_size;
    if (difference.old_mode) row["old_mode"] = mode_text(*difference.old_mode);
    if (difference.new_mode) row["new_mode"] = mode_text(*difference.new_mode);
    if (difference.binary) row["binary"] = true;
    texts += size_of_texts(row);
    if (!difference.unified.empty()) row["unified"] = difference.unified;  // bounded by who made it
    rows.push_back(std::move(row));
  }
  view["total"] = differences.size();
  view["truncated"] = rows.size() < differences.size();
  view[name] = std::move(rows);
}

Json view_of_restore(bool dry_run, const snapshots::RestoreResult& result) {
  Json view;
  view["snapshot"] = result.target.text();
  view["dry_run"] = dry_run;
  add_differences(view, "changes", result.applied);
  view["before"] = result.before ? view_of_snapshot(*result.before) : Json();
  return view;
}

Json view_of_entry(const RelPath& path, const fusefs::FileInfo& info,
                   const std::optional<std::string>& target) {
  Json view;
  view["name"] = path.leaf();
  view["path"] = path.text();
  view["type"] = type_name(info.type);
  view["size"] = info.size;
  view["mode"] = mode_text(info.mode & 07777);
  view["uid"] = info.uid;
  view["gid"] = info.gid;
  view["modified_at"] = time_text(info.modified);
  view["etag"] = etag_of(info);
  if (info.type == fusefs::FileType::kSymlink) view["target"] = or_null(target);
  if (info.type == fusefs::FileType::kDirectory && path.depth() == 2 &&
      zone_named(path.top()) == Zone::kSkills)
    view["skill"] = true;
  add_encoded_path(view, path);
  return view;
}

std::string etag_of(const fusefs::FileInfo& info) {
  const auto nanoseconds = [](const timespec& time) {
    return static_cast<unsigned long long>(time.tv_sec) * 1'000'000'000 +
           static_cast<unsigned long long>(time.tv_nsec);
  };
  char text[80];
  std::snprintf(text, sizeof text, "\"%llx-%llx-%llx-%llx\"", static_cast<unsigned long long>(info.inode),
                static_cast<unsigned long long>(info.size), nanoseconds(info.modified),
                nanoseconds(info.changed));
  return text;
}

}  // namespace okcvm::daemon
