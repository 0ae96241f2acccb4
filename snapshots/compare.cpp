#include "snapshots/compare.h"

#include <algorithm>
#include <map>
#include <set>

#include "snapshots/path_text.h"

namespace okcvm::snapshots {
namespace {

/// Whether a path has the same other names in both trees. Numbers of groups are those of one tree only.
class LinkComparer {
 public:
  LinkComparer(const PathTable& before, const PathTable& after)
      : before_(before), after_(after), groups_before_(before.groups()), groups_after_(after.groups()) {}

  bool knows(const std::string& path) const { return before_.find(path) || after_.find(path); }
  bool differs(const std::string& path) {
    const auto before = before_.find(path), after = after_.find(path);
    if (!before || !after) return before || after;
    const auto [known, is_new] = differs_.try_emplace({*before, *after});
    if (is_new) known->second = groups_before_.at(*before) != groups_after_.at(*after);
    return known->second;
  }

 private:
  using Groups = std::map<std::uint32_t, std::vector<std::string>>;
  const PathTable& before_;
  const PathTable& after_;
  Groups groups_before_, groups_after_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, bool> differs_;
};

class Comparer {
 public:
  Comparer(Tree& before, Tree& after)
      : before_(before), after_(after), links_(before.links(), after.links()) {}

  Result<void> nodes(const std::string& path, Node* before, Node* after, bool top) {
    if (!before && !after) return {};
    if (before && after && before->is_directory() && after->is_directory())
      return directories(path, *before, *after);
    Delta delta{.path = path,
                .before = before,
                .after = after,
                .top = top,
                .content = before && after,
                .linked = links_.knows(path)};
    if (before && after && before->type == after->type) {
      delta.content = before->content != after->content || links_.differs(path);
      if (!delta.content && before->attributes == after->attributes) return {};
    }
    for (auto [tree, node] : {std::pair(&before_, before), std::pair(&after_, after)})
      if (node && node->is_directory())
        if (auto loaded = tree->load(*node); !loaded) return loaded;
    deltas_.push_back(std::move(delta));
    if (before && before->is_directory())
      for (const auto& child : before->children)
        if (auto done = nodes(below(path, child->name), child.get(), nullptr, false); !done) return done;
    if (after && after->is_directory())
      for (const auto& child : after->children)
        if (auto done = nodes(below(path, child->name), nullptr, child.get(), false); !done) return done;
    return {};
  }

  /// Names can be joined to one file, or parted, without any other trace.
  Result<void> relinked(const std::vector<RelPath>& scope) {
    std::set<std::string> paths;
    for (const PathTable* table : {&before_.links(), &after_.links()})
      for (const auto& entry : table->numbers())
        if (is_in_scope(scope, entry.first) && links_.differs(entry.first)) paths.insert(entry.first);
    for (const auto& delta : deltas_) paths.erase(delta.path);
    for (const auto& path : paths) {
      const auto parsed = RelPath::parse(path);
      if (!parsed) continue;
      auto before = before_.find(*parsed);
      auto after = after_.find(*parsed);
      if (!before) return fail(before.error());
      if (!after) return fail(after.error());
      if (*before && *after && !(*before)->is_directory() && !(*after)->is_directory())
        deltas_.push_back(
            {.path = path, .before = *before, .after = *after, .content = true, .linked = true});
    }
    return {};
  }

  std::vector<Delta> take() {
    std::sort(deltas_.begin(), deltas_.end(), [](const Delta& a, const Delta& b) { return a.path < b.path; });
    return std::move(deltas_);
  }

 private:
  Result<void> directories(const std::string& path, Node& before, Node& after) {
    if (before.stored && after.stored && before.tree == after.tree && before.meta == after.meta) return {};
    if (auto loaded = before_.load(before); !loaded) return loaded;
    if (auto loaded = after_.load(after); !loaded) return loaded;
    const std::size_t first = deltas_.size();
    auto left = before.children.begin();
    auto right = after.children.begin();
    while (left != before.children.end() || right != after.children.end()) {
      const bool takes_left =
          left != before.children.end() && (right == after.children.end() || (*left)->name <= (*right)->name);
      const bool takes_right =
          right != after.children.end() && (left == before.children.end() || (*right)->name <= (*left)->name);
      Node* one = takes_left ? (left++)->get() : nullptr;
      Node* other = takes_right ? (right++)->get() : nullptr;
      if (auto done = nodes(below(path, (one ? one : other)->name), one, other, true); !done) return done;
    }
    if (path.empty() || before.attributes == after.attributes) return {};
    Attributes same_time = before.attributes;
    same_time.modified = after.attributes.modified;
    const bool entries_differ = std::any_of(
        deltas_.begin() + static_cast<std::ptrdiff_t>(first), deltas_.end(), [&path](const Delta& delta) {
          return (!delta.before || !delta.after) &&
                 delta.path.find('/', path.size() + 1) == std::string::npos;
        });
    deltas_.push_back({.path = path,
                       .before = &before,
                       .after = &after,
                       .times_only = same_time == after.attributes && entries_differ});
    return {};
  }

  Tree& before_;
  Tree& after_;
  LinkComparer links_;
  std::vector<Delta> deltas_;
};

}  // namespace

std::vector<RelPath> normalize_scope(std::vector<RelPath> paths) {
  if (paths.empty()) paths.emplace_back();
  std::sort(paths.begin(), paths.end());
  std::vector<RelPath> kept;
  for (auto& path : paths)
    if (!is_in_scope(kept, path.text())) kept.push_back(std::move(path));
  return kept;
}

bool is_in_scope(const std::vector<RelPath>& scope, const std::string& path) {
  const auto has = [&scope](std::string_view top) {
    const auto at =
        std::lower_bound(scope.begin(), scope.end(), top,
                         [](const RelPath& one, std::string_view text) { return one.text() < text; });
    return at != scope.end() && at->text() == top;
  };
  std::string_view top = path;
  while (!has(top)) {
    if (top.empty()) return false;
    const auto slash = top.rfind('/');
    top = top.substr(0, slash == top.npos ? 0 : slash);
  }
  return true;
}

Result<std::vector<Delta>> compare(Tree& before, Tree& after, const std::vector<RelPath>& scope) {
  Comparer comparer(before, after);
  for (const auto& path : scope) {
    auto left = before.find(path);
    if (!left) return fail(left.error());
    auto right = after.find(path);
    if (!right) return fail(right.error());
    if (auto done = comparer.nodes(path.text(), *left, *right, true); !done) return fail(done.error());
  }
  if (auto done = comparer.relinked(scope); !done) return fail(done.error());
  return comparer.take();
}

}  // namespace okcvm::snapshots
