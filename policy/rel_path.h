#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "policy/error.h"

namespace okcvm {

/// One path component: not empty, no '/', no NUL, not "." or "..", at most 255 bytes (NAME_MAX). Any other
/// byte is allowed; names need not be UTF-8.
class Name {
 public:
  /// ENAMETOOLONG past 255 bytes; `path_traversal_blocked` for ".."; `invalid_request` otherwise.
  static Result<Name> parse(std::string_view text);

  const std::string& text() const { return text_; }
  const char* c_str() const { return text_.c_str(); }
  friend bool operator==(const Name&, const Name&) = default;

 private:
  explicit Name(std::string text) : text_(std::move(text)) {}
  std::string text_;
};

/// A path below the session root ("outputs/a/b"), valid by construction: relative, every component a valid
/// Name, at most 4,095 bytes. The empty path is the session root itself.
class RelPath {
 public:
  RelPath() = default;

  /// `path_traversal_blocked` for an absolute path or a ".." component; `invalid_request` for NUL bytes,
  /// empty or overlong components. One trailing slash and "." for the root are accepted, nothing else is
  /// rewritten.
  static Result<RelPath> parse(std::string_view text);

  bool is_root() const { return text_.empty(); }
  const std::string& text() const { return text_; }
  std::vector<std::string_view> components() const;
  /// The number of components; the root has none.
  std::size_t depth() const;
  /// The first component; empty for the root. It names the zone (policy/zones.h).
  std::string_view top() const;
  /// The last component; empty for the root.
  std::string_view leaf() const;
  /// The path without its last component; the root is its own parent.
  RelPath parent() const;
  /// This path with one more component. The caller sees to it that the whole stays below PATH_MAX.
  RelPath operator/(const Name& name) const;
  /// Whether this path is `ancestor` or lies below it.
  bool is_within(const RelPath& ancestor) const;

  friend bool operator==(const RelPath&, const RelPath&) = default;
  friend auto operator<=>(const RelPath&, const RelPath&) = default;  // NOLINT(modernize-use-nullptr)

 private:
  explicit RelPath(std::string text) : text_(std::move(text)) {}
  std::string text_;
};

}  // namespace okcvm
