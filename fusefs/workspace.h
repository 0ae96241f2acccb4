#pragma once

#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fusefs/skill_numbers.h"
#include "fusefs/types.h"
#include "fusefs/volume.h"
#include "policy/error.h"
#include "policy/file_descriptor.h"
#include "policy/rel_path.h"
#include "policy/thread_annotations.h"

namespace okcvm::fusefs {

/// Where a session's files really are: the lazily made backing folder, the bound workdir and the loaded
/// skills. Everything is reached relative to directories that are held open here. Thread-safe.
class Workspace {
 public:
  struct Config {
    std::filesystem::path folder;  // <state-dir>/workspaces/<id>; its parent exists
    uid_t owner_uid = 0;
    gid_t owner_gid = 0;
    timespec created_at{};  // a zone looks modified then until it is
    FileDescriptor workdir;
    bool use_handles = true;
    std::filesystem::path skill_numbers;  // where the next daemon finds SkillNumbers
  };
  static Result<std::unique_ptr<Workspace>> open(Config config);

  bool has_workdir() const { return volume(kWorkdirVolume) != nullptr; }
  /// Whether the backing folder exists.
  bool is_materialized() const;
  /// Makes the folders of a zone; concurrent first writers make them once.
  Result<void> materialize(Zone zone) EXCLUDES(mutex_);
  /// Whether it did so, or found it done.
  bool has_made(Zone zone) const { return materialized_.load() & (1u << static_cast<unsigned>(zone)); }
  /// A zone's own directory, O_RDONLY; ENOENT before the first write.
  Result<FileDescriptor> open_zone(Zone zone) const;
  /// The backing folder itself, O_RDONLY; ENOENT before the first write.
  Result<FileDescriptor> open_folder() const;
  /// Whether all of the file system that it is on is on the disk now.
  bool sync() const;
  /// A directory of the writable zones, O_PATH.
  Result<FileDescriptor> open_directory(const RelPath& path) const;
  /// The backing inode of a node; open(2)'s flags.
  Result<FileDescriptor> open(const Node& node, int flags) const;
  /// The session-relative path of a directory of the writable zones, from its descriptor. ENOENT when
  /// removed. Of a file, one of the paths that it has or had.
  Result<RelPath> path_of(int directory) const;
  /// A name of an open file: one of several, or a former one, or none that was ever its own.
  Result<std::string> name_of(int file) const;

  /// The folder of all workspaces, which is there before anything is written.
  int anchor() const;

  std::shared_ptr<Volume> volume(VolumeId id) const EXCLUDES(mutex_);
  /// Whether the next daemon can open the inodes of every volume that this one knew (Volume::uses_handles).
  bool finds_inodes_again() const EXCLUDES(mutex_);

  struct LoadedSkill {
    Name name;
    VolumeId volume;
  };
  Result<void> load_skill(const Name& name, FileDescriptor directory) EXCLUDES(mutex_);
  /// Another directory takes the place of the one that a loaded skill's name shows, which stays of use to who
  /// has it open. False if it is the same one; `not_found` if the name is not loaded. Nobody may load or
  /// unload meanwhile.
  Result<bool> renew_skill(const Name& name, FileDescriptor directory) EXCLUDES(mutex_);
  /// Hides the name. The volume stays until it is released, so open descriptors stay readable.
  Result<VolumeId> unload_skill(const Name& name) EXCLUDES(mutex_);
  /// No node of this volume is known any more: if it is a skill's that is not loaded, it is let go of.
  void release(VolumeId volume) EXCLUDES(mutex_);
  std::vector<LoadedSkill> skills() const EXCLUDES(mutex_);
  std::optional<VolumeId> skill(std::string_view name) const EXCLUDES(mutex_);

 private:
  explicit Workspace(Config config)
      : config_(std::move(config)), numbers_(std::move(config_.skill_numbers)) {}
  void show_skill(const Name& name, FileDescriptor directory) EXCLUDES(mutex_);
  Result<void> make_folders(Zone zone) EXCLUDES(mutex_);

  Config config_;
  std::string folder_name_;
  std::string real_folder_;                // as the kernel spells it, for path_of
  std::atomic<unsigned> materialized_{0};  // a bit a zone
  mutable Mutex mutex_;
  std::map<VolumeId, std::shared_ptr<Volume>> volumes_ GUARDED_BY(mutex_);
  std::map<std::string, VolumeId, std::less<>> skills_ GUARDED_BY(mutex_);
  SkillNumbers numbers_ GUARDED_BY(mutex_);
};

}  // namespace okcvm::fusefs
