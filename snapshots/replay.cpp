#include "snapshots/replay.h"

#include <climits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "policy/zones.h"
#include "snapshots/path_text.h"

namespace okcvm::snapshots {
namespace {

/// A directory that is renamed takes the names of what has several with it, one by one. With so many it is
/// quicker to look at everything.
constexpr std::size_t kMostCarried = 200'000;

Node& child_or_unknown(Node& directory, std::string_view name) {
  if (Node* child = directory.child(name)) return *child;
  auto node = std::make_unique<Node>();
  node->name = name;
  return directory.add_child(std::move(node));
}

/// The directory in which `path` stands, made up where it is not known yet.
Result<Node*> reach_parent(Tree& tree, const RelPath& path) {
  Node* node = &tree.root();
  const RelPath parent = path.parent();
  for (const auto part : parent.components()) {
    if (auto loaded = tree.load(*node); !loaded) return fail(loaded.error());
    node = &child_or_unknown(*node, part);
    if (node->is_directory()) continue;
    if (auto made = tree.become(*node, NodeType::kDirectory); !made) return fail(made.error());
    node->mark(kMarkEntry | kMarkWhole);
  }
  if (auto loaded = tree.load(*node); !loaded) return fail(loaded.error());
  return node;
}

/// Makes the node at `path`, if any, an unknown one, and marks it.
Result<void> make_unknown(Tree& tree, const RelPath& path) {
  if (!is_snapshotted(path)) return {};
  auto node = tree.find(path);
  if (!node) return fail(node.error());
  if (*node)
    if (auto changed = tree.become(**node, NodeType::kUnknown); !changed) return changed;
  return mark(tree, path, kMarkEntry);
}

/// Whether what is in a directory that is read whole, and was there when that was noted, changed since
/// without a record of its own.
bool may_have_changed_unnoted(const Node& node) {
  for (const Node* at = &node; at->parent && at->origin.empty(); at = at->parent)
    if (at->parent->marks & kMarkWhole) return true;
  return false;
}

/// Adds to `carried` how many names it had to change in the tree's tables.
Result<void> move(Tree& tree, const RelPath& from, const RelPath& to, std::size_t& carried) {
  if (to.is_within(from) || from.is_within(to) || from.depth() < 2 || to.depth() < 2) {
    // Refused by any kernel; zones themselves never move.
    if (auto marked = make_unknown(tree, from); !marked) return marked;
    return make_unknown(tree, to);
  }
  auto found = tree.find(from);
  if (!found) return fail(found.error());
  Node* node = *found;
  if (!node || node->type == NodeType::kUnknown || !is_snapshotted(from) || !is_snapshotted(to) ||
      may_have_changed_unnoted(*node)) {
    if (auto marked = make_unknown(tree, from); !marked) return marked;
    return make_unknown(tree, to);
  }
  auto place = reach_parent(tree, to);
  if (!place) return fail(place.error());
  if (Node* old = (*place)->child(to.leaf())) {
    if (auto forgotten = tree.forget(*old); !forgotten) return forgotten;
    (*place)->take_child(to.leaf());
  }
  if (node->known && node->origin.empty()) node->origin = known_path(*node);
  carried += tree.put(Tree::take(*node), **place, to);
  node->mark(kMarkEntry);
  if (auto marked = mark(tree, from, kMarkEntry); !marked) return marked;
  return mark(tree, to, kMarkEntry);
}

/// What is below changes without a record of its own from now on, also what was moved there before: that is
/// not to be recognised. Not by recursion: users decide how deep their trees are.
Result<void> mark_whole(Tree& tree, const RelPath& path) {
  auto top = tree.find(path);
  if (!top) return fail(top.error());
  std::vector<Node*> nodes;
  if (*top) nodes.push_back(*top);
  while (!nodes.empty()) {
    Node& node = *nodes.back();
    nodes.pop_back();
    if (node.origin.empty()) {
      for (const auto& child : node.children) nodes.push_back(child.get());
      continue;
    }
    node.mark(kMarkEntry);
    if (auto done = tree.become(node, NodeType::kUnknown); !done) return done;
  }
  return mark(tree, path, kMarkEntry | kMarkContent | kMarkWhole);
}

/// A changed file with several names is recorded under one of them, which may be gone by the end of the set.
/// Knows groups of hard links by every name that they have meanwhile, or would have: moves may be refused.
/// Where that would be too many names, or the one may have been gone or was not found when the tree was last
/// captured, every group counts as changed.
class ChangedLinks final {
 public:
  explicit ChangedLinks(Tree& tree)
      : tree_(tree), gone_(tree.links().gone()), has_lost_track_(tree.links().misses_names()) {}

  void file(const std::string& path, std::uint8_t bits) {
    if (gone_.contains(path)) has_lost_track_ = true;
    for (const auto& [name, group] : within(path, path + '\0')) bits_[group] |= bits;
  }
  void tree(const std::string& path, std::uint8_t bits) {
    const auto [first, end] = range_below(gone_, path);
    if (gone_.contains(path) || first != end) has_lost_track_ = true;
    for (const auto& [name, group] : at_or_below(path)) bits_[group] |= bits;
  }
  /// To be called before the tree is changed.
  void moved(const std::string& from, const std::string& to) {
    if (!gone_.empty()) has_lost_track_ = true;
    if (has_lost_track_) return;
    const auto found = at_or_below(from);
    if (found.empty() && at_or_below(to).empty()) return;
    if (names_.empty()) {
      const auto& all = tree_.links().numbers();
      names_.insert(all.begin(), all.end());
    }
    for (const auto& [name, group] : found)
      if (std::string moved_to = to + name.substr(from.size()); moved_to.size() < PATH_MAX)
        names_.emplace(std::move(moved_to), group);
    carried_ += found.size();
    if (carried_ <= kMostCarried &&
        names_.size() <= kNamesForOne * tree_.links().numbers().size() + kSomeNames)
      return;
    has_lost_track_ = true;
    names_.clear();
  }
  /// Marks the names that are still in a group. The others were recorded themselves.
  Result<void> mark_all() const {
    if (bits_.empty() && !has_lost_track_) return {};
    for (const auto& [name, group] : tree_.links().numbers()) {
      const auto changed = bits_.find(group);
      if (changed == bits_.end() && !has_lost_track_) continue;
      const auto path = RelPath::parse(name);
      if (!path) return fail(path.error());
      const std::uint8_t bits = has_lost_track_ ? std::uint8_t{kMarkContent} : changed->second;
      if (auto marked = mark(tree_, *path, bits); !marked) return marked;
    }
    if (!has_lost_track_) return {};
    for (const auto& name : gone_) {  // also of those that are in no group any more
      const auto path = RelPath::parse(name);
      if (!path) return fail(path.error());
      if (auto marked = mark(tree_, *path, kMarkContent); !marked) return marked;
    }
    return {};
  }

 private:
  using Names = std::set<std::pair<std::string, std::uint32_t>>;
  static constexpr std::size_t kNamesForOne = 4;
  static constexpr std::size_t kSomeNames = 1024;

  /// From one name on, to before another.
  Names within(const std::string& first, const std::string& end) const {
    if (!names_.empty()) return {names_.lower_bound({first, 0}), names_.lower_bound({end, 0})};
    const auto& all = tree_.links().numbers();
    return {all.lower_bound(first), all.lower_bound(end)};
  }
  Names at_or_below(const std::string& path) const {
    Names found = within(path, path + '\0');
    found.merge(within(path + '/', path + '0'));  // '0' follows '/'
    return found;
  }

  Tree& tree_;
  const std::set<std::string, std::less<>> gone_;  // when all this began
  Names names_;                                    // once a name moved; before that, the tree's
  std::size_t carried_ = 0;
  bool has_lost_track_;
  std::map<std::uint32_t, std::uint8_t> bits_;
};

}  // namespace

bool is_snapshotted(const RelPath& path) {
  return rule_of(zone_named(path.top())).snapshotted;
}

std::string known_path(const Node& node) {
  if (!node.origin.empty() || !node.parent) return node.origin;
  std::string text = known_path(*node.parent);
  if (!text.empty()) text += '/';
  return text += node.name;
}

Result<void> mark(Tree& tree, const RelPath& path, std::uint8_t bits) {
  Node* node = &tree.root();
  for (const auto part : path.components()) {
    if (auto loaded = tree.load(*node); !loaded) return loaded;
    node = &child_or_unknown(*node, part);
    if (!node->is_directory()) break;
  }
  // A name came or went: its directory's own times changed.
  if ((bits & kMarkEntry) && node->parent && node->parent->parent) node->parent->mark(kMarkAttributes);
  const bool is_the_path = node->path() == path.text();
  node->mark(is_the_path ? bits : static_cast<std::uint8_t>(kMarkEntry));
  if (node->type == NodeType::kUnknown) node->mark(kMarkEntry);
  return {};
}

Result<bool> replay(const ChangeSet& changes, Moves moves, Tree& tree) {
  if (changes.rescan) tree.root().mark(kMarkWhole);
  ChangedLinks links(tree);
  std::size_t carried = 0;
  for (const Change& change : changes.changes) {
    if (change.path.is_root()) {
      tree.root().mark(kMarkWhole);
      continue;
    }
    const bool is_move = change.kind == ChangeKind::kMoved;
    if (is_move) links.moved(change.path.text(), change.target.text());
    if (is_move && (changes.rescan || moves == Moves::kMayBeKnown)) {
      for (const RelPath* path : {&change.path, &change.target}) {
        if (!is_snapshotted(*path)) continue;
        if (auto marked = mark(tree, *path, kMarkEntry | kMarkContent | kMarkWhole); !marked)
          return fail(marked.error());
      }
      continue;
    }
    if (!is_snapshotted(change.path) && !(is_move && is_snapshotted(change.target))) continue;
    Result<void> done;
    switch (change.kind) {
      case ChangeKind::kEntry:
        done = mark(tree, change.path, kMarkEntry | kMarkContent);
        break;
      case ChangeKind::kContent:
        links.file(change.path.text(), kMarkContent);
        done = mark(tree, change.path, kMarkContent);
        break;
      case ChangeKind::kAttributes:
        links.file(change.path.text(), kMarkAttributes);
        done = mark(tree, change.path, kMarkAttributes);
        break;
      case ChangeKind::kTree:
        // Two that changed places are both named, and then nothing below them.
        links.tree(change.path.text(), kMarkContent);
        done = mark_whole(tree, change.path);
        break;
      case ChangeKind::kMoved:
        done = move(tree, change.path, change.target, carried);
        break;
    }
    if (!done) return fail(done.error());
    if (carried > kMostCarried) return false;
  }
  if (auto marked = links.mark_all(); !marked) return fail(marked.error());
  return true;
}

}  // namespace okcvm::snapshots
