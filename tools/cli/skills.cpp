#include "policy/percent_encoding.h"
#include "tools/cli/handlers.h"
#include "tools/cli/text.h"

namespace okcvm::cli::run {

namespace {

Outcome<void> print_loaded(const Context& context, const Json& answer) {
  if (context.json()) return context.print_json(answer);
  return context.print("loaded: " + visible(joined(list_in(answer, "skills"), "none")) + "\n");
}

}  // namespace

Outcome<void> skills(Context& context) {
  if (!context.args().argument("ID").empty()) {
    const auto answer = context.get(context.session("/skills"));
    if (!answer) return tl::unexpected(answer.error());
    if (context.json()) return context.print_json(*answer);
    std::string text;
    for (const auto& name : list_in(*answer, "skills"))
      if (name.is_string()) text += visible(name.get<std::string>()) + "\n";
    return context.print(text);
  }
  const auto answer = context.get("/v1/skills");
  if (!answer) return tl::unexpected(answer.error());
  if (context.json()) return context.print_json(*answer);
  Table table({"SKILL", "DESCRIPTION"});
  for (const auto& skill : list_in(*answer, "skills"))
    table.row({text_in(skill, "name"), text_in(skill, "description")});
  return context.print(table.text());
}

Outcome<void> skill_load(Context& context) {
  const auto answer = context.post(context.session("/skills"), {{"name", context.args().argument("NAME")}});
  if (!answer) return tl::unexpected(answer.error());
  return print_loaded(context, *answer);
}

Outcome<void> skill_unload(Context& context) {
  Request request;
  request.method = "DELETE";
  request.target = context.session("/skills/" + percent_encoded(context.args().argument("NAME")));
  const auto answer = context.send(request);
  if (!answer) return tl::unexpected(answer.error());
  return print_loaded(context, *answer);
}

}  // namespace okcvm::cli::run
