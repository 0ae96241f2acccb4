#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <unordered_map>

#include "fusefs/node_table.h"
#include "fusefs/types.h"
#include "fusefs/workspace.h"
#include "policy/error.h"
#include "policy/file_descriptor.h"
#include "policy/rel_path.h"
#include "policy/thread_annotations.h"

namespace okcvm::fusefs {

/// An open backing directory: the only place from which backing files are reached by name.
struct Directory {
  FileDescriptor file;  // O_RDONLY | O_DIRECTORY
  NodeId id;
  Zone zone = Zone::kRoot;
  VolumeId volume = kWorkspaceVolume;

  /// What stands at a name, O_PATH; links are not followed. Nothing that the host mounted in one of its own
  /// directories is touched (EXDEV): a user's program may serve it, and never answer. Invalid, with errno
  /// set, on failure.
  FileDescriptor hold(const char* name) const;
  /// fstat(2) of the same, and as that answers.
  int look_at(const char* name, struct stat& status) const;
};

/// Opens directories by node and keeps the recently used ones open, a bounded number of them: of a session,
/// and of all sessions of the process, as it may have descriptors. Thread-safe.
class Directories {
 public:
  Directories(Workspace& workspace, NodeTable& nodes);
  ~Directories();
  Directories(const Directories&) = delete;
  Directories& operator=(const Directories&) = delete;

  /// ENOENT for a zone that was not written yet; ENOTDIR; ESTALE.
  Result<std::shared_ptr<const Directory>> open(NodeId id) EXCLUDES(mutex_);
  /// The same, making a zone's folder if it is not there yet.
  Result<std::shared_ptr<const Directory>> open_for_change(NodeId id) EXCLUDES(mutex_);
  /// Closes what is cached of it, as when it was removed.
  void drop(NodeId id) EXCLUDES(mutex_);
  void drop_all() EXCLUDES(mutex_);

  /// Where a directory of the workspace is now, session-relative. ENOENT when it was removed.
  Result<RelPath> path_of(const Directory& directory) const EXCLUDES(mutex_);
  /// A directory was renamed: forget remembered paths.
  void paths_changed() EXCLUDES(mutex_);

  std::uint64_t open_count() const EXCLUDES(mutex_);

 private:
  using Kept = std::shared_ptr<const Directory>;
  class All;
  static constexpr std::size_t kCapacity = 128;
  struct Cached {
    std::shared_ptr<const Directory> directory;
    std::list<std::uint64_t>::iterator age;
    RelPath path;
    bool has_path = false;
  };

  /// Closes the one that was not used for longest, once the answer goes.
  Kept let_go_of_one() REQUIRES(mutex_);

  Workspace& workspace_;
  NodeTable& nodes_;
  mutable Mutex mutex_;
  mutable std::unordered_map<std::uint64_t, Cached> cached_ GUARDED_BY(mutex_);
  std::list<std::uint64_t> ages_ GUARDED_BY(mutex_);  // most recently used first
  std::uint64_t moves_ GUARDED_BY(mutex_) = 0;  // how often paths changed: a path from before is not kept
};

}  // namespace okcvm::fusefs
