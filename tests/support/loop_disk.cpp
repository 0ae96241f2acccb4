#include "tests/support/loop_disk.h"

#include <sys/mount.h>

#include <stdexcept>

#include "tests/support/process.h"

namespace okcvm::test {

LoopDisk::~LoopDisk() {
  for (const auto& place : places_) ::umount2(place.c_str(), MNT_DETACH);
}

std::string LoopDisk::mount_at(const std::filesystem::path& place) {
  const auto made = run_script("truncate -s " + size_ + " image && mkfs." + type_ +
                                   " -q image && mount -o loop image " + place.string(),
                               image_.path());
  if (made.exit_code != 0) return "a " + type_ + " cannot be mounted here: " + made.output;
  places_.push_back(place);
  return {};
}

void LoopDisk::copy_at(const std::filesystem::path& place) {
  const auto made =
      run_script("cp --sparse=always image copy && mount -o loop copy " + place.string(), image_.path());
  if (made.exit_code != 0) throw std::runtime_error("a copy of a disk cannot be mounted: " + made.output);
  places_.push_back(place);
}

}  // namespace okcvm::test
