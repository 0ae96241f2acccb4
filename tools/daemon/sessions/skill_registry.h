#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "policy/error.h"
#include "policy/file_descriptor.h"
#include "policy/rel_path.h"
#include "tools/daemon/host/bounded_asking.h"

namespace okcvm::daemon {

struct SkillInfo {
  std::string name;
  std::optional<std::string> description;  // of its SKILL.md's front matter
};

/// The host's folders of skills, one directory each; the first folder that has a name wins. Read anew at
/// every call, so a skill that is put there can be loaded at once. Hidden folders are no skills. A folder
/// whose file system does not answer within some seconds is as one that is missing. Thread-safe.
class SkillRegistry final {
 public:
  explicit SkillRegistry(std::vector<std::filesystem::path> folders);

  /// Sorted by name. A folder that is missing is empty.
  std::vector<SkillInfo> list() const;
  /// The skill's directory. `not_found`; `busy` where it may be in a folder that does not answer.
  Result<FileDescriptor> open(const Name& name) const;
  /// Has inotify(7) tell when something comes to a name in the folders. One that was replaced itself is told
  /// of from the next call on.
  void watch(int inotify) const;

 private:
  struct Folder {
    std::filesystem::path path;
    BoundedAsking asking;
  };

  std::vector<std::filesystem::path> paths_;
  std::vector<Folder> folders_;
};

}  // namespace okcvm::daemon
