#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace okcvm {

/// What a link's text may be: where it stands and what it may name (DESIGN section 2, Traversal).
struct LinkPlace {
  std::size_t depth;             // of the link's directory, below the root that the link may not leave
  std::string_view mount_point;  // absolute, without a trailing slash; empty: no absolute path is contained
  std::span<const std::string> host_roots;  // host trees that links may also lead into ("/usr")
};

/// Whether the text stays inside: leading ".." components, no more than `depth`, then names without "..";
/// or an absolute path under the mount point or a host root, without "..". Never a text with a NUL byte. Pure
/// text, nothing is looked up.
bool link_is_contained(std::string_view text, const LinkPlace& place);

/// Whether an absolute path is this one, or leads through it. Pure text as well.
bool is_below(std::string_view path, std::string_view root);

}  // namespace okcvm
