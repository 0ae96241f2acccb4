#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/cli/outcome.h"
#include "tools/cli/verbs.h"

namespace okcvm::cli {

/// A command line, taken apart by the table of verbs and checked: required arguments are there, numbers are
/// numbers, choices are among those offered.
struct Invocation {
  const Verb* verb = nullptr;
  std::map<std::string, std::vector<std::string>, std::less<>> arguments;  // by name, "ID"
  std::map<std::string, std::vector<std::string>, std::less<>> options;    // by name, "label"

  /// The first word given for an argument; empty if none was.
  std::string argument(std::string_view name) const;
  std::vector<std::string> all(std::string_view argument) const;
  bool has(std::string_view option) const { return options.contains(option); }
  std::optional<std::string> option(std::string_view name) const;
  std::vector<std::string> each(std::string_view option) const;
};

/// `words` without the program's name. Options may stand anywhere until "--". `--help` anywhere asks for help
/// and lets the rest be incomplete. Fails with `invalid_request` and exit status 2, and says how to get help.
Outcome<Invocation> parse_arguments(const std::vector<std::string>& words);

}  // namespace okcvm::cli
