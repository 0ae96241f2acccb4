#pragma once

#include <string>

/// Paths of a snapshot as text: relative, without "." and ".."; empty for the root.
namespace okcvm::snapshots {

/// The entry `name` of the directory `path`.
inline std::string below(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + '/' + name;
}

/// The last component.
inline std::string leaf_of(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

}  // namespace okcvm::snapshots
