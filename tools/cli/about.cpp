#include "tools/cli/completion.h"
#include "tools/cli/handlers.h"
#include "tools/cli/help.h"

namespace okcvm::cli::run {

Outcome<void> completion(Context& context) {
  return context.print_text(completion_script(context.args().argument("SHELL")));
}

Outcome<void> help(Context& context) {
  if (context.args().has("man")) return context.print_text(manual_page());
  std::string name;
  for (const auto& word : context.args().all("VERB")) name += (name.empty() ? "" : " ") + word;
  if (name.empty()) return context.print_text(overview());
  if (const Verb* verb = find_verb(name)) return context.print_text(help_text(*verb));
  const auto family = family_help(name);
  if (family.empty()) return usage("there is no verb '" + name + "'; see 'okcvm help'");
  return context.print_text(family);
}

Outcome<void> version(Context& context) {
  if (context.json()) return context.print_json(Json{{"version", OKCVM_VERSION}});
  return context.print("okcvm " OKCVM_VERSION "\n");
}

}  // namespace okcvm::cli::run
