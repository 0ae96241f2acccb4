#include "policy/iso_time.h"
#include "tools/daemon/routes/fields.h"
#include "tools/daemon/routes/handlers.h"
#include "tools/daemon/routes/views.h"

/// The workspace routes of the older service [S0, S1]: its names and shapes over our snapshots.
namespace okcvm::daemon::routes {
namespace {

constexpr std::int64_t kDefaultLimit = 20;

Json seed_view(const snapshots::Snapshot& snapshot) {
  auto view = view_of_snapshot(snapshot);
  if (!snapshot.damaged) view["timestamp"] = time_text(snapshot.created_at);
  return view;
}

Result<Json> seed_list(const Exchange& exchange, std::int64_t limit) {
  auto store = exchange.service.sessions.store_of(*exchange.session);
  if (!store) return fail(store.error());
  auto list = (*store)->list(static_cast<std::size_t>(limit));
  if (!list) return fail(list.error());
  Json views = Json::array();
  for (const auto& snapshot : *list) views.push_back(seed_view(snapshot));
  return views;
}

}  // namespace

Result<Response> seed_list_snapshots(Exchange& exchange) {
  QueryFields query(exchange.request.query);
  const auto limit = query.integer("limit", 1, 10'000).value_or(kDefaultLimit);
  if (auto ended = query.end(); !ended) return fail(ended.error());
  const auto pass = exchange.session->gate().share();
  if (!pass) return fail(pass.error());
  auto views = seed_list(exchange, limit);
  if (!views) return fail(views.error());
  return json_response({{"snapshots", std::move(*views)}});
}

Result<Response> seed_take_snapshot(Exchange& exchange) {
  Fields fields(exchange.request);
  const auto label = fields.text("label", kMaxLabel).value_or("");
  if (auto ended = fields.end(); !ended) return fail(ended.error());
  const auto pass = exchange.session->gate().share();
  if (!pass) return fail(pass.error());
  auto taken = exchange.service.sessions.take_snapshot(*exchange.session, label, exchange.request.progress);
  if (!taken) return fail(taken.error());
  auto view = seed_view(taken->snapshot);
  if (!taken->is_new) view["unchanged"] = true;
  return json_response(view);
}

Result<Response> seed_restore(Exchange& exchange) {
  Fields fields(exchange.request);
  std::string snapshot;
  for (const char* name : {"snapshot_id", "snapshot", "id"})
    if (const auto given = fields.text(name)) snapshot = *given;
  if (snapshot.empty()) fields.refuse("snapshot_id", "it is missing");
  if (auto ended = fields.end(); !ended) return fail(ended.error());
  const auto pass = exchange.session->gate().share();
  if (!pass) return fail(pass.error());
  auto restored = exchange.service.sessions.restore(
      *exchange.session, snapshot, {}, exchange.request.peer.caller(), false, exchange.request.progress);
  if (!restored) return fail(restored.error());
  auto views = seed_list(exchange, kDefaultLimit);
  if (!views) return fail(views.error());
  auto view = view_of_restore(false, *restored);
  view["restored"] = true;
  view["snapshot_id"] = view["snapshot"];
  view["snapshots"] = std::move(*views);
  return json_response(view);
}

}  // namespace okcvm::daemon::routes
