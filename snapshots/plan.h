#pragma once

#include <memory>
#include <string>
#include <vector>

#include "policy/caller.h"
#include "policy/error.h"
#include "snapshots/compare.h"
#include "snapshots/renames.h"
#include "snapshots/tree.h"

namespace okcvm::snapshots {

/// What a restore has to do: how the workspace differs from the snapshot, as far as it was asked for.
struct Plan {
  std::vector<RelPath> scope;
  Way way;                    // to paths that were asked for
  std::vector<Delta> deltas;  // how the trees differ, before arrange() changes them; that way among it
  Work work;                  // what arrange() finds to do

  bool is_whole() const { return scope.front().is_root(); }
  /// Every path that is touched by the work, as it is afterwards: first those that something was renamed
  /// from. Of a directory that comes or goes as a whole, itself and what in it has names elsewhere.
  std::vector<RelPath> paths() const;
  /// Those whose entry goes, elsewhere or for good, or gives way to another: as they are before, and, if the
  /// work gives them another, as they are during it.
  std::vector<RelPath> leaving() const;
  /// Those of `paths` whose file has another name afterwards, or goes on under another one, by that.
  std::vector<RelPath> renamed(const std::vector<RelPath>& paths) const;
};

/// What zones are like before they are first written.
struct UnwrittenZone {
  uid_t uid;
  gid_t gid;
  timespec modified;
};

/// Makes a plan, without its work. Adjusts both trees to it: a zone that the snapshot lacks becomes one
/// as before its first change (zones themselves stay), and directories that a wanted path needs on its way
/// count as being there once their delta is carried out. `invalid_request` for a path outside of the zones,
/// `not_found` for one that neither tree has.
Result<Plan> make_plan(Tree& live, Tree& target, const std::vector<RelPath>& paths, const Caller& caller,
                       const UnwrittenZone& unwritten);

/// Finds out how to do it. What was merely renamed is renamed in `live` afterwards.
Result<void> arrange(Plan& plan, Tree& live, Tree& target);

/// The tree that the workspace has once the plan is carried out: `former` (opened anew from what `live` was)
/// with the wanted parts of `target`.
Result<void> graft(const Plan& plan, Tree& target, Tree& former);

}  // namespace okcvm::snapshots
