#pragma once

#include <climits>
#include <string>
#include <string_view>
#include <utility>

/// Paths of a snapshot as text: relative, without "." and ".."; empty for the root.
namespace okcvm::snapshots {

/// More directories than a path can name are not below each other. Who made such a tree meant harm.
constexpr std::size_t kMostComponents = PATH_MAX / 2;

/// The entry `name` of the directory `path`.
inline std::string below(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + '/' + name;
}

/// The directory that the entry `path` is in.
inline std::string parent_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == path.npos ? std::string() : path.substr(0, slash);
}

/// The last component.
inline std::string leaf_of(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

/// Whether a path is `top` or in it. Everything is in the root.
inline bool is_at_or_below(std::string_view path, std::string_view top) {
  return top.empty() || (path.starts_with(top) && (path.size() == top.size() || path[top.size()] == '/'));
}

/// Of what is sorted by paths, the range below one: from "path/" up to the first that "/" cannot begin.
template <typename Sorted>
auto range_below(Sorted& sorted, std::string_view path) {
  std::string bound(path);
  const auto first = sorted.lower_bound(bound += '/');
  bound.back() = '/' + 1;
  return std::pair(first, sorted.lower_bound(bound));
}

}  // namespace okcvm::snapshots
