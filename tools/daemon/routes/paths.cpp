#include "fusefs/session_mount.h"
#include "policy/prompt_paths.h"
#include "tools/daemon/http/uri.h"
#include "tools/daemon/routes/fields.h"
#include "tools/daemon/routes/handlers.h"
#include "tools/daemon/routes/views.h"

namespace okcvm::daemon::routes {
namespace {

constexpr std::size_t kMaxPrompt = 1024 * 1024;
constexpr std::size_t kMaxPath = 8192;

enum class ResolveMode : std::uint8_t { kStrict, kRebase, kPhysical };

std::optional<ResolveMode> mode_named(std::string_view name) {
  if (name == "strict") return ResolveMode::kStrict;
  if (name == "rebase") return ResolveMode::kRebase;
  if (name == "physical") return ResolveMode::kPhysical;
  return std::nullopt;
}

}  // namespace

Result<Response> resolve_path(Exchange& exchange) {
  Fields fields(exchange.request);
  const auto encoded = fields.text("encoded_path", 3 * kMaxPath);
  if (encoded && fields.has("path")) fields.refuse("encoded_path", "give either this or path");
  const auto text =
      encoded ? percent_decoded(*encoded) : Result<std::string>(fields.required_text("path", kMaxPath));
  const auto mode = mode_named(fields.text("mode").value_or("strict"));
  const bool must_exist = fields.flag("must_exist");
  const bool for_write = fields.flag("for_write");
  if (!mode) fields.refuse("mode", "strict, rebase or physical is needed");
  if (auto ended = fields.end(); !ended) return fail(ended.error());
  if (!text) return fail(text.error());

  const auto mount_point = exchange.service.sessions.mount_point_of(exchange.session->id()).string();
  const bool is_physical = *mode == ResolveMode::kPhysical;
  auto path = is_physical                     ? Result<RelPath>(RelPath())  // known once it was walked
              : *mode == ResolveMode::kRebase ? rebase_path(*text, mount_point)
                                              : RelPath::parse(*text);
  if (!path) return fail(path.error());
  const auto pass = exchange.session->gate().share();
  if (!pass) return fail(pass.error());
  auto mount = exchange.session->need_mount();
  if (!mount) return fail(mount.error());
  auto& files = (*mount)->files();
  const auto caller = exchange.request.peer.caller();
  // Every mode refuses a path that a link would lead out; only one answers where the links lead.
  const auto physical = files.resolve(caller, is_physical ? *text : path->text(), must_exist);
  if (!physical) return fail(physical.error());
  if (is_physical) path = physical;

  const auto info = files.stat(caller, *path, true);
  if (!info && (must_exist || info.error().code != Code::kNotFound)) return fail(info.error());
  const auto& rule = rule_of(zone_named(physical->top()));
  const bool is_there = rule.zone != Zone::kWorkdir || files.stat(caller, *RelPath::parse(rule.name), true);
  const bool writable = rule.write_error == 0 && is_there && !path->is_root();
  if (for_write && !writable)
    return fail(Code::kReadOnly, "only uploads/, outputs/, temp/ and a workdir/ that is bound can be written",
                path->text());
  Json view{{"path", path->text()},
            {"mount_path", path->is_root() ? mount_point : mount_point + "/" + path->text()},
            {"exists", info.has_value()},
            {"type", info ? Json(type_name(info->type)) : Json()},
            {"zone", rule.name},
            {"writable", writable}};
  add_encoded_path(view, *path);
  return json_response(view);
}

Result<Response> adapt_session_prompt(Exchange& exchange) {
  Fields fields(exchange.request);
  const auto prompt = fields.required_text("prompt", kMaxPrompt);
  if (auto ended = fields.end(); !ended) return fail(ended.error());
  const auto adapted =
      adapt_prompt(prompt, exchange.service.sessions.mount_point_of(exchange.session->id()).string());
  return json_response({{"prompt", adapted.text}, {"replaced", adapted.replaced}});
}

}  // namespace okcvm::daemon::routes
