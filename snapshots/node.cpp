#include "snapshots/node.h"

#include <sys/stat.h>

#include <algorithm>

namespace okcvm::snapshots {
namespace {

auto position(const std::vector<std::unique_ptr<Node>>& children, std::string_view name) {
  return std::lower_bound(
      children.begin(), children.end(), name,
      [](const std::unique_ptr<Node>& node, std::string_view wanted) { return node->name < wanted; });
}

}  // namespace

bool operator==(const Attributes& a, const Attributes& b) {
  return a.mode == b.mode && a.uid == b.uid && a.gid == b.gid && a.modified.tv_sec == b.modified.tv_sec &&
         a.modified.tv_nsec == b.modified.tv_nsec && a.xattrs == b.xattrs;
}

Node* Node::child(std::string_view child_name) const {
  const auto at = position(children, child_name);
  return at != children.end() && (*at)->name == child_name ? at->get() : nullptr;
}

Node& Node::add_child(std::unique_ptr<Node> node) {
  node->parent = this;
  const auto at = position(children, node->name);
  return **children.insert(at, std::move(node));
}

std::unique_ptr<Node> Node::take_child(std::string_view child_name) {
  const auto at = position(children, child_name);
  if (at == children.end() || (*at)->name != child_name) return nullptr;
  auto owner = children.begin() + (at - children.begin());
  std::unique_ptr<Node> node = std::move(*owner);
  children.erase(owner);
  node->parent = nullptr;
  return node;
}

void Node::touch() {
  for (Node* node = this; node; node = node->parent) node->stored = false;
}

void Node::mark(std::uint8_t bits) {
  marks |= bits;
  for (Node* node = parent; node && !(node->marks & kMarkBelow); node = node->parent)
    node->marks |= kMarkBelow;
}

std::string Node::path() const {
  if (!parent) return name;
  std::string text = parent->path();
  if (!text.empty()) text += '/';
  return text += name;
}

mode_t full_mode(const Node& node) {
  const mode_t type = node.is_directory() ? S_IFDIR : node.type == NodeType::kLink ? S_IFLNK : S_IFREG;
  return type | node.attributes.mode;
}

std::unique_ptr<Node> copy_of(const Node& node, Extent extent) {
  auto copy = std::make_unique<Node>();
  copy->name = node.name;
  copy->type = node.type;
  copy->sparse = node.sparse;
  copy->size = node.size;
  copy->content = node.content;
  copy->attributes = node.attributes;
  if (!node.is_directory()) return copy;
  const bool refers = node.stored && extent == Extent::kWithAllBelow;
  copy->stored = refers;
  copy->loaded = !refers;
  copy->tree = refers ? node.tree : Oid{};
  copy->meta = refers ? node.meta : Oid{};
  if (!refers && extent == Extent::kWithAllBelow)
    for (const auto& child : node.children) copy->add_child(copy_of(*child, extent));
  return copy;
}

std::unique_ptr<Node> make_root() {
  auto root = std::make_unique<Node>();
  root->type = NodeType::kDirectory;
  root->loaded = true;
  return root;
}

}  // namespace okcvm::snapshots
