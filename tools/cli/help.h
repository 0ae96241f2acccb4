#pragma once

#include <string>
#include <string_view>

#include "tools/cli/verbs.h"

namespace okcvm::cli {

/// "create [OPTION...]", "restore ID SNAP [PATH...]".
std::string synopsis_of(const Verb& verb);
/// "-m, --label LABEL".
std::string spelling_of(const Option& option);

/// What `okcvm help` prints: every verb in a line, by group.
std::string overview();
/// What `okcvm help VERB` and `okcvm VERB --help` print.
std::string help_text(const Verb& verb);
/// The verbs that start with this word ("skill"); empty if there are none.
std::string family_help(std::string_view first_word);
/// okcvm(1) in man(7) markup.
std::string manual_page();

}  // namespace okcvm::cli
