#include "snapshots/node.h"

#include <sys/stat.h>

namespace okcvm::snapshots {

bool ByName::operator()(const std::unique_ptr<Node>& a, const std::unique_ptr<Node>& b) const {
  return a->name < b->name;
}
bool ByName::operator()(const std::unique_ptr<Node>& a, std::string_view name) const {
  return a->name < name;
}
bool ByName::operator()(std::string_view name, const std::unique_ptr<Node>& b) const {
  return name < b->name;
}

bool operator==(const Attributes& a, const Attributes& b) {
  return a.mode == b.mode && a.uid == b.uid && a.gid == b.gid && a.modified.tv_sec == b.modified.tv_sec &&
         a.modified.tv_nsec == b.modified.tv_nsec && a.xattrs == b.xattrs;
}

Node* Node::child(std::string_view child_name) const {
  const auto at = children.find(child_name);
  return at != children.end() ? at->get() : nullptr;
}

Node& Node::add_child(std::unique_ptr<Node> node) {
  node->parent = this;
  return **children.insert(std::move(node)).first;
}

std::unique_ptr<Node> Node::take_child(std::string_view child_name) {
  const auto at = children.find(child_name);
  if (at == children.end()) return nullptr;
  std::unique_ptr<Node> node = std::move(children.extract(at).value());
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

struct stat status_of(const Node& node) {
  struct stat status {};
  status.st_mode = full_mode(node);
  status.st_uid = node.attributes.uid;
  status.st_gid = node.attributes.gid;
  return status;
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
