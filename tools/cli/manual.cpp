#include <cctype>
#include <string>

#include "tools/cli/help.h"

namespace okcvm::cli {

namespace {

/// Text safe in man(7): backslashes, hyphens that must stay hyphens, and dots that would begin a request.
std::string roff(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    if (c == '\\') {
      safe += "\\e";
    } else if (c == '-') {
      safe += "\\-";
    } else {
      safe += c;
    }
  }
  return safe.starts_with('.') || safe.starts_with('\'') ? "\\&" + safe : safe;
}

/// The same for a macro's argument: in quotes.
std::string macro_argument(std::string_view text) {
  std::string safe;
  for (const char c : roff(text)) safe += c == '"' ? std::string("\\(dq") : std::string(1, c);
  return "\"" + safe + "\"";
}

std::string upper(std::string_view text) {
  std::string big(text);
  for (auto& c : big) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return big;
}

std::string options_markup(const std::vector<Option>& options) {
  std::string text;
  for (const auto& option : options) {
    text += ".TP\n.B " + roff(spelling_of(option)) + "\n" + roff(option.help) + "\n";
    for (std::size_t i = 0; i < option.choices.size(); ++i)
      text += std::string(i == 0 ? "One of " : "") + "\\fB" + roff(option.choices[i]) + "\\fR" +
              (i + 1 < option.choices.size() ? ",\n" : ".\n");
  }
  return text;
}

std::string verb_markup(const Verb& verb) {
  std::string text = ".TP\n.B " + roff(synopsis_of(verb)) + "\n" + roff(verb.summary) + ".\n";
  if (!verb.details.empty()) text += roff(verb.details) + "\n";
  if (!verb.options.empty()) text += ".RS\n" + options_markup(verb.options) + ".RE\n";
  return text;
}

constexpr std::string_view kIntroduction = R"(.SH NAME
okcvm \- private file systems for agent sessions, with snapshots
.SH SYNOPSIS
.B okcvm
.I verb
.RI [ argument ...]
.RI [ option ...]
.SH DESCRIPTION
.B okcvm
asks
.BR okcvmd (8)
over its control socket.
A session is a file system of its own, mounted at
.IR /mnt/okcvm\-ID ,
with the directories
.IR skills ,
.IR uploads ,
.I outputs
and
.IR temp .
.PP
ID is a session's id or the start of it that no other session has; SNAP is a snapshot's id or at least four digits
of its start. A PATH is relative to the session:
.IR outputs/report.md .
Words that begin with a hyphen can follow
.BR \-\- .
.SH OPTIONS
Every verb takes these, before or after it.
)";

constexpr std::string_view kRest = R"(.SH OUTPUT
Tables are for people: columns are aligned, sizes and times are rounded, control characters in names are shown as
.BR \exNN .
Programs use
.BR \-\-json ,
which prints the daemon's answer on one line; help and completion are
.BR {\(dqtext\(dq} .
Work that takes over a second shows its progress on standard error if that is a terminal. Interrupted, it is given up,
and nothing is changed; but a restore that has begun to change files ends first.
.SH EXIT STATUS
.TP
.B 0
Done.
.TP
.B 1
Refused or failed. Standard error says
.BI "okcvm: " code ": " message
with one of the codes
.BR invalid_request ", " path_traversal_blocked ", " read_only ", " not_found ", " already_exists ", "
.BR ambiguous_prefix ", " unknown_snapshot ", " snapshots_disabled ", " forbidden ", " busy ", "
.BR quota_exceeded ", " no_space ", " corrupt ", " internal .
.TP
.B 2
Wrong use of okcvm.
.SH ENVIRONMENT
.TP
.B OKCVM_SOCKET
The daemon's socket, where
.B \-\-socket
does not say it.
.SH FILES
.TP
.I /run/okcvm/control.sock
The daemon's socket. Members of the group okcvm may use it.
.SH EXAMPLES
.nf
cd "$(okcvm create \-\-id demo \-\-skill pdf)/outputs"
okcvm snapshot demo \-m "before the agent's turn"
okcvm diff demo
okcvm restore demo 3fa9c1 outputs/report.md
tar c data | okcvm upload demo \- \-\-name data.tar
okcvm read demo outputs/report.md | less
.fi
.SH SEE ALSO
.BR okcvmd (8),
.BR okcvmd.conf (5),
.BR okcvm\-fs (7),
.BR git (1)
)";

}  // namespace

std::string manual_page() {
  std::string text = ".TH OKCVM 1 \"\" \"okcvm-fs " OKCVM_VERSION "\" \"User Commands\"\n";
  text += kIntroduction;
  text += options_markup(common_options());
  text += ".SH VERBS\n";
  Group shown{};
  bool first = true;
  for (const auto& verb : verbs()) {
    if (first || verb.group != shown) text += ".SS " + macro_argument(upper(title_of(verb.group))) + "\n";
    first = false;
    shown = verb.group;
    text += verb_markup(verb);
  }
  text += kRest;
  return text;
}

}  // namespace okcvm::cli
