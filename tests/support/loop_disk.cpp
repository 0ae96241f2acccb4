#include "tests/support/loop_disk.h"

#include <sys/mount.h>

#include "tests/support/process.h"

namespace okcvm::test {

LoopDisk::~LoopDisk() {
  if (!place_.empty()) ::umount2(place_.c_str(), MNT_DETACH);
}

std::string LoopDisk::mount_at(const std::filesystem::path& place) {
  const auto made = run_script("truncate -s " + size_ + " image && mkfs." + type_ +
                                   " -q image && mount -o loop image " + place.string(),
                               image_.path());
  if (made.exit_code != 0) return "a " + type_ + " cannot be mounted here: " + made.output;
  place_ = place;
  return {};
}

}  // namespace okcvm::test
