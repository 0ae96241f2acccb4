#include "tools/cli/help.h"

#include "tools/cli/text.h"

namespace okcvm::cli {

namespace {

constexpr std::size_t kColumn = 18;

std::string padded(std::string text, std::size_t width) {
  if (text.size() < width) text.resize(width, ' ');
  return text;
}

std::string options_text(const std::vector<Option>& options) {
  std::string text;
  for (const auto& option : options) {
    text += "  " + spelling_of(option) + "\n" + wrapped(option.help, 8);
    std::string choices;
    for (const auto choice : option.choices)
      choices += (choices.empty() ? "One of " : ", ") + std::string(choice);
    if (!choices.empty()) text += wrapped(choices + ".", 8);
  }
  return text;
}

std::string verb_line(const Verb& verb) {
  return "  " + padded(std::string(verb.name), kColumn - 1) + " " + std::string(verb.summary) + "\n";
}

}  // namespace

std::string synopsis_of(const Verb& verb) {
  std::string text(verb.name);
  for (const auto& argument : verb.arguments) {
    const std::string word = std::string(argument.name) + (argument.repeated ? "..." : "");
    text += argument.optional ? " [" + word + "]" : " " + word;
  }
  return verb.options.empty() ? text : text + " [OPTION...]";
}

std::string spelling_of(const Option& option) {
  const std::string letter = option.letter == 0 ? "" : std::string{'-', option.letter, ',', ' '};
  return letter + "--" + std::string(option.name) +
         (option.value.empty() ? "" : " " + std::string(option.value));
}

std::string overview() {
  std::string text =
      "okcvm " OKCVM_VERSION
      " - private file systems for agent sessions, with snapshots\n\n"
      "  okcvm VERB [ARGUMENT...] [OPTION...]\n\n"
      "ID is a session's id or the start of it that no other has; SNAP likewise, at least 4 digits.\n";
  Group shown{};
  bool first = true;
  for (const auto& verb : verbs()) {
    if (first || verb.group != shown) text += "\n" + std::string(title_of(verb.group)) + "\n";
    first = false;
    shown = verb.group;
    text += verb_line(verb);
  }
  return text + "\nEvery verb takes\n" + options_text(common_options()) +
         "\nExit status: 0 done, 1 refused or failed, 2 usage error. More: okcvm help VERB, man okcvm.\n";
}

std::string help_text(const Verb& verb) {
  std::string text = "okcvm " + synopsis_of(verb) + "\n\n" + wrapped(verb.summary, 2);
  if (!verb.details.empty()) text += "\n" + wrapped(verb.details, 2);
  if (!verb.options.empty()) text += "\nOptions\n" + options_text(verb.options);
  text += "\nEvery verb takes\n" + options_text(common_options());
  if (!verb.route.empty()) text += "\nAsks the daemon: " + std::string(verb.route) + "\n";
  return text;
}

std::string family_help(std::string_view first_word) {
  std::string text;
  for (const auto& verb : verbs())
    if (verb.name.starts_with(std::string(first_word) + " ")) text += verb_line(verb);
  return text;
}

}  // namespace okcvm::cli
