#!/bin/sh
# Puts okcvmd's own table of options into a template: fill_in_options.sh OKCVMD TEMPLATE VERSION
#   @OPTIONS@   every option, in man(7) markup, as on the command line
#   @SETTINGS@  those that the configuration file takes, in man(7) markup
#   @SAMPLE@    the same as a configuration file in which every line is a comment
#   @VERSION@   the version
set -eu

"$1" --help-table | awk -F '\t' -v template="$2" -v version="$3" '
  function roff(text) { gsub(/\\/, "\\e", text); gsub(/-/, "\\-", text); return text }
  function about() {
    return roff(toupper(substr($5, 1, 1)) substr($5, 2)) "." ($3 == "" ? "" : "\nDefault: " roff($3) ".") \
      ($4 == "" ? "" : "\nMay be given several times.")
  }
  {
    options = options ".TP\n.B \\-\\-" roff($1) ($2 == "" ? "" : " \\fI" roff($2) "\\fR") "\n" about() "\n"
    if ($2 == "" || $1 == "config") next
    settings = settings ".TP\n.BR " roff($1) " \" = \\fI" roff($2) "\\fR\"\n" about() "\n"
    sample = sample "# " $5 ($4 == "" ? "" : "; may be given several times") "\n#" $1 " = " \
      ($3 == "" ? $2 : $3) "\n\n"
  }
  END {
    while ((getline line < template) > 0) {
      if (line == "@OPTIONS@") printf "%s", options
      else if (line == "@SETTINGS@") printf "%s", settings
      else if (line == "@SAMPLE@") printf "%s", sample
      else { gsub(/@VERSION@/, version, line); print line }
    }
  }'
