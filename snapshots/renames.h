#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "policy/error.h"
#include "snapshots/compare.h"
#include "snapshots/tree.h"

namespace okcvm::snapshots {

/// A step that only gives names: paths are those that hold once the steps before it are done.
struct NameStep {
  std::string from;  // empty: a directory is made
  Delta entry;       // what stands where afterwards; its `before` gives way
};

/// What is to be done to a workspace, in this order.
struct Work {
  std::vector<NameStep> names;
  std::vector<Delta> rest;  // what differs still, once that is done
};

/// Finds in the rest of `work` what was merely renamed, as its bytes and times tell, and lets it go on living
/// under its other name, in `live` at once: who has it open, or stands in it, keeps it, and nothing of it is
/// written. `target` is what `live` shall become. Never moves what holds links to where these would be judged
/// differently, nor what holds something that snapshots leave out.
Result<Work> follow_renames(Tree& live, Tree& target, const std::vector<RelPath>& scope, Work work);

/// How directories' steps change the paths of what is in them.
class PathChanges final {
 public:
  /// `steps` outlives this.
  explicit PathChanges(const std::vector<NameStep>& steps);
  /// What a path is called after the steps from `first` on.
  std::string after(std::size_t first, std::string path) const;
  /// What it was called before all of them, or before the first `count`.
  std::string before(std::string path, std::size_t count = SIZE_MAX) const;

 private:
  struct Change {
    std::size_t step;
    const std::string& from;
    const std::string& to;
  };
  std::vector<Change> changes_;
};

}  // namespace okcvm::snapshots
