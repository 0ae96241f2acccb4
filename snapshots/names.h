#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace okcvm::snapshots {

/// In each folder of the metadata: what git cannot say about the folder and the files in it.
inline constexpr std::string_view kFolderRecord = ".okcvm";

/// The name under which an entry stands in a git tree. Nearly always its own; percent signs (%2e) stand in
/// for a byte of names that git refuses or reads itself (".git", "GIT~1", ".gitmodules", ".gitattributes" and
/// what HFS+ and NTFS take for them, links named ".gitignore"), and of names that would read as so encoded.
std::string to_git_name(std::string_view name, bool is_link);

/// Back again; nothing for the few names that are too long for that and are only recorded in the metadata.
std::optional<std::string> from_git_name(std::string_view git_name);

/// Text on one line: percent signs for control bytes, blanks and percent signs themselves. For paths in
/// lists.
std::string to_line(std::string_view text);
std::string from_line(std::string_view line);

}  // namespace okcvm::snapshots
