// The node table against a model of it that looks at every node each time.

#include "fusefs/node_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <string>

#include "tests/support/scratch.h"

namespace okcvm::fusefs {
namespace {

constexpr unsigned kSeeds = 4;
constexpr int kChecks = 30;
constexpr int kStepsPerCheck = 100;
constexpr std::uint64_t kInodes = 60;  // so few that their numbers are used again and again
constexpr std::array kZones{Zone::kUploads, Zone::kOutputs, Zone::kTemp, Zone::kWorkdir};

std::vector<NodeId> ids_of(const std::vector<Node>& nodes) {
  std::vector<NodeId> ids;
  for (const Node& node : nodes) ids.push_back(node.id);
  return ids;
}

std::vector<NodeId> sorted(std::vector<NodeId> ids) {
  std::sort(ids.begin(), ids.end());
  return ids;
}

/// What a table holds, by its documentation alone.
class Model {
 public:
  struct Row {
    Node node;
    std::uint64_t references = 0;
    bool has_inode = true;  // a dead one may have it still, where the host carried it off
    bool is_bound = false;
  };

  Row* live(const InodeKey& key) {
    for (auto& [id, row] : rows)
      if (row.node.key == key && !row.node.dead) return &row;
    return nullptr;
  }
  bool stands_below(const Node& node, NodeId ancestor) const {
    for (NodeId parent = node.parent;; parent = rows.at(parent).node.parent) {
      if (parent == ancestor) return true;
      if (is_fixed(parent)) return ancestor == kRootNode;
      if (!rows.contains(parent)) return false;
    }
  }
  /// But `except` and what stands below it: no directory moves into itself.
  std::vector<Node> directories(NodeId except = {}) const {
    std::vector<Node> all;
    for (const auto zone : kZones) {
      Node top;
      top.id = node_of(zone);
      top.parent = kRootNode;
      top.zone = zone;
      all.push_back(top);
    }
    for (const auto& [id, row] : rows)
      if (row.node.is_directory() && !row.node.dead && id != except && !stands_below(row.node, except))
        all.push_back(row.node);
    return all;
  }
  std::vector<NodeId> below(NodeId ancestor) const {
    std::vector<NodeId> ids;
    for (const auto& [id, row] : rows)
      if (stands_below(row.node, ancestor)) ids.push_back(id);
    return ids;
  }

  std::map<NodeId, Row> rows;
};

class NodeTableTest : public ::testing::TestWithParam<unsigned> {
 protected:
  template <typename Items>
  const auto& one_of(const Items& items) {
    return items[random_() % items.size()];
  }
  const Node& any_node() {
    return std::next(model_.rows.begin(), static_cast<long>(random_() % model_.rows.size()))->second.node;
  }

  /// A file system gives an inode number to another file once the first is gone: then the handle differs.
  void look_up() {
    const Node place = one_of(model_.directories());
    Node found;
    found.parent = place.id;
    found.zone = place.zone;
    found.name = "n" + std::to_string(random_() % 8);
    found.key = {place.zone == Zone::kWorkdir ? kWorkdirVolume : kWorkspaceVolume, 1 + random_() % kInodes};
    const auto* known = model_.live(found.key);
    const bool is_recycled = !known || random_() % 16 == 0;
    if (!is_recycled && (place.id == known->node.id || place.zone != known->node.zone ||
                         model_.stands_below(place, known->node.id)))
      return;
    constexpr std::array<mode_t, 4> kTypes{S_IFDIR, S_IFDIR, S_IFREG, S_IFLNK};
    found.type = is_recycled ? one_of(kTypes) : known->node.type;
    found.handle = is_recycled ? new_handle() : known->node.handle;

    const bool is_carried_off = !is_recycled && found.zone == Zone::kWorkdir && !S_ISREG(found.type) &&
                                known->node.parent != found.parent;
    if (!is_recycled && !is_carried_off) {
      if (const auto id = table_->reference_known(found.key, found.parent, found.name)) {
        ASSERT_EQ(*id, known->node.id);
        note_known(*id, found);
        return;
      }
    }
    const auto referenced = table_->reference(found);
    ASSERT_TRUE(referenced);
    ASSERT_EQ(referenced->made, is_recycled || is_carried_off);
    if (!referenced->made) {
      ASSERT_EQ(referenced->id, known->node.id);
      note_known(referenced->id, found);
      return;
    }
    if (auto* former = model_.live(found.key)) former->node.dead = true;
    ASSERT_FALSE(model_.rows.contains(referenced->id)) << "a number was used twice";
    found.id = referenced->id;
    model_.rows[found.id] = {found, 1};
  }
  Handle new_handle() {
    Handle handle;
    handle.size = sizeof handles_;
    std::memcpy(handle.bytes.data(), &++handles_, sizeof handles_);
    return handle;
  }
  void note_known(NodeId id, const Node& found) {
    auto& row = model_.rows.at(id);
    ++row.references;
    row.node.parent = found.parent;
    row.node.name = found.name;
  }

  void forget() {
    auto& row = model_.rows.at(any_node().id);
    const NodeId id = row.node.id;
    const std::uint64_t count = 1 + random_() % row.references;
    row.references -= count;
    const auto forgotten = table_->forget(id, count);
    ASSERT_EQ(forgotten.gone, row.references == 0);
    if (!forgotten.gone) return;
    ASSERT_EQ(forgotten.key, row.node.key);
    model_.rows.erase(id);
  }

  void move() {
    const Node node = any_node();
    if (node.dead) return;
    const Node to = one_of(model_.directories(node.id));
    if (rule_of(to.zone).group != rule_of(node.zone).group) return;
    table_->moved(node.key, to.id, to.zone, "moved");
    auto& row = model_.rows.at(node.id);
    row.node.parent = to.id;
    row.node.name = "moved";
    row.node.zone = to.zone;
    if (!node.is_directory()) return;
    for (const NodeId id : model_.below(node.id)) model_.rows.at(id).node.zone = to.zone;
  }

  void unlink() {
    const Node node = any_node();
    if (node.dead) return;
    const bool last = random_() % 2;
    table_->unlinked(node.key, node.parent, node.name, last);
    auto& row = model_.rows.at(node.id);
    row.node.name.clear();
    row.node.dead = last;
    row.has_inode = !last;
  }

  void give_name() {
    const Node node = any_node();
    if (!node.dead || node.is_directory() || model_.live(node.key)) return;
    const Node to = one_of(model_.directories());
    table_->named(node.id, to.id, to.zone, "named");
    auto& row = model_.rows.at(node.id);
    row.has_inode = true;
    row.node.parent = to.id;
    row.node.zone = to.zone;
    row.node.name = "named";
    row.node.dead = false;
  }

  void part() {
    const Node node = any_node();
    table_->part_with(node.id);
    model_.rows.at(node.id).node.dead = true;
  }

  /// The next daemon makes its lists anew from what is in the mapping.
  void adopt() {
    auto next = NodeTable::open(scratch_ / "nodes", Start::kTakeOver);
    ASSERT_TRUE(next);
    table_ = std::move(*next);
    for (auto& [id, row] : model_.rows) {
      row.has_inode = true;  // it cannot tell for which dead ones it is so
      row.is_bound = S_ISLNK(row.node.type);
    }
  }

  void bind_to_place() {
    const Node node = any_node();
    if (!S_ISLNK(node.type)) return;
    table_->set_bound_to_place(node.id);
    model_.rows.at(node.id).is_bound = true;
  }

  void step() {
    const auto dice = random_() % 100;
    if (dice < 50 || model_.rows.empty()) return look_up();
    if (dice < 68) return forget();
    if (dice < 78) return move();
    if (dice < 80) return bind_to_place();
    if (dice < 88) return unlink();
    if (dice < 92) return give_name();
    if (dice < 96) return part();
    if (dice < 99) return table_->distrust_all();
    adopt();
  }

  void compare(NodeId top) const {
    const auto all = [](const Node&) { return true; };
    const auto below = model_.below(top);
    EXPECT_EQ(sorted(ids_of(table_->descendants(top, all))), below);
    std::vector<NodeId> links, children;
    const auto add_link = [&](NodeId id) {
      if (model_.rows.at(id).is_bound) links.push_back(id);
    };
    if (model_.rows.contains(top)) add_link(top);
    for (const NodeId id : below) {
      add_link(id);
      EXPECT_TRUE(table_->is_at_or_below(id, {top}));
      if (model_.rows.at(id).node.parent == top) children.push_back(id);
    }
    EXPECT_EQ(sorted(table_->bound_links_from(top)), links);
    EXPECT_EQ(sorted(ids_of(table_->children(top, [](const Node& node) { return !is_fixed(node.id); }))),
              children);
  }

  void check() {
    ASSERT_EQ(table_->size(), model_.rows.size());
    compare(kRootNode);
    for (const auto zone : kZones) compare(node_of(zone));
    std::map<std::pair<VolumeId, std::uint64_t>, std::vector<NodeId>> holders;
    for (const auto& [id, row] : model_.rows) {
      const auto node = table_->find(id);
      ASSERT_TRUE(node);
      EXPECT_EQ(node->parent, row.node.parent);
      EXPECT_EQ(node->key, row.node.key);
      EXPECT_EQ(node->zone, row.node.zone);
      EXPECT_EQ(node->type, row.node.type);
      EXPECT_EQ(node->dead, row.node.dead);
      EXPECT_EQ(node->handle, row.node.handle);
      EXPECT_EQ(node->name, row.node.name);
      compare(id);
      if (!row.node.dead || row.has_inode) holders[{row.node.key.volume, row.node.key.inode}].push_back(id);
    }
    for (const VolumeId volume : {kWorkspaceVolume, kWorkdirVolume})
      for (std::uint64_t inode = 1; inode <= kInodes; ++inode) {
        const InodeKey key{volume, inode};
        const auto& known = holders[{volume, inode}];
        EXPECT_EQ(sorted(table_->all_of(key)), known);
        const auto* live = model_.live(key);
        EXPECT_EQ(table_->id_of(key), live ? std::optional(live->node.id) : std::nullopt);
      }
  }

  test::ScratchDirectory scratch_{"node-table"};
  std::unique_ptr<NodeTable> table_ = NodeTable::open(scratch_ / "nodes", Start::kAnew).value();
  Model model_;
  std::mt19937 random_{GetParam()};
  std::uint64_t handles_ = 0;
};

TEST_P(NodeTableTest, KnowsWhatStandsWhereWhateverHappens) {
  for (int check_number = 0; check_number < kChecks; ++check_number) {
    for (int i = 0; i < kStepsPerCheck; ++i) ASSERT_NO_FATAL_FAILURE(step());
    ASSERT_NO_FATAL_FAILURE(check());
    ASSERT_FALSE(HasFailure()) << "at check " << check_number;
  }
}

TEST(NodeTableReferences, OfADeadProcessDoNotCount) {
  const test::ScratchDirectory scratch("nodes");
  Node file;
  file.parent = node_of(Zone::kOutputs);
  file.key = {kWorkspaceVolume, 100};
  file.zone = Zone::kOutputs;
  file.type = S_IFREG;
  file.name = "known to the kernel";
  Node other = file;
  other.key.inode = 101;
  other.name = "looked at by ourselves";
  NodeId known, seen;
  {
    auto table = NodeTable::open(scratch / "nodes", Start::kAnew);
    ASSERT_TRUE(table);
    known = (*table)->reference(file)->id;
    (*table)->reference(file);
    seen = (*table)->reference(other)->id;
    for (const NodeId id : {known, seen}) (*table)->make_own(id);
    EXPECT_TRUE((*table)->unreferenced().empty());
    EXPECT_FALSE((*table)->forget(known, 5).gone) << "it is looked at";
    (*table)->give_back_own(known);
    EXPECT_FALSE((*table)->find(known)->dead);
    (*table)->reference(file);
    (*table)->make_own(known);
  }
  auto table = NodeTable::open(scratch / "nodes", Start::kTakeOver);
  ASSERT_TRUE(table);
  EXPECT_EQ((*table)->unreferenced(), std::vector<NodeId>{seen});
  EXPECT_TRUE((*table)->forget(seen, 0).gone);
  EXPECT_TRUE((*table)->forget(known, 1).gone);
  EXPECT_EQ((*table)->size(), 0u);
}

/// Of outputs/a/b/c the middle one is moved into temp/d behind the kernel's back.
TEST(NodeTablePlaces, AreAsDeepAsTheLeastOnesUntilTheyAreFound) {
  const test::ScratchDirectory scratch("node-table");
  auto table = NodeTable::open(scratch / "nodes", Start::kAnew).value();
  std::uint64_t inodes = 0;
  const auto directory = [&](NodeId parent, const char* name, std::uint64_t inode) {
    Node node;
    node.parent = parent;
    node.key = {kWorkspaceVolume, inode};
    node.zone = table->find(parent)->zone;
    node.type = S_IFDIR;
    node.name = name;
    return table->reference(node)->id;
  };
  const NodeId a = directory(node_of(Zone::kOutputs), "a", ++inodes);
  const auto moved_inode = ++inodes;
  const NodeId b = directory(a, "b", moved_inode);
  const NodeId c = directory(b, "c", ++inodes);
  const NodeId d = directory(node_of(Zone::kTemp), "d", ++inodes);
  EXPECT_EQ(table->depth(c), 4u);
  constexpr std::uint32_t kEpoch = 7;
  table->set_coverage(a, kEpoch, NodeTable::Coverage::kWhole);
  EXPECT_TRUE(table->is_covered(c, kEpoch));
  const auto before = table->misplacements();
  table->set_misplaced(b);
  EXPECT_TRUE(table->is_covered(a, kEpoch));
  EXPECT_FALSE(table->is_covered(b, kEpoch)) << "it is elsewhere";
  EXPECT_FALSE(table->is_covered(c, kEpoch));
  EXPECT_EQ(table->depth(b), 2u);
  EXPECT_EQ(table->depth(c), 3u);
  EXPECT_EQ(table->misplaced_from(c), std::vector<NodeId>{b});
  EXPECT_EQ(table->misplaced_from(a), std::vector<NodeId>{});
  EXPECT_EQ(directory(d, "b", moved_inode), b) << "it stays the same";
  EXPECT_EQ(table->find(c)->zone, Zone::kTemp);
  EXPECT_EQ(table->depth(c), 3u);
  table->set_found(b, before);
  EXPECT_TRUE(table->is_misplaced(b)) << "that was asked for earlier";
  table = NodeTable::open(scratch / "nodes", Start::kTakeOver).value();
  EXPECT_TRUE(table->is_misplaced(b));
  table->set_found(b, table->misplacements());
  EXPECT_EQ(table->depth(b), 3u);
  EXPECT_EQ(table->depth(c), 4u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, NodeTableTest, ::testing::Range(1u, kSeeds + 1));

}  // namespace
}  // namespace okcvm::fusefs
