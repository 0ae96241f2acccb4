#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fusefs/types.h"
#include "policy/file_descriptor.h"
#include "policy/rel_path.h"

namespace okcvm::fusefs {

/// Paths whose names this daemon takes away without a request of the kernel's, noted before in a file of the
/// run-time directory. Nothing else tells the next daemon which ones the kernel may still know: a node has
/// one name, of several, and no long one. With them the last status of what stood there, which nobody can
/// read any more once it is gone. Not thread-safe.
class GoingNames final {
 public:
  GoingNames() = default;
  /// None, or after a take-over what the last daemon noted. The file is there while there are any.
  GoingNames(std::filesystem::path path, Start start);

  /// What nodes are.
  using Statuses = std::vector<std::pair<NodeId, struct stat>>;
  /// The root stands for a name that has no path. False where there was no room for them.
  [[nodiscard]] bool note(const std::vector<RelPath>& paths);
  /// Of what stands at names that were noted before; as many as there is room for.
  void note(const Statuses& statuses);
  std::vector<RelPath> all() const;
  Statuses statuses() const;
  /// Whether all() has every name that was to be noted, as far as the file tells: not where there was more
  /// than fits, one has no path, or the file cannot be read.
  bool has_all() const;
  void clear();

 private:
  bool put(std::string_view text);
  std::optional<std::string> text() const;  // none: it cannot be read
  template <typename Each>
  void for_each_line(const Each& each) const;

  std::filesystem::path path_;
  FileDescriptor file_;
  std::size_t size_ = 0;
  bool is_unread_ = false;  // what the last daemon noted
};

}  // namespace okcvm::fusefs
