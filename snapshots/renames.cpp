#include "snapshots/renames.h"

#include <algorithm>
#include <map>
#include <unordered_set>
#include <utility>

#include "snapshots/path_text.h"

namespace okcvm::snapshots {
namespace {

/// Inside of what was renamed, something may have been renamed, too.
constexpr std::size_t kMostRounds = 8;
/// What looks like so many others tells nothing.
constexpr std::size_t kTooCommon = 16;

/// The same for what may well be the same file, link or directory: a rename leaves bytes and time as they
/// were. Empty: it cannot be recognised.
std::string likeness(const Node& node) {
  if (node.is_directory()) return node.stored ? node.tree.hex() + node.meta.hex() : std::string();
  const timespec& modified = node.attributes.modified;
  const char* type = node.type == NodeType::kLink ? "link " : "";
  return type + node.content.hex() + ' ' + std::to_string(modified.tv_sec) + ' ' +
         std::to_string(modified.tv_nsec);
}

bool is_zone(const Delta& delta) {
  return delta.path.find('/') == delta.path.npos;
}

bool is_beside(const Delta& one, const Delta& other) {
  return parent_of(one.path) == parent_of(other.path);
}

/// Pairs what went with what came.
class Pairing final {
 public:
  Pairing(Tree& live, const std::vector<Delta>& deltas) : live_(live), deltas_(deltas) {
    for (auto delta = deltas.rbegin(); delta != deltas.rend(); ++delta) {
      if (delta->after || !delta->before) continue;
      if (delta->before->is_directory()) gone_directories_.emplace(delta->before, &*delta);
      if (auto key = likeness(*delta->before); !key.empty()) gone_[key].push_back(&*delta);
    }
    if (gone_.empty()) return;
    for (auto delta = deltas.rbegin(); delta != deltas.rend(); ++delta)
      if (!delta->before && delta->after && delta->after->is_directory()) find_most_alike(*delta);
  }

  struct Pair {
    const Delta* from;
    const Delta* to;
  };
  /// None of them is in another one.
  Result<std::vector<Pair>> pairs() {
    std::vector<Pair> found;
    if (gone_.empty()) return found;
    for (const auto& delta : deltas_) {
      if (delta.before || !delta.after || delta.after->type == NodeType::kLink || is_zone(delta)) continue;
      if (is_at_or_below_any(delta.after, goals_)) continue;
      const Delta* from = source_of(delta);
      if (!from) continue;
      auto may_move = is_fit(*from, delta);
      if (!may_move) return fail(may_move.error());
      if (!*may_move) continue;
      used_.insert(from->before);
      for (const Node* above = from->before->parent; above && above_used_.insert(above).second;)
        above = above->parent;
      goals_.insert(delta.after);
      found.push_back({from, &delta});
    }
    return found;
  }

 private:
  using Deltas = std::vector<const Delta*>;
  using Nodes = std::unordered_set<const Node*>;

  static bool is_at_or_below_any(const Node* node, const Nodes& tops) {
    for (; node; node = node->parent)
      if (tops.contains(node)) return true;
    return false;
  }

  /// The directory that went in which most of one that came was, by name. From the leaves up: directories in
  /// it that changed count if they are most alike themselves.
  void find_most_alike(const Delta& came) {
    std::unordered_map<const Delta*, std::size_t> votes;
    std::size_t voters = 0;
    const auto vote = [&](const Delta& gone, const Node& child) {
      if (gone.before->name != child.name) return;
      const auto parent = gone_directories_.find(gone.before->parent);
      if (parent != gone_directories_.end()) ++votes[parent->second];
    };
    for (const auto& child : came.after->children) {
      const auto alike = gone_.find(likeness(*child));
      const auto known = most_alike_.find(child.get());
      if (alike != gone_.end() && alike->second.size() > kTooCommon) continue;
      ++voters;
      if (alike != gone_.end())
        for (const auto* gone : alike->second) vote(*gone, *child);
      else if (known != most_alike_.end())
        vote(*known->second, *child);
    }
    const Delta* best = nullptr;
    for (const auto& [gone, count] : votes) {
      if (count * 2 < voters) continue;
      if (!best || std::pair(votes.at(best), gone->path) < std::pair(count, best->path)) best = gone;
    }
    if (best) most_alike_.emplace(came.after, best);
  }

  const Delta* source_of(const Delta& came) {
    const bool is_directory = came.after->is_directory();
    if (const auto alike = gone_.find(likeness(*came.after)); alike != gone_.end()) {
      Deltas& gone = alike->second;
      while (!gone.empty() && is_used(*gone.back())) gone.pop_back();
      const auto last = gone.rbegin() + static_cast<std::ptrdiff_t>(std::min(gone.size(), kTooCommon));
      const auto best = std::find_if(gone.rbegin(), last, [&](const Delta* candidate) {
        return (is_directory ? is_beside(*candidate, came) : candidate->before->name == came.after->name) &&
               !is_used(*candidate);
      });
      if (best != last) return *best;
      if (!gone.empty()) return gone.back();
    }
    const auto known = most_alike_.find(came.after);
    return known == most_alike_.end() || is_used(*known->second) ? nullptr : known->second;
  }

  /// It, or something above or in it, was paired.
  bool is_used(const Delta& gone) const {
    return above_used_.contains(gone.before) || is_at_or_below_any(gone.before, used_);
  }

  Result<bool> is_fit(const Delta& from, const Delta& to) {
    if (is_zone(from) || live_.left_out().find(to.path) || !live_.left_out().tree(from.path).empty())
      return false;
    return has_place(parent_of(to.path));
  }

  /// Whether this is a directory of the live tree, or can be made one.
  Result<bool> has_place(const std::string& directory) {
    if (directory.empty()) return true;
    if (const auto known = places_.find(directory); known != places_.end()) return known->second;
    auto above = has_place(parent_of(directory));
    if (!above) return above;
    const auto path = RelPath::parse(directory);
    if (!path) return fail(path.error());
    auto there = live_.find(*path);
    if (!there) return fail(there.error());
    const bool is_free = *there ? (*there)->is_directory() : !live_.left_out().find(directory);
    return places_[directory] = *above && is_free;
  }

  Tree& live_;
  const std::vector<Delta>& deltas_;
  std::unordered_map<std::string, Deltas> gone_;  // by likeness; the last path first
  std::unordered_map<const Node*, const Delta*> gone_directories_;
  std::unordered_map<const Node*, const Delta*> most_alike_;  // of directories that came, which went
  Nodes used_, above_used_;                                   // what went and was paired
  Nodes goals_;                                               // what came and was
  std::unordered_map<std::string, bool> places_;
};

/// Takes the last of a directory first and puts the first first, as each such change may cost time by what
/// comes after it in there.
Result<void> rename_all(Tree& live, Tree& target, std::vector<Pairing::Pair> pairs, std::size_t round,
                        std::vector<NameStep>& steps) {
  std::sort(pairs.begin(), pairs.end(),
            [](const auto& a, const auto& b) { return a.from->path > b.from->path; });
  std::map<std::string, std::pair<Tree::Moving, Node*>> moving;  // by where they shall be
  for (const auto& [from, to] : pairs)
    moving.emplace(to->path, std::pair(Tree::take(*from->before), to->after));
  for (auto& [to, what] : moving) {
    auto& [node, after] = what;
    const auto path = RelPath::parse(to);
    if (!path) return fail(path.error());
    Way way;
    auto place = make_way(live, target, *path, way);
    if (!place) return fail(place.error());
    for (auto& made : way.made) steps.push_back({{}, std::move(made), round});
    steps.push_back({node.from, {to, nullptr, after}, round});
    live.put(std::move(node), **place, *path);
  }
  return {};
}

}  // namespace

Result<Node*> make_way(Tree& live, Tree& target, const RelPath& path, Way& way) {
  Node* there = &live.root();
  Node* wanted = &target.root();
  std::string text;
  const auto parent = path.parent();
  for (const auto part : parent.components()) {
    if (auto loaded = live.load(*there); !loaded) return fail(loaded.error());
    if (auto loaded = target.load(*wanted); !loaded) return fail(loaded.error());
    wanted = wanted->child(part);
    if (!wanted) return fail(Code::kInternal, "a restored path has no directory", path.text());
    text = below(text, std::string(part));
    Node* next = there->child(part);
    if (!next || !next->is_directory()) {
      if (auto loaded = target.load(*wanted); !loaded) return fail(loaded.error());
      Delta delta{.path = text, .after = wanted, .extent = Extent::kAlone};
      if (next) {
        if (auto forgotten = live.forget(*next); !forgotten) return fail(forgotten.error());
        way.displaced.push_back(there->take_child(part));
        delta.before = way.displaced.back().get();
        delta.content = true;
      }
      way.made.push_back(std::move(delta));
      next = &there->add_child(copy_of(*wanted, Extent::kAlone));
      next->touch();
      ++live.totals().directories;
    }
    there = next;
  }
  if (auto loaded = live.load(*there); !loaded) return fail(loaded.error());
  return there;
}

Result<Work> follow_renames(Tree& live, Tree& target, const std::vector<RelPath>& scope, Work work) {
  for (std::size_t round = 0; round < kMostRounds; ++round) {
    auto pairs = Pairing(live, work.rest).pairs();
    if (!pairs) return fail(pairs.error());
    if (pairs->empty()) break;
    if (auto renamed = rename_all(live, target, std::move(*pairs), round, work.names); !renamed)
      return fail(renamed.error());
    auto rest = compare(live, target, scope);
    if (!rest) return fail(rest.error());
    work.rest = std::move(*rest);
  }
  return work;
}

Result<void> for_each_incoming(const Work& work, Tree& wanted,
                               const std::function<Result<void>(const std::string&, const Node&)>& use) {
  std::set<std::uint32_t> groups;
  for (const auto& [group, path] : work.link_sources) groups.insert(group);
  for (const auto& delta : work.rest) {
    const bool comes_in =
        delta.after && delta.after->type == NodeType::kFile && (!delta.before || delta.content);
    if (!comes_in) continue;
    if (const auto group = wanted.links().find(delta.path); group && !groups.insert(*group).second) continue;
    if (auto used = use(delta.path, *delta.after); !used) return used;
  }
  return {};
}

PathChanges::PathChanges(const std::vector<NameStep>& steps) {
  for (const auto& [from, entry, round] : steps) {
    if (from.empty()) continue;
    if (rounds_.size() <= round) rounds_.resize(round + 1);
    rounds_[round].to.emplace(from, entry.path);
    rounds_[round].from.emplace(entry.path, from);
  }
}

std::string PathChanges::renamed(const Names& names, std::string path) {
  for (auto size = path.size(); size > 0 && size != path.npos; size = path.rfind('/', size - 1))
    if (const auto found = names.find(std::string_view(path).substr(0, size)); found != names.end())
      return std::string(found->second) + path.substr(size);
  return path;
}

std::string PathChanges::after(std::size_t round, std::string path) const {
  for (auto i = round; i < rounds_.size(); ++i) path = renamed(rounds_[i].to, std::move(path));
  return path;
}

std::string PathChanges::before(std::string path, std::size_t round) const {
  for (auto i = std::min(round, rounds_.size()); i-- > 0;) path = renamed(rounds_[i].from, std::move(path));
  return path;
}

}  // namespace okcvm::snapshots
