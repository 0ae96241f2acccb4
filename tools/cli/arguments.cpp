#include "tools/cli/arguments.h"

#include <algorithm>
#include <charconv>

namespace okcvm::cli {

namespace {

constexpr long kLargestNumber = 2147483647;

std::string help_hint(const Verb* verb) {
  return "; see 'okcvm help" + (verb != nullptr ? " " + std::string(verb->name) : "") + "'";
}

Outcome<void> check_value(const Verb* verb, const std::string& what, Kind kind,
                          const std::vector<std::string_view>& choices, const std::string& value) {
  if (kind == Kind::kNumber || kind == Kind::kCount) {
    const long least = kind == Kind::kCount ? 1 : 0;
    long number = -1;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (value.empty() || error != std::errc() || end != value.data() + value.size() || number < least ||
        number > kLargestNumber)
      return usage(what + " must be a whole number from " + std::to_string(least) + " to 2147483647, not '" +
                   value + "'" + help_hint(verb));
  }
  if (kind == Kind::kChoice && std::ranges::find(choices, value) == choices.end()) {
    std::string offered;
    for (const auto choice : choices) offered += (offered.empty() ? "" : ", ") + std::string(choice);
    return usage(what + " must be one of " + offered + ", not '" + value + "'" + help_hint(verb));
  }
  const bool may_be_empty = kind == Kind::kText;
  if (value.empty() && !may_be_empty) return usage(what + " is empty" + help_hint(verb));
  return {};
}

/// The verb that the first words name, and how many words that took. The longest name wins.
std::pair<const Verb*, std::size_t> match_verb(const std::vector<std::string>& words) {
  if (words.empty()) return {nullptr, 0};
  if (words.size() > 1)
    if (const Verb* verb = find_verb(words[0] + " " + words[1])) return {verb, 2};
  return {find_verb(words[0]), 1};
}

/// "load, unload" for the first word of two-word verbs; empty for any other word.
std::string second_words(const std::string& first) {
  std::string names;
  for (const auto& verb : verbs())
    if (verb.name.starts_with(first + " "))
      names += (names.empty() ? "" : ", ") + std::string(verb.name.substr(first.size() + 1));
  return names;
}

class Parser {
 public:
  explicit Parser(const std::vector<std::string>& words) : words_(words) {}

  Outcome<Invocation> parse() {
    find_verb_first();
    for (next_ = 0; next_ < words_.size(); ++next_)
      if (auto taken = take(words_[next_]); !taken) return tl::unexpected(taken.error());
    if (auto placed = place_arguments(); !placed) return tl::unexpected(placed.error());
    return std::move(found_);
  }

 private:
  /// The verb decides which options take a value, so it is looked for before anything is taken apart: the
  /// first words that are not options, with the common options' values stepped over.
  void find_verb_first() {
    std::vector<std::string> plain;
    for (std::size_t i = 0; i < words_.size() && plain.size() < 2 && words_[i] != "--"; ++i) {
      if (words_[i] == "--socket")
        ++i;
      else if (!words_[i].starts_with('-'))
        plain.push_back(words_[i]);
    }
    std::tie(found_.verb, verb_words_) = match_verb(plain);
  }

  Outcome<void> take(const std::string& word) {
    if (only_arguments_ || word == "-" || !word.starts_with('-')) {
      plain_.push_back(word);
      return {};
    }
    if (word == "--") {
      only_arguments_ = true;
      return {};
    }
    if (word.starts_with("--")) {
      const auto equals = word.find('=');
      const auto name = word.substr(2, equals == std::string::npos ? std::string::npos : equals - 2);
      const Option* option = find_option([&](const Option& candidate) { return candidate.name == name; });
      if (option == nullptr) return unknown("--" + name);
      if (equals == std::string::npos) return take_option(*option, std::nullopt);
      if (option->value.empty()) return usage("--" + name + " takes no value" + help_hint(found_.verb));
      return take_option(*option, word.substr(equals + 1));
    }
    return take_letters(word);
  }

  /// "-m LABEL", "-mLABEL".
  Outcome<void> take_letters(const std::string& word) {
    const char letter = word[1];
    const Option* option = find_option([&](const Option& candidate) { return candidate.letter == letter; });
    if (option == nullptr) return unknown(word.substr(0, 2));
    if (word.size() == 2) return take_option(*option, std::nullopt);
    if (option->value.empty()) return unknown(word);
    return take_option(*option, word.substr(2));
  }

  Outcome<void> take_option(const Option& option, std::optional<std::string> value) {
    const std::string shown = "--" + std::string(option.name);
    auto& values = found_.options[std::string(option.name)];
    if (option.value.empty()) {
      values.emplace_back();
      return {};
    }
    if (!value) {
      if (next_ + 1 >= words_.size()) return usage(shown + " needs a value" + help_hint(found_.verb));
      value = words_[++next_];
    }
    if (auto good = check_value(found_.verb, shown, option.kind, option.choices, *value); !good) return good;
    if (!option.repeated) values.clear();
    values.push_back(std::move(*value));
    return {};
  }

  template <typename Matches>
  const Option* find_option(Matches matches) const {
    if (found_.verb != nullptr)
      for (const auto& option : found_.verb->options)
        if (matches(option)) return &option;
    for (const auto& option : common_options())
      if (matches(option)) return &option;
    return nullptr;
  }

  Outcome<void> unknown(const std::string& option) const {
    return usage("unknown option '" + option + "'" + help_hint(found_.verb));
  }

  Outcome<void> place_arguments() {
    const bool help = found_.has("help");
    if (found_.verb == nullptr) {
      if (help && plain_.empty()) return {};
      if (plain_.empty()) return usage("no verb given" + help_hint(nullptr));
      if (const auto seconds = second_words(plain_[0]); !seconds.empty()) {
        if (help) return explain_family();
        return usage("'" + plain_[0] + "' needs one of: " + seconds + help_hint(nullptr));
      }
      return usage("there is no verb '" + plain_[0] + "'" + help_hint(nullptr));
    }
    std::size_t at = verb_words_;
    for (const auto& argument : found_.verb->arguments) {
      auto& values = found_.arguments[std::string(argument.name)];
      const std::string shown(argument.name);
      if (at >= plain_.size() && !argument.optional && !help)
        return usage("'okcvm " + std::string(found_.verb->name) + "' needs " + shown +
                     help_hint(found_.verb));
      while (at < plain_.size()) {
        if (auto good = check_value(found_.verb, shown, argument.kind, argument.choices, plain_[at]); !good)
          return good;
        values.push_back(plain_[at++]);
        if (!argument.repeated) break;
      }
    }
    if (at < plain_.size() && !help)
      return usage("'" + plain_[at] + "' is an unexpected argument" + help_hint(found_.verb));
    return {};
  }

  /// `okcvm skill --help` is `okcvm help skill`.
  Outcome<void> explain_family() {
    found_.verb = find_verb("help");
    found_.options.erase("help");
    found_.arguments["VERB"] = {plain_[0]};
    return {};
  }

  const std::vector<std::string>& words_;
  std::size_t next_ = 0;
  bool only_arguments_ = false;
  std::size_t verb_words_ = 0;
  std::vector<std::string> plain_;
  Invocation found_;
};

}  // namespace

std::string Invocation::argument(std::string_view name) const {
  const auto found = arguments.find(name);
  return found == arguments.end() || found->second.empty() ? std::string() : found->second.front();
}

std::vector<std::string> Invocation::all(std::string_view argument) const {
  const auto found = arguments.find(argument);
  return found == arguments.end() ? std::vector<std::string>() : found->second;
}

std::optional<std::string> Invocation::option(std::string_view name) const {
  const auto found = options.find(name);
  if (found == options.end() || found->second.empty()) return std::nullopt;
  return found->second.front();
}

std::vector<std::string> Invocation::each(std::string_view option) const {
  const auto found = options.find(option);
  return found == options.end() ? std::vector<std::string>() : found->second;
}

Outcome<Invocation> parse_arguments(const std::vector<std::string>& words) {
  return Parser(words).parse();
}

}  // namespace okcvm::cli
