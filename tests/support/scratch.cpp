#include "tests/support/scratch.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <system_error>

namespace okcvm::test {

std::filesystem::path scratch_base() {
  const char* chosen = std::getenv("OKCVM_TEST_DIR");
  return chosen && *chosen ? chosen : "/dev/shm";
}

ScratchDirectory::ScratchDirectory(std::string_view label) {
  std::string pattern = scratch_base() / ("okcvm-" + std::string(label) + ".XXXXXX");
  if (!::mkdtemp(pattern.data()))
    throw std::system_error(errno, std::generic_category(), "mkdtemp " + pattern);
  path_ = pattern;
  ::chmod(pattern.c_str(), 0755);
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;  // what is still mounted below stays, and shows up as a left-over
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace okcvm::test
