#include "snapshots/tree.h"

#include <algorithm>
#include <unordered_map>

#include "snapshots/folder_record.h"
#include "snapshots/git_tree.h"
#include "snapshots/names.h"
#include "snapshots/path_text.h"

namespace okcvm::snapshots {
namespace {

Error damaged() {
  return Error::of(Code::kCorrupt, "a folder of a snapshot is damaged; `okcvm verify` lists what is lost");
}

Result<std::vector<GitEntry>> read_tree(const Repository& repository, const Oid& oid) {
  if (oid.is_none()) return std::vector<GitEntry>();
  auto bytes = repository.read(oid, ObjectKind::kTree);
  if (!bytes) return fail(bytes.error());
  return parse_git_tree(*bytes);
}

/// Gives files and links the names of their bytes.
bool join_contents(std::vector<std::unique_ptr<Node>>& nodes, const std::vector<GitEntry>& entries) {
  std::unordered_map<std::string_view, const GitEntry*> by_name;
  std::unordered_map<std::string, const GitEntry*> by_meaning;
  auto next = entries.begin();
  for (auto& node : nodes) {
    const std::string name = to_git_name(node->name, node->type == NodeType::kLink);
    while (next != entries.end() && next->mode == kGitDirectory) ++next;
    // Both lists have the same order as long as no name is encoded.
    const GitEntry* entry = next != entries.end() && next->name == name ? &*next++ : nullptr;
    if (!entry) {
      if (by_name.empty())
        for (const auto& candidate : entries) by_name.emplace(candidate.name, &candidate);
      if (const auto found = by_name.find(name); found != by_name.end()) entry = found->second;
    }
    if (!entry) {  // stored when another set of names was encoded
      if (by_meaning.empty())
        for (const auto& candidate : entries)
          if (auto meaning = from_git_name(candidate.name)) by_meaning.emplace(*meaning, &candidate);
      const auto found = by_meaning.find(node->name);
      if (found == by_meaning.end()) return false;
      entry = found->second;
    }
    if (entry->mode == kGitDirectory) return false;
    node->content = entry->oid;
  }
  return true;
}

}  // namespace

Result<std::unique_ptr<Tree>> Tree::open(const Repository& repository, const TreeNames& names,
                                         const Totals& totals) {
  auto tree = std::make_unique<Tree>(&repository);
  tree->totals_ = totals;
  tree->root_->tree = names.workspace;
  tree->root_->meta = names.meta;
  tree->root_->stored = !names.meta.is_none();
  tree->root_->loaded = names.meta.is_none();
  struct List {
    const Oid& oid;
    PathTable& table;
  };
  tree->links_oid_ = names.links;
  tree->left_out_oid_ = names.left_out;
  for (const auto& [oid, table] : {List{names.links, tree->links_}, List{names.left_out, tree->left_out_}}) {
    if (oid.is_none()) continue;
    auto bytes = repository.read(oid, ObjectKind::kBlob);
    if (!bytes) return fail(bytes.error());
    auto parsed = PathTable::parse(*bytes);
    if (!parsed) return fail(parsed.error());
    table = std::move(*parsed);
  }
  return tree;
}

Result<void> Tree::load(Node& directory) const {
  if (directory.loaded || !directory.is_directory()) return {};
  std::size_t depth = 0;
  for (const Node* above = directory.parent; above; above = above->parent) ++depth;
  if (depth > kMostComponents) return fail(damaged());
  auto meta = read_tree(*repository_, directory.meta);
  if (!meta) return fail(meta.error());
  auto shown = read_tree(*repository_, directory.tree);
  if (!shown) return fail(shown.error());

  FolderRecord record;
  for (const auto& entry : *meta) {
    if (entry.name != kFolderRecord || entry.mode == kGitDirectory) continue;
    auto text = repository_->read(entry.oid, ObjectKind::kBlob);
    if (!text) return fail(text.error());
    auto parsed = parse_folder_record(*text);
    if (!parsed) return fail(parsed.error());
    record = std::move(*parsed);
  }
  if (!join_contents(record.entries, *shown)) return fail(damaged());

  std::unordered_map<std::string_view, const GitEntry*> visible;
  for (const auto& entry : *shown)
    if (entry.mode == kGitDirectory) visible.emplace(entry.name, &entry);
  for (const auto& entry : *meta) {
    if (entry.mode != kGitDirectory) continue;
    auto name = from_git_name(entry.name);
    for (const auto& [git_name, long_name] : record.long_names)
      if (!name && git_name == entry.name) name = long_name;
    if (!name || !Name::parse(*name)) return fail(damaged());
    auto node = std::make_unique<Node>();
    node->name = *name;
    node->type = NodeType::kDirectory;
    node->stored = true;
    node->meta = entry.oid;
    if (const auto found = visible.find(entry.name); found != visible.end()) node->tree = found->second->oid;
    record.entries.push_back(std::move(node));
  }
  decltype(directory.children) children;
  for (auto& child : record.entries) {
    child->parent = &directory;
    child->known = true;
    if (!children.insert(std::move(child)).second) return fail(damaged());  // a name twice
  }
  directory.children = std::move(children);
  directory.attributes = std::move(record.attributes);
  directory.loaded = true;
  return {};
}

Result<Node*> Tree::find(const RelPath& path) const {
  Node* node = root_.get();
  for (const auto part : path.components()) {
    if (!node->is_directory()) return nullptr;
    if (auto loaded = load(*node); !loaded) return fail(loaded.error());
    node = node->child(part);
    if (!node) return nullptr;
  }
  return node;
}

Result<Totals> Tree::count(Node& node) const {
  Totals sum;
  if (node.type == NodeType::kFile || node.type == NodeType::kLink) {
    sum.files = 1;
    sum.bytes = node.type == NodeType::kFile ? node.size : 0;
  }
  if (!node.is_directory()) return sum;
  sum.directories = node.parent ? 1 : 0;
  if (auto loaded = load(node); !loaded) return fail(loaded.error());
  for (const auto& child : node.children) {
    auto below = count(*child);
    if (!below) return below;
    sum.files += below->files;
    sum.directories += below->directories;
    sum.bytes += below->bytes;
  }
  return sum;
}

Result<void> Tree::forget(Node& node) {
  auto sum = count(node);
  if (!sum) return fail(sum.error());
  totals_.files -= sum->files;
  totals_.directories -= sum->directories;
  totals_.bytes -= sum->bytes;
  const std::string path = node.path();
  links_.remove_tree(path);
  left_out_.remove_tree(path);
  note_lost_origins(node);
  return {};
}

void Tree::note_lost_origins(const Node& top) {
  std::vector<const Node*> nodes{&top};
  while (!nodes.empty()) {
    const Node& node = *nodes.back();
    nodes.pop_back();
    if (node.known && !node.origin.empty()) lost_origins_.push_back(node.origin);
    for (const auto& child : node.children) nodes.push_back(child.get());
  }
}

Tree::Moving Tree::take(Node& node) {
  std::string from = node.path();
  node.parent->touch();
  return {node.parent->take_child(node.name), std::move(from)};
}

std::size_t Tree::put(Moving moving, Node& place, const RelPath& to) {
  moving.node->name = to.leaf();
  place.add_child(std::move(moving.node));
  place.touch();
  return links_.move_tree(moving.from, to.text()) + left_out_.move_tree(moving.from, to.text());
}

Result<void> Tree::become(Node& node, NodeType type) {
  if (node.type == type) return {};
  if (auto forgotten = forget(node); !forgotten) return forgotten;
  Node fresh;
  fresh.name = std::move(node.name);
  fresh.parent = node.parent;
  fresh.marks = node.marks;
  fresh.type = type;
  node = std::move(fresh);
  node.touch();
  if (type == NodeType::kDirectory) {
    node.loaded = true;
    node.marks |= kMarkWhole;
    ++totals_.directories;
  } else if (type != NodeType::kUnknown) {
    ++totals_.files;
  }
  return {};
}

Result<void> Tree::write_directory(Node& directory, Batch& batch) {
  if (directory.stored) return {};
  if (auto loaded = load(directory); !loaded) return loaded;
  std::vector<GitEntry> shown, meta;
  std::vector<std::pair<std::string, std::string>> long_names;
  for (const auto& child : directory.children) {
    const std::string name = to_git_name(child->name, child->type == NodeType::kLink);
    if (child->is_directory()) {
      if (auto written = write_directory(*child, batch); !written) return written;
      if (!child->tree.is_none()) shown.push_back({kGitDirectory, name, child->tree});
      meta.push_back({kGitDirectory, name, child->meta});
      if (!from_git_name(name)) long_names.emplace_back(name, child->name);
    } else {
      if (child->content.is_none())
        return fail(Code::kInternal, "an entry of the session was not read, so no snapshot was taken",
                    child->path());
      const bool runs = child->attributes.mode & 0100;
      const unsigned mode = child->type == NodeType::kLink ? kGitLink : runs ? kGitProgram : kGitFile;
      shown.push_back({mode, name, child->content});
    }
  }
  directory.tree = Oid{};
  if (!shown.empty()) {
    auto oid = batch.add(ObjectKind::kTree, format_git_tree(shown));
    if (!oid) return fail(oid.error());
    directory.tree = *oid;
  }
  if (&directory != root_.get()) {
    auto record = batch.add(ObjectKind::kBlob, format_folder_record(directory, long_names));
    if (!record) return fail(record.error());
    meta.push_back({kGitFile, std::string(kFolderRecord), *record});
  }
  auto oid = batch.add(ObjectKind::kTree, format_git_tree(meta));
  if (!oid) return fail(oid.error());
  directory.meta = *oid;
  directory.stored = true;
  return {};
}

Result<TreeNames> Tree::write(Batch& batch) {
  if (auto written = write_directory(*root_, batch); !written) return fail(written.error());
  if (links_.has_changed()) links_.normalize();
  struct List {
    PathTable& table;
    Oid& oid;
  };
  for (const auto& [table, oid] : {List{links_, links_oid_}, List{left_out_, left_out_oid_}}) {
    if (!table.has_changed()) continue;
    auto added = table.empty() ? Result<Oid>(Oid{}) : batch.add(ObjectKind::kBlob, table.format());
    if (!added) return fail(added.error());
    oid = *added;
    table.mark_stored();
  }
  return TreeNames{root_->tree, root_->meta, links_oid_, left_out_oid_};
}

std::size_t Tree::settle(Node& node) {
  node.marks = 0;
  node.known = true;
  node.origin.clear();
  std::size_t count = 1;
  for (const auto& child : node.children) count += settle(*child);
  return count;
}

/// Answers how many nodes are left.
std::size_t Tree::unload_lowest(Node& directory) {
  std::size_t count = 1;
  for (const auto& child : directory.children) {
    const bool is_lowest =
        std::none_of(child->children.begin(), child->children.end(),
                     [](const auto& inside) { return inside->is_directory() && inside->loaded; });
    if (child->is_directory() && child->loaded && child->stored && is_lowest) {
      child->loaded = false;
      child->children.clear();
    }
    count += unload_lowest(*child);
  }
  return count;
}

bool Tree::settle(std::size_t most) {
  return settle(*root_) <= most || unload_lowest(*root_) <= most;
}

}  // namespace okcvm::snapshots
