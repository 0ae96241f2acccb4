#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "fusefs/types.h"
#include "policy/rel_path.h"

namespace okcvm::fusefs {

/// Which number the volume of a skill has: inodes are known by it, and inode numbers show it, so that a
/// directory keeps it as long as its session is mounted, and no other one has it meanwhile. Noted in a file,
/// which the next daemon reads: "NUMBER NAME IDENTITY", a line each. Not thread-safe.
class SkillNumbers {
 public:
  explicit SkillNumbers(std::filesystem::path file);

  /// Of a directory (identity_of()) under this name: the one that it had, or a new one, which follows from
  /// the name as far as it can. `in_use` are those of volumes that are there.
  VolumeId number_of(const Name& name, std::string_view identity, const std::set<VolumeId>& in_use);

 private:
  std::filesystem::path file_;
  std::map<VolumeId, std::string> given_;  // name and identity
};

}  // namespace okcvm::fusefs
