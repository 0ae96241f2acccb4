#include <algorithm>
#include <array>

#include "policy/iso_time.h"
#include "policy/random_bits.h"
#include "tools/daemon/host/clock.h"
#include "tools/daemon/routes/fields.h"
#include "tools/daemon/routes/handlers.h"
#include "tools/daemon/routes/views.h"

namespace okcvm::daemon::routes {
namespace {

constexpr std::string_view kNotInAddresses("/\0", 2);
constexpr std::int64_t kMostCheckpoints = 1'000'000;  // --max-checkpoints keeps them fewer

Json view_of_checkpoint(const Checkpoint& checkpoint, const std::optional<std::string>& head) {
  return {{"id", checkpoint.id},
          {"parent_id", or_null(checkpoint.parent)},
          {"snapshot", or_null(checkpoint.snapshot)},
          {"created_at", time_text(checkpoint.created_at)},
          {"bytes", checkpoint.bytes},
          {"head", head == checkpoint.id}};
}

Json view_with_data(const Checkpoint& checkpoint, const std::optional<std::string>& head) {
  auto view = view_of_checkpoint(checkpoint, head);
  bool is_too_deep = false;  // to be shown: that takes stack
  const auto look = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    is_too_deep |= depth > static_cast<int>(kMaxDepth);
    return !is_too_deep;
  };
  // Not as Json, which looks through an object's names for each new one. They were saved in order.
  const auto data = nlohmann::json::parse(checkpoint.data, look, false);
  // Older tables may hold something else than JSON.
  view["data"] = data.is_discarded() || is_too_deep ? Json(checkpoint.data) : Json(data);
  return view;
}

/// "latest" is the head, or the newest where no head is known.
Result<Checkpoint> find_checkpoint(Exchange& exchange) {
  // Without a share of it the session may be gone, and its id somebody else's.
  const auto pass = exchange.session->gate().share();
  if (!pass) return fail(pass.error());
  auto& registry = exchange.service.sessions.registry();
  const auto& session = exchange.session->id();
  auto name = exchange.request.captures["checkpoint"];
  if (name == "latest") {
    if (const auto head = exchange.session->record().head_checkpoint) {
      name = *head;
    } else {
      auto newest = registry.checkpoints(session, 1);
      if (!newest) return fail(newest.error());
      if (newest->empty()) return fail(Code::kNotFound, "the session has no checkpoints: save one first");
      name = newest->front().id;
    }
  }
  return registry.checkpoint(session, name);
}

/// The snapshot that a checkpoint is to stand beside: taken now, or one that exists.
Result<std::optional<std::string>> snapshot_for(Exchange& exchange, const Json& asked) {
  if (asked.is_null() || asked == Json(false)) return std::nullopt;
  auto& sessions = exchange.service.sessions;
  const auto pass = exchange.session->gate().share();
  if (!pass) return fail(pass.error());
  if (asked.is_boolean()) {
    auto taken = sessions.take_snapshot(*exchange.session, {}, exchange.request.progress);
    if (!taken) return fail(taken.error());
    return taken->snapshot.id.text();
  }
  if (!asked.is_string()) return fail(Code::kInvalidRequest, "snapshot: true or a snapshot's id is needed");
  auto store = sessions.store_of(*exchange.session);
  if (!store) return fail(store.error());
  auto found = (*store)->find(asked.get<std::string>());
  if (!found) return fail(found.error());
  return found->id.text();
}

}  // namespace

Result<Response> save_checkpoint(Exchange& exchange) {
  Fields fields(exchange.request);
  const auto data = fields.required_value("data");
  Checkpoint checkpoint;
  checkpoint.id = fields.text("id", 128).value_or(random_name());
  // Clients take "." and ".." out of an address before they ask for it (RFC 3986, 6.2.2.3).
  constexpr std::array<std::string_view, 4> kTaken{"", ".", "..", "latest"};
  if (std::find(kTaken.begin(), kTaken.end(), checkpoint.id) != kTaken.end() ||
      checkpoint.id.find_first_of(kNotInAddresses) != std::string::npos)
    fields.refuse("id", "1 to 128 bytes without a slash or NUL are needed, not \"latest\", \".\" or \"..\"");
  checkpoint.parent = fields.text("parent_id", 128);
  const Json asked = fields.has("snapshot") ? Json(fields.required_value("snapshot")) : Json();
  if (auto ended = fields.end(); !ended) return fail(ended.error());

  auto& sessions = exchange.service.sessions;
  const auto alone = exchange.session->checkpoint_gate().alone();
  if (!alone) return fail(alone.error());
  // Refused before a snapshot is taken for it.
  if (auto taken = sessions.can_add_checkpoint(*exchange.session, checkpoint); !taken)
    return fail(taken.error());
  auto snapshot = snapshot_for(exchange, asked);
  if (!snapshot) return fail(snapshot.error());
  checkpoint.snapshot = std::move(*snapshot);
  checkpoint.created_at = time_now();
  checkpoint.data = data.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  checkpoint.bytes = checkpoint.data.size();
  if (auto added = sessions.add_checkpoint(*exchange.session, checkpoint); !added) return fail(added.error());
  return json_response(view_of_checkpoint(checkpoint, checkpoint.id), 201);
}

Result<Response> list_checkpoints(Exchange& exchange) {
  QueryFields query(exchange.request.query);
  const auto limit = query.integer("limit", 1, kMostCheckpoints).value_or(kMostCheckpoints);
  if (auto ended = query.end(); !ended) return fail(ended.error());
  const auto pass = exchange.session->gate().share();
  if (!pass) return fail(pass.error());
  auto list = exchange.service.sessions.registry().checkpoints(exchange.session->id(),
                                                               static_cast<std::size_t>(limit));
  if (!list) return fail(list.error());
  const auto head = exchange.session->record().head_checkpoint;
  Json views = Json::array();
  for (const auto& checkpoint : *list) views.push_back(view_of_checkpoint(checkpoint, head));
  return json_response({{"checkpoints", std::move(views)}});
}

Result<Response> load_checkpoint(Exchange& exchange) {
  if (auto ended = QueryFields(exchange.request.query).end(); !ended) return fail(ended.error());
  if (auto turn = exchange.take_turn(exchange.service.documents); !turn) return fail(turn.error());
  auto checkpoint = find_checkpoint(exchange);
  if (!checkpoint) return fail(checkpoint.error());
  return json_response(view_with_data(*checkpoint, exchange.session->record().head_checkpoint));
}

Result<Response> restore_checkpoint(Exchange& exchange) {
  if (auto ended = Fields(exchange.request).end(); !ended) return fail(ended.error());
  const auto alone = exchange.session->checkpoint_gate().alone();
  if (!alone) return fail(alone.error());
  auto checkpoint = find_checkpoint(exchange);
  if (!checkpoint) return fail(checkpoint.error());
  auto& sessions = exchange.service.sessions;
  Json restored;
  if (checkpoint->snapshot) {
    const auto pass = exchange.session->gate().share();
    if (!pass) return fail(pass.error());
    auto result = sessions.restore(*exchange.session, *checkpoint->snapshot, {},
                                   exchange.request.peer.caller(), false, exchange.request.progress);
    if (!result) return fail(result.error());
    restored = view_of_restore(false, *result);
  }
  if (auto set = sessions.set_head(*exchange.session, checkpoint->id); !set) {
    Error error = set.error();
    if (checkpoint->snapshot)
      error.message = "the files are restored, but the checkpoint is not the head: " + error.message;
    return fail(std::move(error));
  }
  return json_response(
      {{"checkpoint", view_with_data(*checkpoint, checkpoint->id)}, {"restored", std::move(restored)}});
}

}  // namespace okcvm::daemon::routes
