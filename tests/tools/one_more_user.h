#pragma once

#include <sys/types.h>

#include <filesystem>

#include "policy/file_descriptor.h"

namespace okcvm::test {

/// While it lives, this thread and the programs that it starts find one more user in /etc/passwd: a copy of
/// it in `folder`, mounted where nobody else sees it. Needs root. Throws std::runtime_error.
class OneMoreUser final {
 public:
  OneMoreUser(uid_t uid, const std::filesystem::path& home, const std::filesystem::path& folder);
  ~OneMoreUser();
  OneMoreUser(const OneMoreUser&) = delete;
  OneMoreUser& operator=(const OneMoreUser&) = delete;

 private:
  const FileDescriptor mounts_before_;
  const std::filesystem::path directory_before_;
};

}  // namespace okcvm::test
