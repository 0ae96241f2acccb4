#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tools/cli/outcome.h"

namespace okcvm::cli {

class Context;

/// What a word on the command line stands for: how it is checked, and how a shell completes it.
enum class Kind : std::uint8_t {
  kText,
  kNumber,       // not negative, at most 2^31 - 1
  kCount,        // the same, but not 0
  kSession,      // an id or a unique prefix
  kSkill,        // of the host's registry
  kLoadedSkill,  // of the session before it
  kSnapshot,     // of the session before it
  kCheckpoint,   // of the session before it
  kAgent,
  kHostFile,
  kHostDirectory,
  kSessionPath,  // of the session before it
  kVerb,
  kChoice,  // one of `choices`
};

struct Argument {
  std::string_view name;  // "ID"
  Kind kind = Kind::kText;
  bool optional = false;
  bool repeated = false;
  std::vector<std::string_view> choices = {};
};

struct Option {
  std::string_view name;   // "label", given as --label
  char letter = 0;         // 'm', given as -m
  std::string_view value;  // "LABEL"; empty for a switch
  std::string_view help;
  Kind kind = Kind::kText;
  bool repeated = false;
  std::vector<std::string_view> choices = {};
};

enum class Group : std::uint8_t { kSessions, kSkills, kFiles, kSnapshots, kConversation, kHost };
std::string_view title_of(Group group);

/// One thing that `okcvm` does. This table drives parsing, --help, completion, the man page and the run
/// itself.
struct Verb {
  std::string_view name;  // may be two words: "skill load"
  Group group;
  std::string_view summary;  // one line, for lists
  std::string_view details;  // a paragraph, for `help VERB` and the man page; may be empty
  std::vector<Argument> arguments;
  std::vector<Option> options;
  std::string_view route;  // of the control socket; empty for what needs no daemon
  Outcome<void> (*run)(Context&);
};

/// Every verb, in the order in which they are shown.
const std::vector<Verb>& verbs();
/// What every verb also takes: --json, --socket, --help.
const std::vector<Option>& common_options();
/// The verb of that whole name; null if there is none.
const Verb* find_verb(std::string_view name);

inline constexpr std::string_view kDefaultSocket = "/run/okcvm/control.sock";

}  // namespace okcvm::cli
