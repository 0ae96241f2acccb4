#include <algorithm>
#include <ctime>
#include <limits>

#include "policy/percent_encoding.h"
#include "policy/utf8.h"
#include "tools/cli/handlers.h"
#include "tools/cli/text.h"

namespace okcvm::cli::run {

namespace {

constexpr std::size_t kShortId = 12;
constexpr std::size_t kPathsInNote = 8;

std::string short_id(const std::string& id) {
  return id.substr(0, kShortId);
}

void note_paths(const Context& context, const char* what, const Json& snapshot, const std::string& name) {
  const auto& paths = list_in(snapshot, name);
  if (paths.empty()) return;
  Json shown = Json::array();
  for (std::size_t i = 0; i < std::min(paths.size(), kPathsInNote); ++i) shown.push_back(paths[i]);
  const auto total = std::max<std::uint64_t>(number_in(snapshot, name + "_total"), paths.size());
  const auto more = total - shown.size();
  context.note(what + joined(shown) +
               (more ? " and " + std::to_string(more) + " more (--json names more)" : ""));
}

void note_incomplete(const Context& context, const Json& snapshot) {
  note_paths(context, "being written meanwhile, captured as read: ", snapshot, "in_flight");
  note_paths(context, "left out (sockets, FIFOs, devices): ", snapshot, "left_out");
}

std::string size_change(const Json& row) {
  const bool had = row.contains("old_size");
  const bool has = row.contains("new_size");
  if (had && has && number_in(row, "old_size") != number_in(row, "new_size"))
    return " (" + human_size(number_in(row, "old_size")) + " to " + human_size(number_in(row, "new_size")) +
           ")";
  if (had || has) return " (" + human_size(number_in(row, has ? "new_size" : "old_size")) + ")";
  return {};
}

/// "A outputs/new.txt (12 B)": a letter as git has it, M for contents, T for mode, times and attributes only.
std::string change_line(const Json& row) {
  const auto kind = text_in(row, "kind");
  const char letter = kind == "added"     ? 'A'
                      : kind == "removed" ? 'D'
                      : kind == "renamed" ? 'R'
                      : kind == "changed" ? 'M'
                                          : 'T';
  std::string text{letter, ' '};
  if (const auto from = text_in(row, "renamed_from"); !from.empty()) text += visible(from) + " -> ";
  text += visible(text_in(row, "path"));
  const auto old_mode = text_in(row, "old_mode");
  const auto new_mode = text_in(row, "new_mode");
  if (!old_mode.empty() && !new_mode.empty() && old_mode != new_mode)
    text += " [" + old_mode + " to " + new_mode + "]";
  return text + size_change(row) + "\n";
}

/// How many there are, of which the daemon may tell only the first.
std::uint64_t total_of(const Json& answer, const Json& rows) {
  return std::max<std::uint64_t>(number_in(answer, "total"), rows.size());
}

std::string left_out_text(const Json& answer, const Json& rows) {
  const auto more = total_of(answer, rows) - rows.size();
  return more > 0 ? "and " + count_of(more, "more entry", "more entries") + "\n" : "";
}

std::string changes_text(const Context& context, const Json& answer) {
  const auto& changes = list_in(answer, "changes");
  if (changes.empty()) return "no changes\n";
  std::string text;
  for (const auto& row : changes) {
    text += change_line(row);
    const auto unified = text_in(row, "unified");
    if (unified.empty()) continue;
    text += context.out().is_terminal() ? visible(unified, true) : unified;
    if (!text.ends_with('\n')) text += '\n';
  }
  return text + left_out_text(answer, changes);
}

std::string snapshot_header(const Json& snapshot) {
  const auto& stats = member_in(snapshot, "stats");
  return "snapshot  " + text_in(snapshot, "id") + "\nlabel     " +
         or_dash(visible(text_in(snapshot, "label"))) + "\ntaken     " +
         local_time(text_in(snapshot, "created_at")) + "\nparent    " + or_dash(text_in(snapshot, "parent")) +
         "\ncontents  " + count_of(number_in(stats, "files"), "file") + ", " +
         count_of(number_in(stats, "directories"), "directory", "directories") + ", " +
         human_size(number_in(stats, "bytes")) + "\n";
}

/// "true" unless only the names are wanted.
std::string text_wanted(const Context& context) {
  return context.args().has("names") ? "false" : "true";
}

Outcome<void> print_restored(const Context& context, const Json& answer) {
  if (context.json()) return context.print_json(answer);
  std::string text = changes_text(context, answer);
  if (flag_in(answer, "dry_run")) {
    text += "nothing was changed (--dry-run)\n";
  } else if (const auto before = text_in(member_in(answer, "before"), "id"); !before.empty()) {
    text += "restored " + count_of(total_of(answer, list_in(answer, "changes")), "entry", "entries") +
            "; 'okcvm undo' goes back to " + short_id(before) + "\n";
  }
  return context.print(text);
}

}  // namespace

Outcome<void> snapshot(Context& context) {
  Json body = Json::object();
  if (auto label = context.args().option("label")) body["label"] = *label;
  const auto answer = context.post_with_progress(context.session("/snapshots"), body, "snapshot");
  if (!answer) return tl::unexpected(answer.error());
  note_incomplete(context, *answer);
  if (context.json()) return context.print_json(*answer);
  if (flag_in(*answer, "unchanged")) context.note("nothing changed since this snapshot");
  return context.print(text_in(*answer, "id") + "\n");
}

Outcome<void> snapshots(Context& context) {
  const auto limit = context.args().option("limit");
  const auto answer = context.get_pages(
      context.session("/snapshots"), {{"limit", limit.value_or("")}}, "snapshots",
      [](const Json& row) { return percent_encoded(text_in(row, "id")); },
      limit ? std::stoul(*limit) : std::numeric_limits<std::size_t>::max());
  if (!answer) return tl::unexpected(answer.error());
  if (context.json()) return context.print_json(*answer);
  Table table({"SNAPSHOT", "TAKEN", ">CHANGED", ">FILES", ">SIZE", "LABEL"});
  for (const auto& row : list_in(*answer, "snapshots")) {
    const auto& stats = member_in(row, "stats");
    if (flag_in(row, "damaged")) {
      table.row({short_id(text_in(row, "id")), "-", "-", "-", "-", "(damaged)"});
      continue;
    }
    table.row({short_id(text_in(row, "id")), age(text_in(row, "created_at"), std::time(nullptr)),
               std::to_string(number_in(stats, "changed")), std::to_string(number_in(stats, "files")),
               human_size(number_in(stats, "bytes")), or_dash(text_in(row, "label"))});
  }
  return context.print(table.text());
}

Outcome<void> show(Context& context) {
  const auto answer =
      context.get(context.session("/snapshots/" + percent_encoded(context.args().argument("SNAP")) +
                                  query({{"text", text_wanted(context)}})));
  if (!answer) return tl::unexpected(answer.error());
  if (context.json()) return context.print_json(*answer);
  return context.print(snapshot_header(member_in(*answer, "snapshot")) + "\n" +
                       changes_text(context, *answer));
}

Outcome<void> diff(Context& context) {
  const auto answer =
      context.get_with_progress(context.session("/diff" + query({{"from", context.args().argument("FROM")},
                                                                 {"to", context.args().argument("TO")},
                                                                 {"text", text_wanted(context)}})),
                                "diff");
  if (!answer) return tl::unexpected(answer.error());
  if (context.json()) return context.print_json(*answer);
  return context.print(changes_text(context, *answer));
}

Outcome<void> restore(Context& context) {
  Json body{{"snapshot", context.args().argument("SNAP")}};
  for (const auto& path : context.args().all("PATH")) {
    if (is_utf8(path))
      body["paths"].push_back(path);
    else  // JSON cannot tell it byte by byte
      body["encoded_paths"].push_back(percent_encoded_path(path));
  }
  if (context.args().has("dry-run")) body["dry_run"] = true;
  const auto answer = context.post_with_progress(context.session("/restore"), body, "restore");
  if (!answer) return tl::unexpected(answer.error());
  return print_restored(context, *answer);
}

Outcome<void> undo(Context& context) {
  const auto answer = context.post_with_progress(context.session("/undo"), Json::object(), "undo");
  if (!answer) return tl::unexpected(answer.error());
  return print_restored(context, *answer);
}

Outcome<void> fork(Context& context) {
  Json body = Json::object();
  if (const auto snapshot = context.args().argument("SNAP"); !snapshot.empty()) body["snapshot"] = snapshot;
  if (auto id = context.args().option("id")) body["id"] = *id;
  const auto answer = context.post_with_progress(context.session("/fork"), body, "fork");
  if (!answer) return tl::unexpected(answer.error());
  if (context.json()) return context.print_json(*answer);
  return context.print(visible(text_in(*answer, "mount")) + "\n");
}

Outcome<void> verify(Context& context) {
  const auto answer = context.get_with_progress(
      context.session("/verify" + query({{"snapshot", context.args().option("snapshot").value_or("")}})),
      "verify");
  if (!answer) return tl::unexpected(answer.error());
  const auto& problems = list_in(*answer, "problems");
  const auto total = number_in(*answer, "problems_total");
  if (context.json()) {
    if (auto printed = context.print_json(*answer); !printed) return printed;
  } else {
    std::string text =
        count_of(number_in(*answer, "objects"), "object") + " checked, " + count_of(total, "problem") + "\n";
    for (const auto& problem : problems)
      if (problem.is_string()) text += "  " + visible(problem.get<std::string>()) + "\n";
    if (total > problems.size()) text += "  and " + count_of(total - problems.size(), "more", "more") + "\n";
    const auto& live = list_in(*answer, "live_differences");
    text += member_in(*answer, "snapshot").is_null()
                ? "the workspace was compared with no snapshot\n"
                : "the workspace differs from the snapshot in " +
                      count_of(total_of(*answer, live), "entry", "entries") + "\n";
    for (const auto& row : live) text += "  " + change_line(row);
    text += left_out_text(*answer, live);
    if (auto printed = context.print(text); !printed) return printed;
  }
  if (flag_in(*answer, "ok")) return {};
  return refuse("corrupt", "the snapshots have " + count_of(total, "problem") +
                               ": copy what is still readable elsewhere (okcvm restore, git clone)");
}

}  // namespace okcvm::cli::run
