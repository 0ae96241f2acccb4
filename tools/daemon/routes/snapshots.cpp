#include <algorithm>
#include <array>

#include "tools/daemon/http/uri.h"
#include "tools/daemon/routes/fields.h"
#include "tools/daemon/routes/handlers.h"
#include "tools/daemon/routes/views.h"

namespace okcvm::daemon::routes {
namespace {

constexpr std::size_t kMaxPaths = 10'000;
constexpr std::size_t kMostRows = 10'000;  // of one answer, which is held in memory

/// Of the fields "paths" and "encoded_paths". Neither given: everything is meant. An empty list most likely
/// is what a client computed, and not that.
Result<std::vector<RelPath>> read_paths(Fields& fields) {
  const std::array given{std::pair("paths", fields.texts("paths")),
                         std::pair("encoded_paths", fields.texts("encoded_paths"))};
  std::vector<RelPath> paths;
  for (const auto& [name, texts] : given) {
    const auto refuse = [&fields, &paths, field = name](const char* reason) {
      fields.refuse(field, reason);
      return paths;
    };
    if (!texts) continue;
    if (texts->empty()) return refuse("the list is empty: leave it out to restore everything");
    for (const auto& text : *texts) {
      if (paths.size() == kMaxPaths) return refuse("at most 10000 are taken");
      const bool is_encoded = &texts == &given.back().second;
      auto bytes = is_encoded ? percent_decoded(text) : Result<std::string>(text);
      if (!bytes) return fail(bytes.error());
      auto path = RelPath::parse(*bytes);
      if (!path) return fail(path.error());
      if (path->is_root())
        return refuse("one of them is the session's root: leave the list out to restore everything");
      paths.push_back(std::move(*path));
    }
  }
  return paths;
}

/// Where a comparison with the live workspace learns what changed; none is needed between snapshots.
Result<snapshots::Store::ChangeSource> changes_for(const Exchange& exchange, bool with_live) {
  if (with_live) return exchange.service.sessions.changes_of(*exchange.session);
  return snapshots::Store::ChangeSource{[] { return ChangeSet(); }, [](const ChangeSet&) {}};
}

/// For whom the text of files is wanted, if it is.
std::optional<Caller> reader_of(const Exchange& exchange, QueryFields& query) {
  return query.flag("text") ? std::optional(exchange.request.peer.caller()) : std::nullopt;
}

}  // namespace

Result<Response> take_snapshot(Exchange& exchange) {
  Fields fields(exchange.request);
  const auto label = fields.text("label", kMaxLabel).value_or("");
  if (auto ended = fields.end(); !ended) return fail(ended.error());
  const auto pass = exchange.session->gate().share();
  if (!pass) return fail(pass.error());
  auto taken = exchange.service.sessions.take_snapshot(*exchange.session, label, exchange.request.progress);
  if (!taken) return fail(taken.error());
  auto view = view_of_snapshot(taken->snapshot);
  if (!taken->is_new) view["unchanged"] = true;
  return json_response(view, taken->is_new ? 201 : 200);
}

Result<Response> list_snapshots(Exchange& exchange) {
  QueryFields query(exchange.request.query);
  const auto limit = query.limit(kMostRows);
  const auto after = query.text("after").value_or("");
  if (auto ended = query.end(); !ended) return fail(ended.error());
  const auto pass = exchange.session->gate().share();
  if (!pass) return fail(pass.error());
  auto store = exchange.service.sessions.store_of(*exchange.session);
  if (!store) return fail(store.error());
  auto list = (*store)->list(limit + 1, after);
  if (!list) return fail(list.error());
  const bool is_more = list->size() > limit;
  if (is_more) list->pop_back();
  std::size_t texts = 0;
  for (const auto& snapshot : *list) texts += snapshot.text_size();
  Json views = Json::array();
  for (const auto& snapshot : *list) views.push_back(view_of_snapshot(snapshot));
  return json_response(
      {{"snapshots", std::move(views)}, {"truncated", is_more || texts >= snapshots::Store::kMostListed}});
}

Result<Response> show_snapshot(Exchange& exchange) {
  QueryFields query(exchange.request.query);
  const auto reader = reader_of(exchange, query);
  if (auto ended = query.end(); !ended) return fail(ended.error());
  if (auto turn = exchange.take_turn(exchange.service.listings); !turn) return fail(turn.error());
  const auto pass = exchange.session->gate().share();
  if (!pass) return fail(pass.error());
  auto store = exchange.service.sessions.store_of(*exchange.session);
  if (!store) return fail(store.error());
  const auto& name = exchange.request.captures["snapshot"];
  auto snapshot = (*store)->find(name);
  if (!snapshot) return fail(snapshot.error());
  auto changes = (*store)->show(name, reader, exchange.request.progress);
  if (!changes) return fail(changes.error());
  Json view{{"snapshot", view_of_snapshot(*snapshot)}};
  add_differences(view, "changes", *changes);
  return json_response(view);
}

Result<Response> diff_snapshots(Exchange& exchange) {
  QueryFields query(exchange.request.query);
  auto from = query.text("from").value_or("");
  const auto to = query.text("to");
  const auto reader = reader_of(exchange, query);
  if (auto ended = query.end(); !ended) return fail(ended.error());
  if (auto turn = exchange.take_turn(to ? exchange.service.listings : exchange.service.live_comparisons);
      !turn)
    return fail(turn.error());
  const auto pass = exchange.session->gate().share();
  if (!pass) return fail(pass.error());
  auto store = exchange.service.sessions.store_of(*exchange.session);
  if (!store) return fail(store.error());
  auto source = changes_for(exchange, !to);
  if (!source) return fail(source.error());
  if (from.empty())
    if (const auto newest = (*store)->list(1); newest && !newest->empty()) from = newest->front().id.text();
  const auto first = from.empty() ? std::nullopt : std::optional((*store)->find(from));
  const auto second = to ? std::optional((*store)->find(*to)) : std::nullopt;
  for (const auto* end : {&first, &second})
    if (*end && !**end) return fail((*end)->error());
  auto changes = (*store)->diff(from, to, *source, reader, exchange.request.progress);
  if (!changes) return fail(changes.error());
  Json view{{"from", first ? Json((*first)->id.text()) : Json()},
            {"to", second ? Json((*second)->id.text()) : Json()}};
  add_differences(view, "changes", *changes);
  return json_response(view);
}

Result<Response> restore_snapshot(Exchange& exchange) {
  Fields fields(exchange.request);
  const auto snapshot = fields.required_text("snapshot");
  const auto paths = read_paths(fields);
  const bool dry_run = fields.flag("dry_run");
  if (auto ended = fields.end(); !ended) return fail(ended.error());
  if (!paths) return fail(paths.error());
  const auto pass = exchange.session->gate().share();
  if (!pass) return fail(pass.error());
  auto restored =
      exchange.service.sessions.restore(*exchange.session, snapshot, *paths, exchange.request.peer.caller(),
                                        dry_run, exchange.request.progress);
  if (!restored) return fail(restored.error());
  return json_response(view_of_restore(dry_run, *restored));
}

Result<Response> undo_restore(Exchange& exchange) {
  if (auto ended = Fields(exchange.request).end(); !ended) return fail(ended.error());
  const auto pass = exchange.session->gate().share();
  if (!pass) return fail(pass.error());
  auto restored = exchange.service.sessions.restore(
      *exchange.session, std::nullopt, {}, exchange.request.peer.caller(), false, exchange.request.progress);
  if (!restored) return fail(restored.error());
  return json_response(view_of_restore(false, *restored));
}

Result<Response> fork_session(Exchange& exchange) {
  Fields fields(exchange.request);
  const auto snapshot = fields.text("snapshot");
  const auto id = fields.text("id");
  auto labels = fields.labels();
  if (auto ended = fields.end(); !ended) return fail(ended.error());
  if (snapshot && snapshot->empty())
    return fail(Code::kUnknownSnapshot, "snapshot: it is empty; leave it out to fork what is there now");
  const auto pass = exchange.session->gate().share();
  if (!pass) return fail(pass.error());
  auto& sessions = exchange.service.sessions;
  auto forked = sessions.fork(exchange.request.peer, *exchange.session, snapshot.value_or(""), id,
                              std::move(labels), exchange.request.progress);
  if (!forked) return fail(forked.error());
  const auto& session = **forked;
  auto response = json_response(view_of_session(exchange.service, session), 201);
  response.headers.emplace_back("Location", "/v1/sessions/" + session.id().text());
  return response;
}

Result<Response> verify_snapshot(Exchange& exchange) {
  QueryFields query(exchange.request.query);
  const auto snapshot = query.text("snapshot").value_or("");
  if (auto ended = query.end(); !ended) return fail(ended.error());
  if (auto turn = exchange.take_turn(exchange.service.verifications); !turn) return fail(turn.error());
  const auto pass = exchange.session->gate().share();
  if (!pass) return fail(pass.error());
  auto store = exchange.service.sessions.store_of(*exchange.session);
  if (!store) return fail(store.error());
  auto source = changes_for(exchange, true);
  if (!source) return fail(source.error());
  auto report = (*store)->verify(snapshot, *source, exchange.request.progress);
  if (!report) return fail(report.error());
  Json view{{"ok", report->problems.empty()}, {"objects", report->objects}};
  view["snapshot"] = report->snapshot ? Json(report->snapshot->text()) : Json();
  add_notes(view, "problems", report->problems);
  add_differences(view, "live_differences", report->live_differences);
  return json_response(view);
}

}  // namespace okcvm::daemon::routes
