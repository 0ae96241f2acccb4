#pragma once

#include <sys/stat.h>

#include <array>
#include <filesystem>
#include <set>
#include <string>

#include "policy/file_descriptor.h"
#include "tests/differential/mapping.h"
#include "tests/differential/operation.h"

namespace okcvm::differential {

/// What a program gets back from a call.
struct Outcome {
  long result = 0;
  int error = 0;     // errno, 0 on success
  std::string data;  // bytes read, a listing, a status: whatever the call answers with

  friend bool operator==(const Outcome&, const Outcome&) = default;
};
std::string describe(const Outcome& outcome);

/// The answers that are compared exactly, as one line.
std::string describe_status(const struct stat& found);

/// One of the two directories, with the files that are open in it. Belongs to one thread, which must have its
/// own umask (unshare(CLONE_FS)) and be root.
class Side final {
 public:
  /// Throws std::system_error when the directory cannot be opened.
  explicit Side(const std::filesystem::path& directory);

  /// Does it, as the user that it names. Mappings of files with set-id bits are not kept: an open after those
  /// were set is not passed through, and sees another cache than the mapping.
  Outcome perform(const Operation& operation);

  int root() const { return root_.get(); }
  /// A directory to start from: the slot's if it holds something, else the root.
  int start(int slot) const { return slots_[slot] ? slots_[slot].get() : root_.get(); }
  /// A shared mapping of a file that may be closed, renamed, truncated or removed by now.
  Mapping& mapping(int index) { return mappings_[static_cast<std::size_t>(index)]; }
  /// Gives back the locks of what a slot held: the last descriptor of a file that is mapped leaves them,
  /// while the mapping stays, and natively that keeps them.
  void unlock(int slot_index);
  FileDescriptor& slot(int index) { return slots_[static_cast<std::size_t>(index)]; }

  /// Files that were mapped or preallocated. A page fault may fill a hole (tmpfs does), and what was
  /// preallocated counts as data or hole depending on what is cached (ext4): where their holes are is not
  /// compared any more.
  void note_unsure_holes(ino_t inode) { unsure_holes_.insert(inode); }
  bool holes_are_unsure(int slot_index);
  /// How much of a slot's regular file can be mapped and touched without SIGBUS, about to be; in bytes.
  off_t mappable(int slot_index);

 private:
  FileDescriptor root_;
  std::array<FileDescriptor, kSlots> slots_;
  std::array<Mapping, kMappings> mappings_;
  std::set<ino_t> unsure_holes_;
};

}  // namespace okcvm::differential
