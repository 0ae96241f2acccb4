#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <unordered_set>
#include <vector>

#include "fusefs/child_lists.h"
#include "fusefs/kernel_knowledge.h"
#include "fusefs/shared_region.h"
#include "fusefs/slot_index.h"
#include "fusefs/types.h"
#include "policy/thread_annotations.h"

namespace okcvm::fusefs {

struct NodeRecord;

/// How often an inode is open through the kernel, and the backing id it is open with (0: none).
struct OpenState {
  std::int32_t backing_id = 0;
  std::uint32_t opens = 0;
  std::uint32_t writers = 0;
  std::uint32_t mappers = 0;  // open for reading and writing: such a file can be written through a mapping
  // It was so open, and passed through: then a mapping outlives the last close. Or who had it open in a
  // former mount may have it still.
  bool may_be_mapped = false;
  bool dead = false;  // Node::dead

  /// Whether the kernel alone may have what was stored through a mapping: it keeps the pages itself.
  bool may_hide_stores() const { return mappers && !backing_id; }
};

/// What there is to know when an inode's attributes are told.
struct AttributesTold {
  OpenState open;
  bool may_be_kept = true;  // KernelKnowledge::tell
  std::vector<NodeId> to_list_again = {};
};

/// What a node that went leaves for its owner to give back.
struct Forgotten {
  bool gone = false;
  InodeKey key;
};

struct Referenced {
  NodeId id;
  bool made = false;  // the node was not known before
};

/// Every inode the kernel holds a reference to, by the number it knows it by. Thread-safe.
/// Lives in a shared mapping: a record is complete before its id is stored, and counts change by single
/// stores, so that the next daemon finds it valid wherever this one died. Counts may then be too high, never
/// too low.
class NodeTable {
 public:
  static constexpr std::uint32_t kMaxNodes = 16u << 20;

  /// Anew the table starts empty but for the fixed nodes; `corrupt` if what there is to be taken over is not
  /// a table of this version.
  static Result<std::unique_ptr<NodeTable>> open(const std::filesystem::path& path, Start start);
  ~NodeTable();

  Result<Node> find(NodeId id) const EXCLUDES(mutex_);  // ESTALE when unknown
  /// That of the root when it is unknown.
  Zone zone_of(NodeId id) const EXCLUDES(mutex_);

  /// Takes one reference on a node that is already known under this key, and notes where it was found.
  /// Nothing when it is not known, or when only its handle can tell whether it still is the same file.
  std::optional<NodeId> reference_known(const InodeKey& key, NodeId parent, std::string_view name)
      EXCLUDES(mutex_);

  /// Takes one reference on the node of `found` (whose id is ignored), making it if need be. A known node
  /// with another handle is a former file with a recycled inode number: it is marked dead. So is a directory
  /// or link that the host moved to another directory. ENOMEM when full.
  Result<Referenced> reference(const Node& found) EXCLUDES(mutex_);

  /// Drops `count` kernel references; the node goes with the last one. (FUSE_FORGET)
  Forgotten forget(NodeId id, std::uint64_t count) EXCLUDES(mutex_);
  /// A reference becomes this process's own, and ends with it: the next daemon counts the kernel's alone.
  void make_own(NodeId id) EXCLUDES(mutex_);
  /// It is one of the others again.
  void give_back_own(NodeId id) EXCLUDES(mutex_);
  /// Those that only a former daemon referred to.
  std::vector<NodeId> unreferenced() const EXCLUDES(mutex_);
  /// Those that nothing leads to any more: Node::dead.
  std::vector<NodeId> nameless() const EXCLUDES(mutex_);

  /// Only told of volumes of skills.
  bool knows_any_in(VolumeId volume) const EXCLUDES(mutex_);
  std::optional<NodeId> id_of(const InodeKey& key) const EXCLUDES(mutex_);
  /// The name `name` in `parent` stands for this inode now.
  void moved(const InodeKey& key, NodeId parent, Zone zone, std::string_view name) EXCLUDES(mutex_);
  /// An inode without a name has one now.
  void named(NodeId id, NodeId parent, Zone zone, std::string_view name) EXCLUDES(mutex_);
  /// The name is gone; with `last` the inode goes as soon as nobody has it open.
  void unlinked(const InodeKey& key, NodeId parent, std::string_view name, bool last) EXCLUDES(mutex_);
  /// What is told of an inode that is gone once nothing leads to it any more, as after a take-over: a FIFO or
  /// directory may still be open, of which the driver knows nothing. Nothing if it was not noted.
  void note_last_status(NodeId id, const struct stat& status) EXCLUDES(mutex_);
  std::optional<struct stat> last_status(NodeId id) const EXCLUDES(mutex_);
  void drop_last_status(NodeId id) EXCLUDES(mutex_);
  /// What the host has put where this node was known, or has taken elsewhere, gets another node.
  void part_with(NodeId id) EXCLUDES(mutex_);
  /// The same of a directory and every directory and link below it, which are answered.
  std::vector<NodeId> part_with_all(NodeId top) EXCLUDES(mutex_);
  /// Inodes may have been replaced behind our back: verify every node by its handle before it is trusted
  /// again.
  void distrust_all() EXCLUDES(mutex_);
  /// Every known node in `directory`, and every one below `ancestor`, for which `filter(node)` holds.
  template <typename Filter>
  std::vector<Node> children(NodeId directory, const Filter& filter) const EXCLUDES(mutex_);
  template <typename Filter>
  std::vector<Node> descendants(NodeId ancestor, const Filter& filter) const EXCLUDES(mutex_);
  /// The kernel may be given a text of this link that not every directory may hold. To be called before that
  /// is judged by where the link is: who moves it there meanwhile then finds it, or is seen.
  void set_bound_to_place(NodeId link) EXCLUDES(mutex_);
  /// The symbolic links of which that is so below a directory, and it itself if it is one.
  std::vector<NodeId> bound_links_from(NodeId top) const EXCLUDES(mutex_);
  /// The node of this inode, and those by which the kernel may still know it where the host took it away.
  std::vector<NodeId> all_of(const InodeKey& key) const EXCLUDES(mutex_);

  // -- Open files; `flags` are open(2)'s
  OpenState open_state(NodeId id) const EXCLUDES(mutex_);
  OpenState opened(NodeId id, int flags) EXCLUDES(mutex_);
  OpenState closed(NodeId id, int flags) EXCLUDES(mutex_);
  void set_backing(NodeId id, std::int32_t backing_id) EXCLUDES(mutex_);
  /// Nobody can write to this inode any more.
  void set_not_mapped(NodeId id) EXCLUDES(mutex_);
  std::vector<NodeId> open_for_writing() const EXCLUDES(mutex_);
  /// The inodes of the workspace that programs may write to past us, and go on writing to when the mount is
  /// taken away.
  std::unordered_set<std::uint64_t> written_past_us() const EXCLUDES(mutex_);
  /// What that answered in a former mount. A node that is made for one of them may be mapped.
  void await_writers(std::unordered_set<std::uint64_t> inodes) EXCLUDES(mutex_);
  /// The nodes that have a backing id, and it.
  std::vector<std::pair<NodeId, std::int32_t>> all_backings() const EXCLUDES(mutex_);
  /// Sets all open counts to zero; the file table counts them anew after a take-over.
  void clear_open_counts() EXCLUDES(mutex_);

  // -- What was recorded of it since a cut
  /// Its content, or its being new, stands in the log of this epoch. `epoch` is never 0.
  bool is_recorded(NodeId id, std::uint32_t epoch) const EXCLUDES(mutex_);
  void set_recorded(NodeId id, std::uint32_t epoch) EXCLUDES(mutex_);
  /// kWhole: a directory recorded as new, to be read whole; what happens below it need not be recorded.
  /// kKnown: it was moved into such a directory with what was known of it, so changes in it must be recorded.
  /// Once such a node is forgotten, nobody could tell any more, so nothing counts as covered in that epoch.
  enum class Coverage : std::uint8_t { kWhole, kKnown };
  void set_coverage(NodeId id, std::uint32_t epoch, Coverage coverage) EXCLUDES(mutex_);
  /// Whether the next snapshot reads this node anyway, as part of a directory recorded whole in this epoch.
  bool is_covered(NodeId id, std::uint32_t epoch) const EXCLUDES(mutex_);

  // -- Where it stands in the tree
  /// How far a directory lies below the session's root: 1 for `outputs`, 2 for `outputs/a` and a skill's own
  /// directory. At or below a directory that is_misplaced(): the least depth that it may have for the kernel.
  /// Nothing if the chain of parents is broken, dead or circular.
  std::optional<std::size_t> depth(NodeId id) const EXCLUDES(mutex_);
  /// The kernel may have a link or a directory of the writable zones elsewhere than it is, less deep. Who
  /// comes for the text of such a link may have found it there, so whoever looks it up from now on is told
  /// another node; a directory stays the same one.
  void set_misplaced(NodeId id) EXCLUDES(mutex_);
  bool is_misplaced(NodeId id) const EXCLUDES(mutex_);
  /// The directories that are, at or above a node.
  std::vector<NodeId> misplaced_from(NodeId id) const EXCLUDES(mutex_);
  /// How often something was misplaced so far.
  std::uint64_t misplacements() const EXCLUDES(mutex_);
  /// The kernel found a directory where it is, after it was asked to when there were so many misplacements:
  /// if there were others since, that tells nothing.
  void set_found(NodeId id, std::uint64_t misplacements) EXCLUDES(mutex_);
  std::vector<Node> directories() const EXCLUDES(mutex_);
  bool is_at_or_below(NodeId id, const std::vector<NodeId>& tops) const EXCLUDES(mutex_);

  // -- What the kernel was told
  /// Notes that the kernel is given this inode's attributes, which it has from then on unless they may change
  /// without a word: the inode can be written to, or has several names.
  AttributesTold told(NodeId id, bool has_one_name) EXCLUDES(mutex_);
  /// KernelKnowledge::changed
  bool changed(NodeId id) EXCLUDES(mutex_);
  /// Whether a listing may name this without its inode: the kernel should know it by this name, and
  /// KernelKnowledge::may_leave_out. Only a hint.
  bool may_leave_out(const InodeKey& key, NodeId parent, std::string_view name) EXCLUDES(mutex_);
  /// The kernel drops the attributes of this inode: a link that it read.
  void not_told(NodeId id) EXCLUDES(mutex_);
  /// KernelKnowledge::listed
  void listed(NodeId directory, bool from_start, std::uint32_t names) EXCLUDES(mutex_);
  /// To be called when a file was closed: if the kernel was not told its attributes meanwhile it will ask
  /// again, be it for the access time alone. Answers its directory when that should be listed anew.
  std::optional<NodeId> outdated(NodeId id) EXCLUDES(mutex_);

  std::uint64_t size() const EXCLUDES(mutex_);

 private:
  explicit NodeTable(SharedRegion region) : region_(std::move(region)) {}

  struct KeyOf {
    const NodeTable& table;
    InodeKey operator()(std::uint32_t slot) const;
  };
  KeyOf key_of() const { return {*this}; }

  NodeRecord& record(std::uint32_t slot) const;
  NodeRecord* live_record(NodeId id) const REQUIRES(mutex_);
  void count_in_skill(const NodeRecord& row, int change) REQUIRES(mutex_);
  Node copy_of(const NodeRecord& record) const;
  void rebuild() REQUIRES(mutex_);
  Result<std::uint32_t> take_slot() REQUIRES(mutex_);
  bool is_awaited(const InodeKey& key) const REQUIRES(mutex_);
  static NodeId refer_to(NodeRecord& record);
  std::vector<NodeId> all_ids() const REQUIRES(mutex_);
  bool is_below(NodeId id, NodeId ancestor) const REQUIRES(mutex_);
  using Visit = std::function<void(NodeRecord&)>;
  void visit_children(NodeId parent, const Visit& visit) const REQUIRES(mutex_);
  /// The fixed nodes are among them.
  void visit_below(NodeId ancestor, const Visit& visit) const REQUIRES(mutex_);
  std::vector<NodeId> bound_links_by_their_places(NodeId top) const REQUIRES(mutex_);
  void note_parent(const NodeRecord& record) REQUIRES(mutex_);
  void oust(std::uint32_t slot) REQUIRES(mutex_);
  void place(NodeRecord& record, NodeId parent, std::string_view name) REQUIRES(mutex_);
  /// The same, perhaps in another zone, with all that is below.
  void place(NodeRecord& record, NodeId parent, Zone zone, std::string_view name) REQUIRES(mutex_);
  template <typename Visitor>
  std::optional<std::size_t> climb(NodeId id, const Visitor& visit) const REQUIRES(mutex_);

  mutable Mutex mutex_;
  SharedRegion region_;
  SlotIndex index_ GUARDED_BY(mutex_);  // of those that have a name
  std::vector<std::uint32_t> free_ GUARDED_BY(mutex_);
  std::unordered_set<std::uint32_t> writing_ GUARDED_BY(mutex_);
  std::unordered_set<std::uint32_t> former_ GUARDED_BY(mutex_);  // dead ones that may have another node
  std::unordered_set<std::uint32_t> dead_ GUARDED_BY(mutex_);
  std::unordered_set<std::uint32_t> bound_links_ GUARDED_BY(mutex_);  // set_bound_to_place()
  std::unordered_set<std::uint64_t> awaited_ GUARDED_BY(mutex_);
  std::unordered_map<std::uint64_t, std::uint64_t> own_ GUARDED_BY(mutex_);  // references, by id
  ChildLists children_ GUARDED_BY(mutex_);
  std::unordered_map<VolumeId, std::int64_t> in_skills_ GUARDED_BY(mutex_);  // nodes of each volume
  KernelKnowledge kernel_ GUARDED_BY(mutex_);
  std::uint32_t next_slot_ GUARDED_BY(mutex_) = kFirstFreeSlot;
  std::uint32_t trust_ GUARDED_BY(mutex_) = 1;  // raised where inodes may have been replaced unseen
  std::uint64_t live_ GUARDED_BY(mutex_) = 0;
  std::uint64_t misplacements_ GUARDED_BY(mutex_) = 0;
};

template <typename Filter>
std::vector<Node> NodeTable::children(NodeId directory, const Filter& filter) const {
  std::vector<Node> found;
  MutexLock lock(mutex_);
  visit_children(directory, [&](const NodeRecord& row) {
    if (Node node = copy_of(row); filter(node)) found.push_back(std::move(node));
  });
  return found;
}

template <typename Filter>
std::vector<Node> NodeTable::descendants(NodeId ancestor, const Filter& filter) const {
  std::vector<Node> found;
  MutexLock lock(mutex_);
  visit_below(ancestor, [&](const NodeRecord& row) {
    if (Node node = copy_of(row); !is_fixed(node.id) && filter(node)) found.push_back(std::move(node));
  });
  return found;
}

}  // namespace okcvm::fusefs
