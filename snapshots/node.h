#pragma once

#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "policy/rel_path.h"
#include "snapshots/oid.h"
#include "snapshots/xattrs.h"

namespace okcvm::snapshots {

enum class NodeType : std::uint8_t {
  kUnknown,  // something happened to this name: what is there, if anything, is not known yet
  kFile,
  kDirectory,
  kLink,
};

/// What git does not keep of an entry.
struct Attributes {
  mode_t mode = 0;  // permission bits, 07777
  uid_t uid = 0;
  gid_t gid = 0;
  timespec modified{};
  Xattrs xattrs;
};

bool operator==(const Attributes& a, const Attributes& b);

/// What a change set says about a node. Bits of `Node::marks`.
enum Mark : std::uint8_t {
  kMarkEntry = 1,       // look at what stands there now
  kMarkContent = 2,     // read its bytes again
  kMarkAttributes = 4,  // stat it again
  kMarkWhole = 8,       // a directory to be read without trust in what is known of it
  kMarkBelow = 16,      // some node below has marks
};

struct Node;

/// Orders nodes by name, and finds them by one.
struct ByName {
  using is_transparent = void;
  bool operator()(const std::unique_ptr<Node>& a, const std::unique_ptr<Node>& b) const;
  bool operator()(const std::unique_ptr<Node>& a, std::string_view name) const;
  bool operator()(std::string_view name, const std::unique_ptr<Node>& b) const;
};

/// One entry of a snapshot, or of the workspace while one is taken. A directory is loaded when it is first
/// looked into; until then its two tree names stand for all that is below it.
struct Node {
  std::string name;
  Node* parent = nullptr;
  NodeType type = NodeType::kUnknown;
  std::uint8_t marks = 0;
  bool sparse = false;  // a file with holes
  bool loaded = false;  // a directory whose attributes and children are here
  bool stored = false;  // a directory that `tree` and `meta` describe as it is
  bool known =
      false;  // it is in the snapshot that the tree was opened from, here or, once moved, at `origin`
  std::string origin;

  Attributes attributes;
  std::uint64_t size = 0;
  Oid content;  // of a file or link

  Oid tree;  // below workspace/; none when nothing in it is a file or link
  Oid meta;  // below metadata/tree/
  std::set<std::unique_ptr<Node>, ByName> children;

  bool is_directory() const { return type == NodeType::kDirectory; }
  Node* child(std::string_view child_name) const;
  Node& add_child(std::unique_ptr<Node> node);
  std::unique_ptr<Node> take_child(std::string_view child_name);
  /// Names this and every directory above it as differing from what is stored.
  void touch();
  /// Sets marks and, in every directory above, kMarkBelow.
  void mark(std::uint8_t bits);
  /// From the session root.
  std::string path() const;
};

/// With the bits of the type, as stat(2) tells it.
mode_t full_mode(const Node& node);
/// Of that only type, mode and owner.
struct stat status_of(const Node& node);

/// How much of a directory is meant; of anything else, all.
enum class Extent : std::uint8_t { kAlone, kWithAllBelow };

/// A copy that is loaded again when it is looked into.
std::unique_ptr<Node> copy_of(const Node& node, Extent extent);

/// The root of an empty tree.
std::unique_ptr<Node> make_root();

}  // namespace okcvm::snapshots
