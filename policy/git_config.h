#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace okcvm {

/// The address of the remote "origin", or of the first by name if there is none of that name, in the text of
/// a repository's config file (git-config(1)). Nothing if it names none, or is damaged. Files that it
/// includes are not looked for.
std::optional<std::string> remote_url_in(std::string_view config);

}  // namespace okcvm
