#include "tools/daemon/routes/fields.h"
#include "tools/daemon/routes/handlers.h"
#include "tools/daemon/routes/views.h"

namespace okcvm::daemon::routes {
namespace {

Response skills_response(const Exchange& exchange, int status = 200) {
  return json_response({{"skills", exchange.session->record().skills}}, status);
}

}  // namespace

Result<Response> list_skills(Exchange& exchange) {
  if (auto ended = QueryFields(exchange.request.query).end(); !ended) return fail(ended.error());
  Json list = Json::array();
  for (const auto& skill : exchange.service.sessions.skills().list())
    list.push_back({{"name", skill.name}, {"description", or_null(skill.description)}});
  return json_response({{"skills", std::move(list)}});
}

Result<Response> session_skills(Exchange& exchange) {
  if (auto ended = QueryFields(exchange.request.query).end(); !ended) return fail(ended.error());
  return skills_response(exchange);
}

Result<Response> load_skill(Exchange& exchange) {
  Fields fields(exchange.request);
  const auto name = fields.required_text("name");
  if (auto ended = fields.end(); !ended) return fail(ended.error());
  auto loaded = exchange.service.sessions.load_skill(*exchange.session, name);
  if (!loaded) return fail(loaded.error());
  return skills_response(exchange, *loaded ? 201 : 200);
}

Result<Response> unload_skill(Exchange& exchange) {
  if (auto ended = QueryFields(exchange.request.query).end(); !ended) return fail(ended.error());
  if (auto unloaded =
          exchange.service.sessions.unload_skill(*exchange.session, exchange.request.captures["name"]);
      !unloaded)
    return fail(unloaded.error());
  return skills_response(exchange);
}

}  // namespace okcvm::daemon::routes
