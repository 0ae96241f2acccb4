#pragma once

#include <string>

/// Paths of a snapshot as text: relative, without "." and ".."; empty for the root.
namespace okcvm::snapshots {

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

inline bool is_at_or_below(const std::string& path, const std::string& top) {
  return path.starts_with(top) && (path.size() == top.size() || path[top.size()] == '/');
}

/// What a path is called once `from` is called `to`.
inline std::string with_other_top(std::string path, const std::string& from, const std::string& to) {
  if (is_at_or_below(path, from)) path.replace(0, from.size(), to);
  return path;
}

}  // namespace okcvm::snapshots
