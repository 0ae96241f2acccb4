#pragma once

#include <filesystem>
#include <string_view>

namespace okcvm::test {

/// Where tests keep their files: $OKCVM_TEST_DIR, or /dev/shm. Every directory up to it must be searchable by
/// all, because some tests act as ordinary users.
std::filesystem::path scratch_base();

/// A private directory (0755) below scratch_base() that goes, with all in it, when this object does.
class ScratchDirectory final {
 public:
  /// Throws std::system_error when it cannot be made.
  explicit ScratchDirectory(std::string_view label);
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace okcvm::test
