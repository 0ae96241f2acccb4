#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "policy/error.h"

namespace okcvm {

/// How a session gets its working directory [S4].
enum class WorkdirPolicy : std::uint8_t { kManaged, kExisting, kRepoBound };

/// "managed", "existing", "repo-bound"; nothing for any other text.
std::optional<WorkdirPolicy> workdir_policy_named(std::string_view text);
std::string_view name_of(WorkdirPolicy policy);

/// What a real path is held against.
struct WorkdirRule {
  std::span<const std::string> allowed_roots;  // real, absolute paths; none: no workdir is allowed
  std::span<const std::string> own_trees;      // the daemon's state, run and mount directories
  std::string_view home;                       // the owner's, a real path; empty if there is none
};

/// Whether a session may be bound to the directory `real_path` (absolute, links resolved). `forbidden` with
/// the reason when it is not below an allowed root, is a system or secrets directory or lies in one, holds
/// the owner's whole home, or overlaps the daemon's own trees.
Result<void> check_workdir(std::string_view real_path, const WorkdirRule& rule);

/// "~" and "~/x" with the owner's home in its place; anything else as it is.
std::string expand_home(std::string_view path, std::string_view home);

/// A repository's address in one form, so that two spellings of it compare equal: scheme, user and ".git"
/// taken off, host in lower case ("git@GitHub.com:a/b.git" and "https://github.com/a/b" are
/// "github.com/a/b").
std::string normal_git_url(std::string_view url);

}  // namespace okcvm
