#include "policy/symlink_rule.h"

#include <algorithm>

namespace okcvm {
namespace {

/// Takes the first component off `rest`; repeated slashes count as one.
std::string_view take_component(std::string_view& rest) {
  rest.remove_prefix(std::min(rest.find_first_not_of('/'), rest.size()));
  const auto end = std::min(rest.find('/'), rest.size());
  const auto component = rest.substr(0, end);
  rest.remove_prefix(end);
  return component;
}

bool has_dot_dot(std::string_view rest) {
  for (auto part = take_component(rest); !part.empty(); part = take_component(rest))
    if (part == "..") return true;
  return false;
}

}  // namespace

bool is_below(std::string_view path, std::string_view root) {
  return !root.empty() && path.starts_with(root) &&
         (path.size() == root.size() || root.back() == '/' || path[root.size()] == '/');
}

bool link_is_contained(std::string_view text, const LinkPlace& place) {
  // The system takes a text up to its first NUL byte: what would be judged is not what would be followed.
  if (text.empty() || text.find('\0') != text.npos) return false;
  if (text.front() == '/') {
    if (has_dot_dot(text)) return false;
    if (is_below(text, place.mount_point)) return true;
    return std::any_of(place.host_roots.begin(), place.host_roots.end(),
                       [&](const std::string& root) { return is_below(text, root); });
  }
  std::size_t ups = 0;
  bool named = false;
  for (auto part = take_component(text); !part.empty(); part = take_component(text)) {
    if (part == ".") continue;
    if (part != "..") {
      named = true;
    } else if (named || ++ups > place.depth) {
      return false;
    }
  }
  return true;
}

}  // namespace okcvm
