#pragma once

#include <sys/stat.h>

#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fusefs/types.h"
#include "policy/file_descriptor.h"
#include "policy/thread_annotations.h"

namespace okcvm::fusefs {

/// Known inodes whose names this daemon takes away without a request of the kernel's, and those names, until
/// the kernel was told. Thread-safe.
class GoingInodes final {
 public:
  struct Going {
    struct stat status {};  // that it has still
    FileDescriptor inode;   // open on what nobody else may keep
    bool stays_in = false;  // a link that leads to nothing outside of the session, wherever it stands
  };
  /// What was added of the same inode before stays.
  void add(NodeId id, Going going);
  /// A name that the kernel may still believe in, and what stood there.
  void add_name(NodeId parent, const std::string& name, NodeId what);

  /// What stood at the name, if that is one of them.
  std::optional<NodeId> at_name(NodeId parent, const char* name) const;
  /// The kernel knows what stands there now.
  void drop_name(NodeId parent, const char* name);
  /// The last that the inode has, without names.
  std::optional<struct stat> status(NodeId id) const;
  /// Whether it is a link of which nobody need fear where it leads.
  bool is_harmless(NodeId id) const;

  /// All inodes, with their descriptors; the rest of what is known of them stays until it is cleared.
  std::vector<std::pair<NodeId, Going>> take();
  void clear();

 private:
  mutable Mutex mutex_;
  std::unordered_map<std::uint64_t, Going> inodes_ GUARDED_BY(mutex_);  // by node
  std::map<std::pair<NodeId, std::string>, NodeId> names_ GUARDED_BY(mutex_);
  std::atomic<bool> has_names_ = false;
};

}  // namespace okcvm::fusefs
