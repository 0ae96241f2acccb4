#pragma once

#include <string>
#include <string_view>

namespace okcvm::cli {

/// A completion script for "bash", "zsh" or "fish", made from the table of verbs. Session, skill and snapshot
/// names are asked of the daemon when the user presses tab; without a daemon nothing is offered for them.
std::string completion_script(std::string_view shell);

}  // namespace okcvm::cli
