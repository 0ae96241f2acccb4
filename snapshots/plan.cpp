#include "snapshots/plan.h"

#include <unistd.h>

#include <iterator>
#include <set>

#include "policy/zones.h"
#include "snapshots/kept_links.h"
#include "snapshots/path_text.h"
#include "snapshots/replay.h"

namespace okcvm::snapshots {
namespace {

/// Zones that the snapshot does not know stay, as they were before they were first written.
Result<void> keep_zones(Tree& live, Tree& target, const UnwrittenZone& unwritten) {
  for (Tree* tree : {&live, &target})
    if (auto loaded = tree->load(tree->root()); !loaded) return loaded;
  for (const auto& zone : live.root().children) {
    if (!zone->is_directory() || target.root().child(zone->name)) continue;
    if (auto loaded = live.load(*zone); !loaded) return loaded;
    Node& kept = target.root().add_child(copy_of(*zone, Extent::kAlone));
    kept.attributes = {kZoneMode, unwritten.uid, unwritten.gid, unwritten.modified, {}};
    kept.touch();
    ++target.totals().directories;
  }
  return {};
}

/// Attributes are of all names of a file: one that also has names elsewhere is replaced, as for other bytes.
void part_from_outside(const PathTable& links, const std::vector<RelPath>& scope,
                       std::vector<Delta>& deltas) {
  std::set<std::uint32_t> outside;
  for (const auto& [path, group] : links.numbers())
    if (!is_in_scope(scope, path)) outside.insert(group);
  for (auto& delta : deltas) {
    const auto group = links.find(delta.path);
    if (delta.before && delta.after && group && outside.count(*group)) delta.content = true;
  }
}

/// Who names a path searches the folders that it lies in. One that is there stays as it is, and may be more
/// open, or more closed, than that of the snapshot: he needs a way through both.
Result<void> check_way(const Tree& tree, const RelPath& path, const Caller& caller) {
  for (RelPath folder = path.parent(); !folder.is_root(); folder = folder.parent()) {
    auto node = tree.find(folder);
    if (!node) return fail(node.error());
    if (!*node || !(*node)->is_directory()) continue;
    if (auto loaded = tree.load(**node); !loaded) return fail(loaded.error());
    if (!may(caller, status_of(**node), X_OK))
      return fail(
          Code::kForbidden,
          "a directory that this path lies in may not be searched by this user, as it is or as it was: "
          "restore that directory, or everything",
          path.text());
  }
  return {};
}

/// Hard links of the snapshot among what was asked for; those outside stay as they were.
void graft_links(const Plan& plan, Tree& target, Tree& former) {
  for (const auto& path : plan.scope) former.links().remove_tree(path.text());
  for (const auto& [number, members] : target.links().groups()) {
    std::uint32_t group = former.links().unused_number();
    const auto source = plan.work.link_sources.find(number);
    if (source != plan.work.link_sources.end() && !is_in_scope(plan.scope, source->second)) {
      group = former.links().find(source->second).value_or(group);
      former.links().set(source->second, group);
    }
    for (const auto& member : members)
      if (is_in_scope(plan.scope, member)) former.links().set(member, group);
  }
}

/// Paths that came as text.
class Paths final {
 public:
  void add(const std::string& text) {
    if (auto path = RelPath::parse(text)) paths_.push_back(std::move(*path));
  }
  std::vector<RelPath> take(std::vector<RelPath> more = {}) {
    paths_.insert(paths_.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
    return std::move(paths_);
  }

 private:
  std::vector<RelPath> paths_;
};

}  // namespace

std::vector<RelPath> Plan::paths() const {
  const PathChanges changes(work.names);
  Paths all;
  for (const auto& [from, entry, round] : work.names)
    if (!from.empty()) all.add(below(changes.after(round, parent_of(from)), leaf_of(from)));
  for (const auto& step : work.names) all.add(step.entry.path);
  for (const auto& delta : work.rest)
    if (delta.top || delta.linked) all.add(delta.path);
  return all.take();
}

std::vector<RelPath> Plan::leaving() const {
  const PathChanges changes(work.names);
  Paths before, during;
  const auto add = [&](const std::string& was, const std::string& is) {
    before.add(was);
    if (is != was) during.add(is);
  };
  for (const auto& [from, entry, round] : work.names) {
    if (!from.empty())
      add(changes.before(from, round), below(changes.after(round, parent_of(from)), leaf_of(from)));
    else if (entry.before)
      before.add(entry.path);
  }
  for (const auto& delta : work.rest)
    if (delta.before && !delta.keeps_entry()) add(changes.before(delta.path), delta.path);
  return before.take(during.take());
}

std::vector<RelPath> Plan::renamed(const std::vector<RelPath>& paths) const {
  const PathChanges changes(work.names);
  Paths all;
  for (const RelPath& path : paths) {
    auto now = changes.after(0, path.text());
    if (const auto other = work.other_names.find(now); other != work.other_names.end()) now = other->second;
    if (now != path.text()) all.add(now);
  }
  return all.take();
}

Result<Plan> make_plan(Tree& live, Tree& target, const std::vector<RelPath>& paths, const Caller& caller,
                       const UnwrittenZone& unwritten) {
  Plan plan;
  plan.scope = normalize_scope(paths);
  for (const auto& path : plan.scope)
    if (!path.is_root() && !is_snapshotted(path))
      return fail(Code::kInvalidRequest, "snapshots hold uploads, outputs and temp only", path.text());
  if (auto kept = keep_zones(live, target, unwritten); !kept) return fail(kept.error());
  for (const auto& path : plan.scope) {
    for (const Tree* tree : {&live, &target})
      if (auto reached = check_way(*tree, path, caller); !reached) return fail(reached.error());
    auto there = live.find(path);
    if (!there) return fail(there.error());
    auto wanted = target.find(path);
    if (!wanted) return fail(wanted.error());
    const bool is_always_there = path.text() == path.top();  // a zone, which may not be on disk yet
    if (!*there && !*wanted && !is_always_there)
      return fail(Code::kNotFound, "neither the snapshot nor the workspace has this path", path.text());
    if (!*wanted) continue;
    if (auto place = make_way(live, target, path, plan.way); !place) return fail(place.error());
  }
  plan.deltas = plan.way.made;
  auto deltas = compare(live, target, plan.scope);
  if (!deltas) return fail(deltas.error());
  for (auto& delta : *deltas) plan.deltas.push_back(std::move(delta));
  part_from_outside(live.links(), plan.scope, plan.deltas);
  return plan;
}

Result<void> arrange(Plan& plan, Tree& live, Tree& target) {
  Work work;
  for (const auto& made : plan.way.made) work.names.push_back({{}, made});
  for (const auto& delta : plan.deltas)
    if (delta.extent == Extent::kWithAllBelow) work.rest.push_back(delta);
  auto arranged = follow_renames(live, target, plan.scope, std::move(work));
  if (!arranged) return fail(arranged.error());
  plan.work = std::move(*arranged);
  part_from_outside(live.links(), plan.scope, plan.work.rest);
  return keep_links(live, target, plan.scope, plan.work);
}

Result<void> graft(const Plan& plan, Tree& target, Tree& former) {
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
    Node& added = directory.add_child(copy_of(*delta.after, delta.extent));
    auto counted = former.count(added);
    if (!counted) return fail(counted.error());
    former.totals().files += counted->files;
    former.totals().directories += counted->directories;
    former.totals().bytes += counted->bytes;
  }
  graft_links(plan, target, former);
  return {};
}

}  // namespace okcvm::snapshots
