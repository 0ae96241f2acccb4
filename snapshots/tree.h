#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "policy/error.h"
#include "policy/rel_path.h"
#include "snapshots/batch.h"
#include "snapshots/node.h"
#include "snapshots/path_table.h"
#include "snapshots/repository.h"

namespace okcvm::snapshots {

struct Totals {
  std::uint64_t files = 0;  // and links
  std::uint64_t directories = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const Totals&, const Totals&) = default;
};

/// The objects that make up a snapshot's content; two snapshots with the same ones hold the same.
struct TreeNames {
  Oid workspace;  // none: nothing that git can show
  Oid meta;
  Oid links;     // none: no hard links
  Oid left_out;  // none: nothing was
  friend bool operator==(const TreeNames&, const TreeNames&) = default;
};

/// A snapshot's tree in memory, loaded as far as it was looked into, and changed on top of that. The children
/// of its root are the zones. Not thread-safe.
class Tree final {
 public:
  /// An empty one; `repository` may be null for a tree that is never loaded from.
  explicit Tree(const Repository* repository) : repository_(repository), root_(make_root()) {}
  static Result<std::unique_ptr<Tree>> open(const Repository& repository, const TreeNames& names,
                                            const Totals& totals);

  Node& root() { return *root_; }
  PathTable& links() { return links_; }
  PathTable& left_out() { return left_out_; }
  const Totals& totals() const { return totals_; }
  Totals& totals() { return totals_; }

  /// Reads a directory's attributes and children, unless they are there. `corrupt` if that fails.
  Result<void> load(Node& directory) const;
  /// The node of a path, or null.
  Result<Node*> find(const RelPath& path) const;
  /// Takes a node and all below it out of the totals and lists. The node itself is the caller's to remove.
  Result<void> forget(Node& node);
  /// Where what was forgotten since they were last taken had been moved away from (Node::origin).
  std::vector<std::string> take_lost_origins() { return std::exchange(lost_origins_, {}); }
  /// A node, with all below it, on its way to another name.
  struct Moving {
    std::unique_ptr<Node> node;
    std::string from;
  };
  static Moving take(Node& node);
  /// Gives it the path `to`, in the directory `place`; nothing stands there. Answers how many names it had to
  /// change in the lists.
  std::size_t put(Moving moving, Node& place, const RelPath& to);
  /// Makes it another kind of node, forgetting what it was. A new directory is to be read whole.
  Result<void> become(Node& node, NodeType type);
  /// What is there of it, loading everything below.
  Result<Totals> count(Node& node) const;

  /// Writes what changed and answers the names.
  Result<TreeNames> write(Batch& batch);
  /// Written, it is the tree of a snapshot itself, as if opened anew. Keeps of what is loaded the upper
  /// folders if there are more than `most` nodes; false if those are too many, too.
  bool settle(std::size_t most);

 private:
  void note_lost_origins(const Node& top);
  Result<void> write_directory(Node& directory, Batch& batch);
  static std::size_t settle(Node& node);
  static std::size_t unload_lowest(Node& directory);

  const Repository* repository_;
  std::unique_ptr<Node> root_;
  PathTable links_;
  PathTable left_out_;
  Oid links_oid_, left_out_oid_;  // what they are stored as, unless they have changed
  Totals totals_;
  std::vector<std::string> lost_origins_;
};

}  // namespace okcvm::snapshots
