#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "policy/error.h"
#include "snapshots/oid.h"

namespace okcvm::snapshots {

inline constexpr unsigned kGitDirectory = 040000;
inline constexpr unsigned kGitFile = 0100644;
inline constexpr unsigned kGitProgram = 0100755;
inline constexpr unsigned kGitLink = 0120000;

/// One row of a git tree object.
struct GitEntry {
  unsigned mode = 0;
  std::string name;
  Oid oid;
};

/// The tree object of these entries, in the order that git wants; sorts them.
std::string format_git_tree(std::vector<GitEntry>& entries);
/// `corrupt` if it is not a tree.
Result<std::vector<GitEntry>> parse_git_tree(std::string_view bytes);

}  // namespace okcvm::snapshots
