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

}  // namespace okcvm::snapshots
