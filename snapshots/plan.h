#pragma once

#include <memory>
#include <string>
#include <vector>

#include "policy/error.h"
#include "snapshots/compare.h"
#include "snapshots/tree.h"

namespace okcvm::snapshots {

/// What a restore has to do: how the workspace differs from the snapshot, as far as it was asked for.
struct Plan {
  std::vector<RelPath> scope;
  std::vector<Delta> deltas;
  std::vector<std::unique_ptr<Node>> displaced;  // nodes that deltas still point to

  bool is_whole() const { return scope.front().is_root(); }
  /// Every path that is touched.
  std::vector<RelPath> paths() const;
  /// Those of them whose entry goes, or gives way to another.
  std::vector<RelPath> leaving() const;
};

/// Makes a plan. Adjusts both trees to it: a zone that the snapshot lacks becomes an empty one (zones
/// themselves stay), and directories that a wanted path needs on its way count as being there once their
/// delta is carried out. `invalid_request` for a path outside of the zones, `not_found` for one that neither
/// tree has.
Result<Plan> make_plan(Tree& live, Tree& target, const std::vector<RelPath>& paths);

/// The tree that the workspace has once the plan is carried out: `former` (opened anew from what `live` was)
/// with the wanted parts of `target`. `link_sources` as Swap tells them.
Result<void> graft(const Plan& plan, Tree& target, const std::map<std::uint32_t, std::string>& link_sources,
                   Tree& former);

}  // namespace okcvm::snapshots
