#include "snapshots/kept_links.h"

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>

namespace okcvm::snapshots {
namespace {

using Members = std::vector<std::string>;

bool has_bytes_of(const Node* live, const Node* wanted) {
  return live && wanted && !live->is_directory() && live->type == wanted->type &&
         live->content == wanted->content;
}

/// Numbers of groups are those of one tree only.
class LinkKeeper final {
 public:
  LinkKeeper(Tree& live, Tree& target, const std::vector<RelPath>& scope, Work& work)
      : live_(live), target_(target), scope_(scope), work_(work), changes_(work.names) {
    for (auto& delta : work.rest) deltas_.emplace(delta.path, &delta);
    for (const auto& [path, group] : live.links().numbers())
      if (!is_in_scope(scope, path)) outside_.insert(group);
  }

  Result<void> choose() {
    const auto groups = target_.links().groups();
    std::map<std::string_view, std::uint32_t> in_order;  // of names: the numbers have none
    for (const auto group : groups_to_choose_for()) in_order.emplace(groups.at(group).front(), group);
    for (const auto& [name, group] : in_order) {
      auto source = choose(groups.at(group));
      if (!source) return fail(source.error());
      if (*source) work_.link_sources.emplace(group, changes_.before(**source));
    }
    for (const auto& delta : work_.rest)
      if (delta.content && !target_.links().find(delta.path))
        if (auto source = choose({delta.path}); !source) return fail(source.error());
    return {};
  }

  /// To be called when all is chosen.
  void find_other_names() {
    const auto groups = live_.links().groups();
    std::map<std::uint32_t, std::optional<std::string>> staying;
    for (const auto& delta : work_.rest) {
      const auto group = live_.links().find(delta.path);
      if (!group || stays(delta.path)) continue;
      const auto [name, is_new] = staying.try_emplace(*group);
      if (is_new)
        for (const auto& member : groups.at(*group))
          if (!name->second && stays(member)) name->second = member;
      if (name->second) work_.other_names.emplace(delta.path, *name->second);
    }
  }

 private:
  /// Of the target: those of what differs, and those that reach out of the scope.
  std::set<std::uint32_t> groups_to_choose_for() const {
    std::set<std::uint32_t> groups;
    for (const auto& delta : work_.rest)
      if (const auto group = target_.links().find(delta.path)) groups.insert(*group);
    if (scope_.front().is_root()) return groups;
    for (const auto& [path, group] : target_.links().numbers())
      if (is_in_scope(scope_, path)) groups.insert(group);
    return groups;
  }

  /// Answers the name whose file goes on under all of these, if one does.
  Result<std::optional<std::string>> choose(const Members& members) {
    auto source = source_of(members);
    if (source && *source) keep(**source, members);
    return source;
  }

  /// The more, the better: outside of the scope, where nothing may be changed; as it shall be already; names
  /// that have it already.
  using Merit = std::tuple<bool, bool, std::size_t>;

  Result<std::optional<std::string>> source_of(const Members& members) {
    std::map<std::uint32_t, std::size_t> sharing;  // by group of the live tree
    for (const auto& member : members)
      if (const auto group = live_.links().find(member); group && is_in_scope(scope_, member))
        ++sharing[*group];
    std::optional<std::string> best;
    Merit most;
    for (const auto& member : members) {
      auto nodes = nodes_of(member);
      if (!nodes) return fail(nodes.error());
      const auto [there, wanted] = *nodes;
      if (!has_bytes_of(there, wanted)) continue;
      const auto group = live_.links().find(member);
      const bool is_outside = !is_in_scope(scope_, member);
      const bool is_as_wanted = there->attributes == wanted->attributes;
      if (is_outside ? !is_as_wanted : group && outside_.contains(*group)) continue;
      if (group && kept_.contains(*group)) continue;
      const Merit merit{is_outside, is_as_wanted, group ? sharing[*group] : 1};
      if (best && merit <= most) continue;
      best = member;
      most = merit;
    }
    return best;
  }

  struct Nodes {
    const Node* there;
    const Node* wanted;
  };
  /// What of a group has no delta inside of the scope is there with all of the group, and needs nothing.
  Result<Nodes> nodes_of(const std::string& member) {
    if (const auto delta = deltas_.find(member); delta != deltas_.end())
      return Nodes{delta->second->before, delta->second->after};
    const auto path = RelPath::parse(member);
    if (!path || is_in_scope(scope_, member)) return Nodes{nullptr, nullptr};
    auto there = live_.find(*path);
    if (!there) return fail(there.error());
    auto wanted = target_.find(*path);
    if (!wanted) return fail(wanted.error());
    return Nodes{*there, *wanted};
  }

  void keep(const std::string& source, const Members& members) {
    const auto group = live_.links().find(source);
    if (group) kept_.insert(*group);
    for (const auto& member : members) {
      const auto delta = deltas_.find(member);
      if (delta == deltas_.end()) continue;
      if (member == source || (group && live_.links().find(member) == group)) delta->second->content = false;
    }
  }

  bool stays(const std::string& path) const {
    const auto delta = deltas_.find(path);
    return delta == deltas_.end() || !delta->second->before || delta->second->keeps_entry();
  }

  Tree& live_;
  Tree& target_;
  const std::vector<RelPath>& scope_;
  Work& work_;
  const PathChanges changes_;
  std::unordered_map<std::string_view, Delta*> deltas_;
  std::set<std::uint32_t> outside_;  // groups of the live tree with a name outside of the scope
  std::set<std::uint32_t> kept_;     // those whose file goes on for a group of the target
};

}  // namespace

Result<void> keep_links(Tree& live, Tree& target, const std::vector<RelPath>& scope, Work& work) {
  if (live.links().empty() && target.links().empty()) return {};
  LinkKeeper keeper(live, target, scope, work);
  if (auto chosen = keeper.choose(); !chosen) return chosen;
  keeper.find_other_names();
  return {};
}

}  // namespace okcvm::snapshots
