#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "policy/error.h"
#include "snapshots/node.h"

namespace okcvm::snapshots {

/// What a folder's record says: the folder's own attributes, and each file and link in it with its attributes
/// and size (no content, which the git tree beside it names). Text, a line each, sorted by name:
///
///     . 755 1000:1000 1700000000.123456789
///     f 644 1000:1000 1700000000.123456789 4096 - report.md
///     x user.origin https://example.org/         (of the line above; percent signs for odd bytes)
///     f 644 1000:1000 1700000000.123456789 4096 - same.md
///     = report.md                                (large ones: those of that earlier entry)
///     l 777 1000:1000 1700000000.123456789 9 - latest
///     d %00c2..9e a%20name%20too%20long%20for%20git     (a sub-folder whose git name does not tell its name)
///
/// `-` stands where `s` says that a file has holes.
struct FolderRecord {
  Attributes attributes;
  std::vector<std::unique_ptr<Node>> entries;
  std::vector<std::pair<std::string, std::string>> long_names;  // git name, name
};

/// The record of a directory node; `long_names` are those of its sub-folders.
std::string format_folder_record(const Node& directory,
                                 const std::vector<std::pair<std::string, std::string>>& long_names);
/// `corrupt` if it is not what format_folder_record() writes.
Result<FolderRecord> parse_folder_record(std::string_view text);

}  // namespace okcvm::snapshots
