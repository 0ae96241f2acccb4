#pragma once

#include <string>
#include <vector>

#include "policy/error.h"
#include "policy/rel_path.h"
#include "snapshots/tree.h"

namespace okcvm::snapshots {

/// One entry that differs between two trees. Nodes belong to their trees.
struct Delta {
  std::string path;
  Node* before = nullptr;   // null: it was not there
  Node* after = nullptr;    // null: it is not there
  bool top = true;          // false below a directory that came or went as a whole
  bool content = false;     // on both sides, and differing in bytes, type or in what it is hard-linked to
  bool linked = false;      // a file with other names, on one side or both
  bool times_only = false;  // a directory of which only the time differs, as it does when entries come and go

  Extent extent = Extent::kWithAllBelow;  // alone: a directory made only because something in it is wanted

  /// Only attributes differ: what is there stays.
  bool keeps_entry() const { return before && after && !content && before->type == after->type; }
};

/// What differs below the paths of `scope` (a single root path: everywhere), sorted by path. Equal subtrees
/// are recognised by their names and not looked into.
Result<std::vector<Delta>> compare(Tree& before, Tree& after, const std::vector<RelPath>& scope);

/// Sorted, without paths that lie in one another; the root alone when `paths` is empty.
std::vector<RelPath> normalize_scope(std::vector<RelPath> paths);
/// Whether a path is one of such paths, or below one.
bool is_in_scope(const std::vector<RelPath>& scope, const std::string& path);

}  // namespace okcvm::snapshots
