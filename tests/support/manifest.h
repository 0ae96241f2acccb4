#pragma once

#include <sys/types.h>
#include <time.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace okcvm::test {

/// What stands at one path, in every respect that a program can see.
struct ManifestEntry {
  mode_t mode = 0;  // with the type
  uid_t uid = 0;
  gid_t gid = 0;
  nlink_t links = 0;
  off_t size = 0;  // of files and links; 0 for directories
  timespec modified{};
  std::string target;                         // of links; "EPERM" and the like when it cannot be read
  std::uint64_t content = 0;                  // hash of a file's bytes
  std::map<std::string, std::string> xattrs;  // user.*
  std::string same_as;                        // the first path (in order) of the same inode, for hard links
};

/// A whole tree by path relative to its top; the top itself is ".".
using Manifest = std::map<std::string, ManifestEntry>;

/// What a comparison of two trees leaves out.
struct ManifestScope {
  bool times = true;
  bool owners = true;
};

/// Reads a tree without following links. Throws std::system_error on anything that cannot be read.
Manifest manifest_of(const std::filesystem::path& top);

/// One line a difference, empty when the trees are the same. Times of directories are compared like all
/// others.
std::vector<std::string> differences(const Manifest& left, const Manifest& right, ManifestScope scope = {});

}  // namespace okcvm::test
