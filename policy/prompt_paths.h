#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "policy/error.h"
#include "policy/rel_path.h"

namespace okcvm {

struct AdaptedPrompt {
  std::string text;
  std::size_t replaced = 0;  // places that were rewritten
};

/// Rewrites the paths of older system prompts [S0]: /mnt/okcomputer/output becomes this session's outputs/,
/// any other path below /mnt/okcomputer the same path below its mount point. Only whole components are taken
/// for the old mount.
AdaptedPrompt adapt_prompt(std::string_view prompt, std::string_view mount_point);

/// The path convention of [S0]: backslashes are separators, an absolute path counts from the session root
/// (the old mount and this session's own mount point are taken off first), "." and ".." are worked out as
/// text. `path_traversal_blocked` when that leads above the root; else as RelPath::parse.
Result<RelPath> rebase_path(std::string_view path, std::string_view mount_point);

}  // namespace okcvm
