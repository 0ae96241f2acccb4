#include "tools/cli/completion.h"

#include <array>
#include <set>

#include "tools/cli/verbs.h"

namespace okcvm::cli {

namespace {

/// A word's kind as the scripts below name it; "choice:a,b" carries its choices.
std::string script_kind(Kind kind, const std::vector<std::string_view>& choices) {
  switch (kind) {
    case Kind::kText:
    case Kind::kNumber:
    case Kind::kCount:
      return "nothing";
    case Kind::kSession:
      return "session";
    case Kind::kSkill:
      return "skill";
    case Kind::kLoadedSkill:
      return "loaded";
    case Kind::kSnapshot:
      return "snapshot";
    case Kind::kCheckpoint:
      return "checkpoint";
    case Kind::kAgent:
      return "agent";
    case Kind::kHostFile:
      return "file";
    case Kind::kHostDirectory:
      return "directory";
    case Kind::kSessionPath:
      return "path";
    case Kind::kVerb:
      return "verb";
    case Kind::kChoice: {
      std::string name = "choice";
      for (std::size_t i = 0; i < choices.size(); ++i) name += (i == 0 ? ":" : ",") + std::string(choices[i]);
      return name;
    }
  }
  return "nothing";
}

/// The text between single quotes of a shell.
std::string single_quoted(std::string_view text) {
  std::string safe = "'";
  for (const char c : text) safe += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return safe + "'";
}

std::string all_spellings(const Option& option) {
  return (option.letter == 0 ? "" : std::string{'-', option.letter, ' '}) + "--" + std::string(option.name);
}

template <typename Use>
void for_each_option(const Verb& verb, Use use) {
  for (const auto& option : verb.options) use(option);
  for (const auto& option : common_options()) use(option);
}

/// Functions that bash and zsh share: the table, as `case` statements.
std::string table_functions() {
  std::string verb_names, options, values, arguments;
  for (const auto& verb : verbs()) {
    const std::string name = single_quoted(verb.name);
    verb_names += "    " + single_quoted(std::string(verb.name) + ":" + std::string(verb.summary)) + " \\\n";
    options += "    " + name + ") echo '";
    arguments += "    " + name + ") echo '";
    for (const auto& argument : verb.arguments)
      arguments += script_kind(argument.kind, argument.choices) + (argument.repeated ? "+ " : " ");
    arguments += "' ;;\n";
    for_each_option(verb, [&](const Option& option) {
      options += all_spellings(option) + " ";
      if (option.value.empty()) return;
      const std::string kind = script_kind(option.kind, option.choices);
      values += "    " + single_quoted(std::string(verb.name) + " --" + std::string(option.name));
      if (option.letter != 0) values += "|" + single_quoted(std::string(verb.name) + " -" + option.letter);
      values += ") echo '" + kind + "' ;;\n";
    });
    options += "' ;;\n";
  }
  return "_okcvm_verbs() {\n  printf '%s\\n' \\\n" + verb_names + "    ;\n}\n" +
         "_okcvm_options() {\n  case \"$1\" in\n" + options +
         "    *) echo '--json --socket --help --version' ;;\n  esac\n}\n" +
         "_okcvm_value() {\n  case \"$1 $2\" in\n" + values + "    *' --socket') echo file ;;\n  esac\n}\n" +
         "_okcvm_arguments() {\n  case \"$1\" in\n" + arguments + "  esac\n}\n";
}

// Shared by bash and zsh. $1 is the kind, $2 the session named before, $3 the word so far; candidates go out
// one a line. The daemon is asked for names; without it there are none.
constexpr std::string_view kSharedCode = R"SH(_okcvm_ask() {
  if [ -n "$_okcvm_socket" ]; then
    OKCVM_SOCKET=$_okcvm_socket okcvm "$@" 2>/dev/null
  else
    okcvm "$@" 2>/dev/null
  fi
}
_okcvm_candidates() {
  case "$1" in
    session) _okcvm_ask list | awk 'NR > 1 { print $1 }' ;;
    skill) _okcvm_ask skills | awk 'NR > 1 { print $1 }' ;;
    loaded) [ -n "$2" ] && _okcvm_ask skills "$2" ;;
    snapshot) [ -n "$2" ] && _okcvm_ask snapshots "$2" -n 50 | awk 'NR > 1 { print $1 }' ;;
    checkpoint) [ -n "$2" ] && _okcvm_ask checkpoint list "$2" -n 50 | awk 'NR > 1 { print ($1 == "*" ? $2 : $1) }' ;;
    agent) _okcvm_ask agents | awk 'NR > 1 { print $1 }' ;;
    path)
      local folder=.
      case "$3" in */*) folder=${3%/*} ;; esac
      [ -n "$2" ] && _okcvm_ask ls "$2" "$folder" |
        sed -e 's/^\[[A-Z]*\] *//' -e 's/ ([0-9]* bytes)$//' -e 's/ -> .*$//' -e 's/ (leads out of the session)$//' ;;
    verb) _okcvm_first=$2 _okcvm_verb_words | sed 's/:.*//' ;;
    choice:*) printf '%s\n' "${1#choice:}" | tr ',' '\n' ;;
  esac
}
# Reads the words before the one being typed, given as arguments: sets _okcvm_verb, _okcvm_first (the first word),
# _okcvm_session, _okcvm_socket and _okcvm_wanted (the kind of the word being typed).
_okcvm_read_words() {
  local word option='' position=0 kinds kind
  _okcvm_verb='' _okcvm_first='' _okcvm_session='' _okcvm_socket='' _okcvm_wanted=verbs
  for word in "$@"; do
    if [ -n "$option" ]; then
      [ "$word" = = ] && continue  # bash takes --option=value apart
      [ "$option" = --socket ] && _okcvm_socket=$word
      option=''
      continue
    fi
    case "$word" in
      --socket=*) _okcvm_socket=${word#*=} ;;
      --*=*) ;;
      -?*) [ -n "$(_okcvm_value "$_okcvm_verb" "$word")" ] && option=$word ;;
      *)
        if [ -z "$_okcvm_verb" ]; then
          if [ -n "$_okcvm_first" ]; then word="$_okcvm_first $word"; fi
          case $'\n'$(_okcvm_verbs) in
            *$'\n'"$word:"*) _okcvm_verb=$word ;;
            *) _okcvm_first=$word ;;
          esac
        else
          position=$((position + 1))
          [ "$position" = 1 ] && _okcvm_session=$word
        fi ;;
    esac
  done
  if [ -n "$option" ]; then
    _okcvm_wanted=$(_okcvm_value "$_okcvm_verb" "$option")
  elif [ -n "$_okcvm_verb" ]; then
    _okcvm_wanted=nothing
    kinds="$(_okcvm_arguments "$_okcvm_verb")"
    while [ -n "$kinds" ]; do
      kind=${kinds%% *}
      kinds=${kinds#* }
      case "$kind" in *+) _okcvm_wanted=${kind%+}; break ;; esac
      [ "$position" = 0 ] && { _okcvm_wanted=$kind; break; }
      position=$((position - 1))
    done
  fi
}
# The words that may stand where a verb does: whole verbs, or the second word of one.
_okcvm_verb_words() {
  local verb
  if [ -n "$_okcvm_first" ]; then
    _okcvm_verbs | while IFS= read -r verb; do
      case "$verb" in "$_okcvm_first "*) printf '%s\n' "${verb#"$_okcvm_first "}" ;; esac
    done
  else
    _okcvm_verbs | sed 's/^\([^ :]*\) [^:]*:.*/\1:More than one verb/' | sort -u
  fi
}
)SH";

constexpr std::string_view kBashCode =
    R"SH(# Offers those of the lines read that begin with the word so far. Names are other people's: they are quoted (here, or
# by readline as file names), and never expanded.
_okcvm_offer() {
  local line
  COMPREPLY=()
  while IFS= read -r line; do
    case "$line" in "$cur"*) ;; *) continue ;; esac
    [ "$1" = names ] || printf -v line %q "$line"
    COMPREPLY+=("$line")
  done
}
_okcvm() {
  local cur=${COMP_WORDS[COMP_CWORD]}
  local _okcvm_verb _okcvm_first _okcvm_session _okcvm_socket _okcvm_wanted
  _okcvm_read_words "${COMP_WORDS[@]:1:COMP_CWORD-1}"
  [ "$cur" = = ] && cur=''
  case "$cur" in
    -*)
      _okcvm_offer < <(_okcvm_options "$_okcvm_verb" | tr -s ' ' '\n')
      return ;;
  esac
  case "$_okcvm_wanted" in
    verbs) _okcvm_offer < <(_okcvm_verb_words | sed 's/:.*//') ;;
    file) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
    directory) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
    path)
      compopt -o nospace -o filenames
      cur=${cur#[\"\']}
      cur=${cur//\\/}
      _okcvm_offer names < <(_okcvm_candidates path "$_okcvm_session" "$cur") ;;
    *) _okcvm_offer < <(_okcvm_candidates "$_okcvm_wanted" "$_okcvm_session" "$cur") ;;
  esac
}
complete -F _okcvm okcvm
)SH";

constexpr std::string_view kZshCode = R"SH(_okcvm() {
  local _okcvm_verb _okcvm_first _okcvm_session _okcvm_socket _okcvm_wanted
  local cur=${words[CURRENT]}
  local -a found
  _okcvm_read_words "${(@)words[2,CURRENT-1]}"
  if [[ $cur == --*=* ]]; then
    _okcvm_wanted=$(_okcvm_value "$_okcvm_verb" "${cur%%=*}")
    cur=${cur#*=}
    compset -P 1 '*='
  fi
  if [[ $cur == -* ]]; then
    compadd -- $(_okcvm_options "$_okcvm_verb")
    return
  fi
  case "$_okcvm_wanted" in
    verbs) found=("${(@f)$(_okcvm_verb_words)}"); _describe verb found ;;
    file) _files ;;
    directory) _files -/ ;;
    path) found=("${(@f)$(_okcvm_candidates path "$_okcvm_session" "$cur")}"); compadd -S '' -- $found ;;
    *) found=("${(@f)$(_okcvm_candidates "$_okcvm_wanted" "$_okcvm_session" "$cur")}"); compadd -- $found ;;
  esac
}
if [ "$funcstack[1]" = _okcvm ]; then _okcvm "$@"; else compdef _okcvm okcvm; fi
)SH";

constexpr std::string_view kFishCode = R"SH(function __okcvm_plain
    set -l is_value no
    for word in (commandline -opc)[2..-1]
        if test $is_value = yes
            set is_value no
        else if string match -q -- '-*' $word
            contains -- $word $__okcvm_valued; and set is_value yes
        else
            echo $word
        end
    end
end
function __okcvm_ask
    set -l words (commandline -opc)
    set -l at (contains -i -- --socket $words); and set -lx OKCVM_SOCKET $words[(math $at + 1)]
    set -l given (string match -- '--socket=*' $words); and set -lx OKCVM_SOCKET (string sub -s 10 -- $given[-1])
    okcvm $argv 2>/dev/null
end
function __okcvm_at
    set -l plain (__okcvm_plain)
    set -l verb (string split ' ' -- $argv[1])
    test (count $plain) -ge (count $verb); or return 1
    test "$plain[1..$(count $verb)]" = "$argv[1]"; or return 1
    set -q argv[2]; or return 0
    set -l position (math (count $plain) - (count $verb))
    test $position -eq $argv[2]; and return 0
    set -q argv[3]; and test $position -gt $argv[2]
end
function __okcvm_first
    test (count (__okcvm_plain)) -eq 0
end
function __okcvm_second
    test "$(__okcvm_plain)" = "$argv[1]"
end
function __okcvm_helped
    test "$(string join ' ' -- (__okcvm_plain))" = "help $argv[1]"
end
function __okcvm_session
    set -l plain (__okcvm_plain)
    contains -- $plain[1] skill checkpoint; and echo $plain[3]; or echo $plain[2]
end
function __okcvm_sessions
    __okcvm_ask list | awk 'NR > 1 { print $1 "\t" $2 }'
end
function __okcvm_skills
    __okcvm_ask skills | awk 'NR > 1 { print $1 }'
end
function __okcvm_loaded
    __okcvm_ask skills (__okcvm_session)
end
function __okcvm_snapshots
    __okcvm_ask snapshots (__okcvm_session) -n 50 | awk 'NR > 1 { print $1 }'
end
function __okcvm_checkpoints
    __okcvm_ask checkpoint list (__okcvm_session) -n 50 | awk 'NR > 1 { print ($1 == "*" ? $2 : $1) }'
end
function __okcvm_agents
    __okcvm_ask agents | awk 'NR > 1 { print $1 }'
end
function __okcvm_paths
    set -l folder (string replace -r '/?[^/]*$' '' -- (commandline -ct))
    test -n "$folder"; or set folder .
    __okcvm_ask ls (__okcvm_session) $folder | sed -e 's/^\[[A-Z]*\] *//' -e 's/ ([0-9]* bytes)$//' -e 's/ -> .*$//' -e 's/ (leads out of the session)$//'
end
complete -c okcvm -f
)SH";

/// What fish offers for a kind, as arguments of `complete`.
std::string fish_source(Kind kind, const std::vector<std::string_view>& choices) {
  switch (kind) {
    case Kind::kSession:
      return " -a '(__okcvm_sessions)'";
    case Kind::kSkill:
      return " -a '(__okcvm_skills)'";
    case Kind::kLoadedSkill:
      return " -a '(__okcvm_loaded)'";
    case Kind::kSnapshot:
      return " -a '(__okcvm_snapshots)'";
    case Kind::kCheckpoint:
      return " -a '(__okcvm_checkpoints)'";
    case Kind::kAgent:
      return " -a '(__okcvm_agents)'";
    case Kind::kSessionPath:
      return " -a '(__okcvm_paths)'";
    case Kind::kHostFile:
      return " -F";
    case Kind::kHostDirectory:
      return " -a '(__fish_complete_directories)'";
    case Kind::kChoice: {
      std::string words;
      for (const auto choice : choices) words += (words.empty() ? "" : " ") + std::string(choice);
      return " -a '" + words + "'";
    }
    case Kind::kVerb:
    case Kind::kText:
    case Kind::kNumber:
    case Kind::kCount:
      break;
  }
  return {};
}

std::string fish_option(const std::string& condition, const Option& option) {
  std::string line = "complete -c okcvm" + condition;
  if (option.letter != 0) line += std::string(" -s ") + option.letter;
  line += " -l " + std::string(option.name) + " -d " + single_quoted(option.help);
  const bool takes_files = option.kind == Kind::kHostFile;
  if (!option.value.empty()) line += (takes_files ? " -r" : " -x") + fish_source(option.kind, option.choices);
  return line + "\n";
}

std::string fish_word(const std::string& where, std::string_view word, std::string_view summary) {
  std::string line = "complete -c okcvm -n " + where + " -a " + std::string(word);
  if (!summary.empty()) line += " -d " + single_quoted(summary);
  return line + "\n";
}

/// The options that take a value: what comes after them is no argument.
std::string fish_valued_options() {
  std::set<std::string> spellings;
  for (const auto& verb : verbs())
    for_each_option(verb, [&](const Option& option) {
      if (option.value.empty()) return;
      spellings.insert("--" + std::string(option.name));
      if (option.letter != 0) spellings.insert({'-', option.letter});
    });
  std::string line = "set -g __okcvm_valued";
  for (const auto& spelling : spellings) line += " " + spelling;
  return line + "\n";
}

std::string fish_lines() {
  std::string lines = fish_valued_options();
  for (const auto& verb : verbs()) {
    const auto space = verb.name.find(' ');
    const std::string first(verb.name.substr(0, space));
    if (space == std::string_view::npos) {
      for (const char* where : {"__okcvm_first", "'__okcvm_at help 0'"})
        lines += fish_word(where, first, verb.summary);
    } else {
      for (const char* where : {"__okcvm_first", "'__okcvm_at help 0'"}) lines += fish_word(where, first, {});
      for (const char* after : {"__okcvm_second", "__okcvm_helped"})
        lines += fish_word("'" + std::string(after) + " " + first + "'", verb.name.substr(space + 1),
                           verb.summary);
    }
    const std::string at = "__okcvm_at \"" + std::string(verb.name) + "\"";
    for (std::size_t i = 0; i < verb.arguments.size(); ++i) {
      const auto& argument = verb.arguments[i];
      const auto source = fish_source(argument.kind, argument.choices);
      if (source.empty()) continue;
      lines.append("complete -c okcvm -n '").append(at).append(" ").append(std::to_string(i));
      lines.append(argument.repeated ? " more'" : "'").append(source).append("\n");
    }
    for (const auto& option : verb.options) lines += fish_option(" -n '" + at + "'", option);
  }
  for (const auto& option : common_options()) lines += fish_option("", option);
  lines += "complete -c okcvm -n __okcvm_first -l version -d 'Print the version.'\n";
  return lines;
}

}  // namespace

std::string completion_script(std::string_view shell) {
  if (shell == "fish") return std::string(kFishCode) + fish_lines();
  const std::string head = shell == "zsh" ? "#compdef okcvm\n" : "# bash completion for okcvm\n";
  return head + table_functions() + std::string(kSharedCode) +
         std::string(shell == "zsh" ? kZshCode : kBashCode);
}

}  // namespace okcvm::cli
