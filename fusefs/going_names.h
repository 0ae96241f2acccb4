#pragma once

#include <filesystem>
#include <vector>

#include "policy/file_descriptor.h"
#include "policy/rel_path.h"

namespace okcvm::fusefs {

/// Paths whose names this daemon takes away without a request of the kernel's, noted before in a file of the
/// run-time directory. Nothing else tells the next daemon which ones the kernel may still know: a node has
/// one name, of several, and no long one. Not thread-safe.
class GoingNames final {
 public:
  GoingNames() = default;
  /// None, or with `adopt` what the last daemon noted. The file is there while there are any.
  GoingNames(std::filesystem::path path, bool adopt);

  void note(const RelPath& path);
  std::vector<RelPath> all() const;
  void clear();

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
  std::size_t size_ = 0;
};

}  // namespace okcvm::fusefs
