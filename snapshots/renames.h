#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "policy/error.h"
#include "snapshots/compare.h"
#include "snapshots/tree.h"

namespace okcvm::snapshots {

/// A step that only gives names: paths are those that hold once the steps before it are done.
struct NameStep {
  std::string from;  // empty: a directory is made
  Delta entry;       // what stands where afterwards; its `before` gives way
  /// None of a round is about what is in another of it.
  std::size_t round = 0;
};

/// What is to be done to a workspace, in this order.
struct Work {
  std::vector<NameStep> names;
  std::vector<Delta> rest;  // what differs still, once that is done
  /// By group of hard links of the target: the name, as it is before all, of the file that it is linked to.
  std::map<std::uint32_t, std::string> link_sources = {};
  /// Of names that go in the rest: under which other one their file goes on.
  std::map<std::string, std::string> other_names = {};
};

/// Calls `use` with the path and the node of each file whose bytes must be written: of a group of hard links
/// once, and not where it is linked to one that is there. Goes on while that succeeds.
Result<void> for_each_incoming(const Work& work, Tree& wanted,
                               const std::function<Result<void>(const std::string&, const Node&)>& use);

/// Directories above something, from the top down, that were missing.
struct Way {
  std::vector<Delta> made;                       // each without anything else in it
  std::vector<std::unique_ptr<Node>> displaced;  // what `made` gave way to: they still point to it
};
/// Makes those that `live` lacks above `path`, as `target` has them, and answers the last of all.
Result<Node*> make_way(Tree& live, Tree& target, const RelPath& path, Way& way);

/// Finds in the rest of `work` what was merely renamed, as its bytes and times tell, and lets it go on living
/// under its other name, in `live` at once: who has it open keeps it, and nothing of it is written. `target`
/// is what `live` shall become. What holds something that snapshots leave out is not moved: it is made anew,
/// and the files of the former one are moved there.
Result<Work> follow_renames(Tree& live, Tree& target, const std::vector<RelPath>& scope, Work work);

/// How the steps change paths.
class PathChanges final {
 public:
  /// `steps` outlives this.
  explicit PathChanges(const std::vector<NameStep>& steps);
  /// What a path is called after the rounds from this one on.
  std::string after(std::size_t round, std::string path) const;
  /// What it was called before the rounds up to this one, which is not among them; or before all.
  std::string before(std::string path, std::size_t round = SIZE_MAX) const;

 private:
  using Names = std::unordered_map<std::string_view, std::string_view>;
  struct Round {
    Names to, from;
  };
  static std::string renamed(const Names& names, std::string path);
  std::vector<Round> rounds_;
};

}  // namespace okcvm::snapshots
