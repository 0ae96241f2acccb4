#include "snapshots/renames.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "snapshots/path_text.h"

namespace okcvm::snapshots {
namespace {

/// Inside of what was renamed, something may have been renamed, too.
constexpr int kMostRounds = 8;
/// What looks like so many others tells nothing.
constexpr std::size_t kTooCommon = 16;

/// The same for what may well be the same file or directory: a rename leaves bytes and time as they were.
/// Empty: it cannot be recognised.
std::string likeness(const Node& node) {
  if (node.is_directory()) return node.stored ? node.tree.hex() + node.meta.hex() : std::string();
  if (node.type != NodeType::kFile || node.size == 0) return {};
  const timespec& modified = node.attributes.modified;
  return node.content.hex() + ' ' + std::to_string(modified.tv_sec) + ' ' + std::to_string(modified.tv_nsec);
}

bool is_at_or_below_any(const std::string& path, const std::set<std::string>& tops) {
  for (std::string above = path; !above.empty(); above = parent_of(above))
    if (tops.contains(above)) return true;
  return false;
}

auto depth_of(const std::string& path) {
  return std::count(path.begin(), path.end(), '/');
}

Result<bool> has_links(const Tree& tree, Node& node) {
  if (node.type == NodeType::kLink) return true;
  if (auto loaded = tree.load(node); !loaded) return fail(loaded.error());
  for (const auto& child : node.children)
    if (auto found = has_links(tree, *child); !found || *found) return found;
  return false;
}

/// Pairs what went with what came.
class Pairing final {
 public:
  Pairing(Tree& live, const std::vector<Delta>& deltas) : live_(live), deltas_(deltas) {
    for (auto delta = deltas.rbegin(); delta != deltas.rend(); ++delta) {
      if (delta->after || !delta->before) continue;
      if (delta->before->is_directory()) gone_directories_.insert(delta->path);
      if (auto key = likeness(*delta->before); !key.empty()) gone_[key].push_back(&delta->path);
    }
    for (auto delta = deltas.rbegin(); delta != deltas.rend(); ++delta)
      if (!delta->before && delta->after && delta->after->is_directory()) find_most_alike(*delta);
  }

  struct Pair {
    std::string from;
    const Delta* to;
  };
  /// In the order of where things shall be; none of a pair is in another's.
  Result<std::vector<Pair>> pairs() {
    std::vector<Pair> found;
    for (const auto& delta : deltas_) {
      if (delta.before || !delta.after || depth_of(delta.path) == 0) continue;
      if (is_at_or_below_any(delta.path, goals_)) continue;
      const auto from = source_of(delta);
      if (!from) continue;
      auto may_move = is_fit(*from, delta.path);
      if (!may_move) return fail(may_move.error());
      if (!*may_move) continue;
      used_.insert(*from);
      goals_.insert(delta.path);
      found.push_back({*from, &delta});
    }
    return found;
  }

 private:
  /// The directory that went in which most of one that came was, by name. From the leaves up: directories in
  /// it that changed count if they are most alike themselves.
  void find_most_alike(const Delta& came) {
    std::unordered_map<std::string, std::size_t> votes;
    const auto vote = [&](const std::string& path, const std::string& name) {
      if (leaf_of(path) != name) return;
      if (const auto parent = parent_of(path); gone_directories_.contains(parent)) ++votes[parent];
    };
    for (const auto& child : came.after->children) {
      const auto alike = gone_.find(likeness(*child));
      if (alike != gone_.end()) {
        if (alike->second.size() > kTooCommon) continue;
        for (const auto* path : alike->second) vote(*path, child->name);
      } else if (const auto known = most_alike_.find(below(came.path, child->name));
                 known != most_alike_.end()) {
        vote(known->second, child->name);
      }
    }
    const auto best = std::max_element(votes.begin(), votes.end(), [](const auto& a, const auto& b) {
      return std::pair(a.second, b.first) < std::pair(b.second, a.first);
    });
    if (best != votes.end() && best->second * 2 >= came.after->children.size())
      most_alike_.emplace(came.path, best->first);
  }

  std::optional<std::string> source_of(const Delta& came) {
    if (const auto alike = gone_.find(likeness(*came.after)); alike != gone_.end()) {
      auto& paths = alike->second;
      while (!paths.empty() && is_used(*paths.back())) paths.pop_back();
      const auto last = std::min(paths.size(), kTooCommon);
      const auto namesake = std::find_if(paths.rbegin(), paths.rbegin() + static_cast<std::ptrdiff_t>(last),
                                         [this, name = leaf_of(came.path)](const std::string* path) {
                                           return leaf_of(*path) == name && !is_used(*path);
                                         });
      if (namesake != paths.rbegin() + static_cast<std::ptrdiff_t>(last)) return **namesake;
      if (!paths.empty()) return *paths.back();
    }
    const auto known = most_alike_.find(came.path);
    if (known == most_alike_.end() || is_used(known->second)) return std::nullopt;
    return known->second;
  }

  /// It, or something above or in it, was paired.
  bool is_used(const std::string& path) const {
    if (is_at_or_below_any(path, used_)) return true;
    const auto inside = used_.lower_bound(path + '/');
    return inside != used_.end() && is_at_or_below(*inside, path);
  }

  Result<bool> is_fit(const std::string& from, const std::string& to) const {
    if (depth_of(from) == 0 || live_.left_out().find(to) || !live_.left_out().tree(from).empty())
      return false;
    for (std::string above = parent_of(to); !above.empty(); above = parent_of(above)) {
      const auto path = RelPath::parse(above);
      if (!path) return fail(path.error());
      auto there = live_.find(*path);
      if (!there) return fail(there.error());
      if (*there && !(*there)->is_directory()) return false;
      if (*there) break;
      if (live_.left_out().find(above)) return false;
    }
    if (depth_of(from) == depth_of(to)) return true;
    const auto path = RelPath::parse(from);
    if (!path) return fail(path.error());
    auto node = live_.find(*path);
    if (!node) return fail(node.error());
    auto links = *node ? has_links(live_, **node) : Result<bool>(true);
    if (!links) return links;
    return !*links;
  }

  Tree& live_;
  const std::vector<Delta>& deltas_;
  std::unordered_map<std::string, std::vector<const std::string*>> gone_;  // the last path first
  std::set<std::string> gone_directories_;
  std::unordered_map<std::string, std::string> most_alike_;  // of what came, what went
  std::set<std::string> used_;                               // what went and was paired
  std::set<std::string> goals_;                              // what came and was
};

/// The directory in which `path` shall stand, in `live`; those that are missing are made, empty.
Result<Node*> make_way(Tree& live, Tree& target, const RelPath& path, std::vector<NameStep>& steps) {
  Node* there = &live.root();
  Node* wanted = &target.root();
  std::string text;
  const auto parent = path.parent();
  for (const auto part : parent.components()) {
    if (auto loaded = live.load(*there); !loaded) return fail(loaded.error());
    if (auto loaded = target.load(*wanted); !loaded) return fail(loaded.error());
    text = below(text, std::string(part));
    wanted = wanted->child(part);
    if (!wanted) return fail(Code::kInternal, "a restored path has no directory", text);
    Node* next = there->child(part);
    if (!next) {
      if (auto loaded = target.load(*wanted); !loaded) return fail(loaded.error());
      steps.push_back({{}, {text, nullptr, wanted, true, false, true, false}});
      next = &there->add_child(copy_of(*wanted, true));
      next->touch();
      ++live.totals().directories;
    }
    there = next;
  }
  if (auto loaded = live.load(*there); !loaded) return fail(loaded.error());
  return there;
}

/// Takes the last of a directory first and puts the first first, as each such change may cost time by what
/// comes after it in there.
Result<void> rename_all(Tree& live, Tree& target, std::vector<Pairing::Pair> pairs,
                        std::vector<NameStep>& steps) {
  std::sort(pairs.begin(), pairs.end(), [](const auto& a, const auto& b) { return a.from > b.from; });
  std::map<std::string, std::pair<Tree::Moving, Node*>> moving;  // by where they shall be
  for (const auto& [from, to] : pairs) {
    const auto path = RelPath::parse(from);
    if (!path) return fail(path.error());
    auto node = live.find(*path);
    if (!node) return fail(node.error());
    if (!*node) return fail(Code::kInternal, "what was renamed is not there", from);
    moving.emplace(to->path, std::pair(Tree::take(**node), to->after));
  }
  for (auto& [to, what] : moving) {
    auto& [node, after] = what;
    const auto path = RelPath::parse(to);
    if (!path) return fail(path.error());
    auto place = make_way(live, target, *path, steps);
    if (!place) return fail(place.error());
    steps.push_back({node.from, {to, nullptr, after}});
    live.put(std::move(node), **place, *path);
  }
  return {};
}

}  // namespace

Result<Work> follow_renames(Tree& live, Tree& target, const std::vector<RelPath>& scope, Work work) {
  for (int round = 0; round < kMostRounds; ++round) {
    auto pairs = Pairing(live, work.rest).pairs();
    if (!pairs) return fail(pairs.error());
    if (pairs->empty()) break;
    if (auto moved = rename_all(live, target, std::move(*pairs), work.names); !moved)
      return fail(moved.error());
    auto rest = compare(live, target, scope);
    if (!rest) return fail(rest.error());
    work.rest = std::move(*rest);
  }
  return work;
}

PathChanges::PathChanges(const std::vector<NameStep>& steps) {
  for (std::size_t i = 0; i < steps.size(); ++i)
    if (!steps[i].from.empty() && steps[i].entry.after->is_directory())
      changes_.push_back({i, steps[i].from, steps[i].entry.path});
}

std::string PathChanges::after(std::size_t first, std::string path) const {
  for (const auto& [step, from, to] : changes_)
    if (step >= first) path = with_other_top(std::move(path), from, to);
  return path;
}

std::string PathChanges::before(std::string path, std::size_t count) const {
  for (auto change = changes_.rbegin(); change != changes_.rend(); ++change)
    if (change->step < count) path = with_other_top(std::move(path), change->to, change->from);
  return path;
}

}  // namespace okcvm::snapshots
