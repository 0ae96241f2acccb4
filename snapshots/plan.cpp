#include "snapshots/plan.h"

#include <set>

#include "policy/zones.h"
#include "snapshots/replay.h"

namespace okcvm::snapshots {
namespace {

/// A copy that is loaded again when it is looked into.
std::unique_ptr<Node> copy_of(const Node& node, bool shallow) {
  auto copy = std::make_unique<Node>();
  copy->name = node.name;
  copy->type = node.type;
  copy->sparse = node.sparse;
  copy->size = node.size;
  copy->content = node.content;
  copy->attributes = node.attributes;
  if (!node.is_directory()) return copy;
  const bool refers = node.stored && !shallow;
  copy->stored = refers;
  copy->loaded = !refers;
  copy->tree = refers ? node.tree : Oid{};
  copy->meta = refers ? node.meta : Oid{};
  if (!refers && !shallow)
    for (const auto& child : node.children) copy->add_child(copy_of(*child, false));
  return copy;
}

/// Zones that the snapshot does not know stay, empty.
Result<void> keep_zones(Tree& live, Tree& target) {
  for (Tree* tree : {&live, &target})
    if (auto loaded = tree->load(tree->root()); !loaded) return loaded;
  for (const auto& zone : live.root().children) {
    if (!zone->is_directory() || target.root().child(zone->name)) continue;
    if (auto loaded = live.load(*zone); !loaded) return loaded;
    target.root().add_child(copy_of(*zone, true)).touch();
    ++target.totals().directories;
  }
  return {};
}

/// Directories above `path` that the workspace lacks come first, each without anything else in it.
Result<void> make_way(Tree& live, Tree& target, const RelPath& path, Plan& plan) {
  const auto parts = path.components();
  Node* there = &live.root();
  Node* wanted = &target.root();
  std::string text;
  for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
    if (auto loaded = live.load(*there); !loaded) return loaded;
    if (auto loaded = target.load(*wanted); !loaded) return loaded;
    wanted = wanted->child(parts[i]);
    text.append(text.empty() ? "" : "/").append(parts[i]);
    if (Node* next = there->child(parts[i]); next && next->is_directory()) {
      there = next;
      continue;
    }
    if (auto loaded = target.load(*wanted); !loaded) return loaded;
    Delta delta{text, nullptr, wanted, true, false, true, false};
    if (Node* in_the_way = there->child(parts[i])) {
      if (auto forgotten = live.forget(*in_the_way); !forgotten) return forgotten;
      plan.displaced.push_back(there->take_child(parts[i]));
      delta.before = plan.displaced.back().get();
      delta.content = true;
    }
    plan.deltas.push_back(std::move(delta));
    there = &there->add_child(copy_of(*wanted, true));
    there->touch();
    ++live.totals().directories;
  }
  return {};
}

/// Attributes are of all names of a file: one that also has names elsewhere is replaced, as for other bytes.
void part_from_outside(const PathTable& links, Plan& plan) {
  std::set<std::uint32_t> outside;
  for (const auto& [path, group] : links.numbers())
    if (!is_in_scope(plan.scope, path)) outside.insert(group);
  for (auto& delta : plan.deltas) {
    const auto group = links.find(delta.path);
    if (delta.before && delta.after && group && outside.count(*group)) delta.content = true;
  }
}

/// Hard links of the snapshot among what was asked for; those outside stay as they were.
void graft_links(const Plan& plan, Tree& target, const std::map<std::uint32_t, std::string>& link_sources,
                 Tree& former) {
  for (const auto& path : plan.scope) former.links().remove_tree(path.text());
  for (const auto& [number, members] : target.links().groups()) {
    std::uint32_t group = former.links().unused_number();
    if (const auto source = link_sources.find(number); source != link_sources.end()) {
      group = former.links().find(source->second).value_or(group);
      former.links().set(source->second, group);
    }
    for (const auto& member : members)
      if (is_in_scope(plan.scope, member)) former.links().set(member, group);
  }
}

}  // namespace

std::vector<RelPath> Plan::paths() const {
  std::vector<RelPath> all;
  for (const auto& delta : deltas)
    if (auto path = RelPath::parse(delta.path)) all.push_back(std::move(*path));
  return all;
}

std::vector<RelPath> Plan::leaving() const {
  std::vector<RelPath> all;
  for (const auto& delta : deltas)
    if (delta.before && !delta.keeps_entry())
      if (auto path = RelPath::parse(delta.path)) all.push_back(std::move(*path));
  return all;
}

Result<Plan> make_plan(Tree& live, Tree& target, const std::vector<RelPath>& paths) {
  Plan plan;
  plan.scope = normalize_scope(paths);
  for (const auto& path : plan.scope)
    if (!path.is_root() && !is_snapshotted(path))
      return fail(Code::kInvalidRequest, "snapshots hold uploads, outputs and temp only", path.text());
  if (auto kept = keep_zones(live, target); !kept) return fail(kept.error());
  for (const auto& path : plan.scope) {
    auto there = live.find(path);
    if (!there) return fail(there.error());
    auto wanted = target.find(path);
    if (!wanted) return fail(wanted.error());
    const bool is_always_there = path.text() == path.top();  // a zone, which may not be on disk yet
    if (!*there && !*wanted && !is_always_there)
      return fail(Code::kNotFound, "neither the snapshot nor the workspace has this path", path.text());
    if (!*wanted) continue;
    if (auto made = make_way(live, target, path, plan); !made) return fail(made.error());
  }
  auto deltas = compare(live, target, plan.scope);
  if (!deltas) return fail(deltas.error());
  for (auto& delta : *deltas) plan.deltas.push_back(std::move(delta));
  part_from_outside(live.links(), plan);
  return plan;
}

Result<void> graft(const Plan& plan, Tree& target, const std::map<std::uint32_t, std::string>& link_sources,
                   Tree& former) {
  for (const auto& delta : plan.deltas) {
    if (!delta.top) continue;
    const auto path = RelPath::parse(delta.path);
    if (!path || path->is_root()) continue;
    auto place = former.find(path->parent());
    if (!place) return fail(place.error());
    if (!*place) return fail(Code::kInternal, "a restored path has no directory", delta.path);
    Node& directory = **place;
    if (auto loaded = former.load(directory); !loaded) return loaded;
    Node* old = directory.child(path->leaf());
    if (delta.keeps_entry() && old) {
      if (auto loaded = former.load(*old); !loaded) return loaded;
      old->attributes = delta.after->attributes;
      old->touch();
      continue;
    }
    if (old) {
      if (auto forgotten = former.forget(*old); !forgotten) return forgotten;
      directory.take_child(path->leaf());
    }
    directory.touch();
    if (!delta.after) continue;
    former.left_out().remove(delta.path);
    Node& added = directory.add_child(copy_of(*delta.after, delta.shallow));
    auto counted = former.count(added);
    if (!counted) return fail(counted.error());
    former.totals().files += counted->files;
    former.totals().directories += counted->directories;
    former.totals().bytes += counted->bytes;
  }
  graft_links(plan, target, link_sources, former);
  return {};
}

}  // namespace okcvm::snapshots
