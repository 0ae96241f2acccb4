#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "policy/error.h"
#include "policy/file_descriptor.h"
#include "snapshots/disk.h"
#include "snapshots/renames.h"
#include "snapshots/repository.h"
#include "snapshots/store.h"
#include "snapshots/tree.h"

namespace okcvm::snapshots {

/// Where a restore makes new entries ready: in the backing folder, so that a rename brings them in, and
/// beside the zones, so that no mount shows it.
inline constexpr const char* kStagingFolder = ".restore";

/// Builds files, links and whole directories of a snapshot in a folder, complete with owner, mode, times and
/// xattrs, and checks every byte against its name on the way. Not thread-safe.
class Staging final {
 public:
  /// `folder` is where entries are built; `repository` outlives it.
  Staging(const Repository& repository, Disk folder, const Progress& progress)
      : repository_(repository), folder_(std::move(folder)), progress_(progress) {}

  int folder() const { return folder_.root(); }
  /// Builds `node` (and what lies below it, as `extent` says) under a name in the folder. `path` is where it
  /// will be, and names it in errors. `corrupt`, `no_space`.
  Result<void> build(Tree& tree, Node& node, const std::string& path, const std::string& name, Extent extent);
  /// Writes what files hold that come in, before anybody has to wait for it: who builds one then has its
  /// content already.
  Result<void> write_ahead(const Work& work, Tree& wanted);
  /// Bytes of what was so written and not built from yet.
  std::uint64_t ahead() const { return ahead_bytes_; }
  /// Files of a link group are made by linking to this one, which is there already. `disk` is borrowed.
  void use_for_group(std::uint32_t group, const Disk& disk, std::string path) {
    linked_.insert_or_assign(group, LinkSource{&disk, std::move(path)});
  }

 private:
  struct LinkSource {
    const Disk* disk;
    std::string path;
  };
  struct Place {
    std::string path;    // in the session
    std::string staged;  // in the folder
  };
  Result<void> build_entry(Tree& tree, Node& node, const Place& place, int parent);
  Result<void> build_directory(Tree& tree, Node& node, const Place& place);
  Result<void> build_file(const Node& node, const Place& place, int parent);
  Result<FileDescriptor> make_file(const Node& node, const Place& place, int parent);
  FileDescriptor take_ahead(const Node& node, int parent, const std::string& name);
  Result<void> build_link(const Node& node, const Place& place, int parent);

  const Repository& repository_;
  Disk folder_;
  const Progress& progress_;
  std::map<std::uint32_t, LinkSource> linked_;  // by group of the tree
  /// What was written ahead, by content and whether it has holes: names in the folder.
  std::map<std::pair<Oid, bool>, std::vector<std::string>> ahead_;
  std::uint64_t ahead_bytes_ = 0;
  std::uint64_t built_ = 0;
};

/// Gives an open file or directory these attributes; the time last.
Result<void> set_attributes(int fd, const Attributes& attributes, const std::string& path);
/// The same of a link.
Result<void> set_link_attributes(int directory, const char* name, const Attributes& attributes,
                                 const std::string& path);

}  // namespace okcvm::snapshots
