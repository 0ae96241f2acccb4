#pragma once

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fusefs/access_order.h"
#include "fusefs/backings.h"
#include "fusefs/change_recorder.h"
#include "fusefs/deeper_moves.h"
#include "fusefs/directories.h"
#include "fusefs/directory_searches.h"
#include "fusefs/going_inodes.h"
#include "fusefs/listings.h"
#include "fusefs/node_table.h"
#include "fusefs/orphans.h"
#include "fusefs/removed_inodes.h"
#include "fusefs/session_state.h"
#include "fusefs/steady_attributes.h"
#include "fusefs/types.h"
#include "fusefs/workspace.h"
#include "policy/error.h"
#include "policy/file_descriptor.h"

namespace okcvm::fusefs {

/// An inode as it is told to the kernel. `id` 0: there is no such name, and that may be remembered.
struct Entry {
  NodeId id;
  struct stat attributes {};
  double name_seconds = 0;        // how long the name may be believed without asking
  double attributes_seconds = 0;  // and the attributes
};

struct Opened {
  FileId file;
  std::int32_t backing_id = 0;  // 0: reads and writes come to us
  bool keep_cache = false;      // pages of earlier opens are still right
  bool direct = false;          // nothing is cached of it, nor can it be mapped to be shared
  FileDescriptor not_needed;    // to be closed once the kernel has its answer
};

struct SetAttributes {
  std::optional<mode_t> mode;
  std::optional<uid_t> uid;
  std::optional<gid_t> gid;
  std::optional<off_t> size;
  bool size_by_path = false;         // truncate(2), not ftruncate(2)
  int writable = -1;                 // the file, where it is open for writing already: for the size alone
  bool owner_touched = false;        // chown(2) to nobody new: moves the change time and clears set-id bits
  std::optional<timespec> accessed;  // tv_nsec may be UTIME_NOW
  std::optional<timespec> modified;
};

/// One name of a listing, as getdents64(2) gives it.
struct ListedName {
  const char* name;
  std::uint64_t inode;
  mode_t type;
  off_t next;  // where the listing goes on after it
};
inline constexpr std::size_t kListingPiece = 32'768;
/// Answers false when there is no more room; the name then comes again.
using ListVisitor = std::function<bool(const ListedName&)>;
/// How many bytes of names are wanted next, as getdents64(2) gives them; 0: no more.
using ListingAppetite = std::function<std::size_t()>;

/// What the kernel must be told when something changed by another way than its own request. Thread-safe.
class Invalidator {
 public:
  virtual ~Invalidator() = default;
  virtual void entry(NodeId parent, const std::string& name) = 0;
  /// Has the name looked up again at its next use. If the same inode stands there, whoever has it as working
  /// directory keeps it, which entry() would not allow (Linux 6.2; before that, nothing is told).
  virtual void expire(NodeId parent, const std::string& name) = 0;
  /// A directory that has this name for the kernel has another by now, under which it finds it when that is
  /// looked up: until then, who stands in it goes on there.
  virtual void renamed(NodeId parent, const std::string& name) = 0;
  /// Has the kernel look for what stands at a path, once it was told what was asked for before: it learns
  /// that a directory which it knew by another name is there now. Calls `then`, from another thread, with
  /// whether it found this inode there, by the number that it is shown with.
  virtual void look_up(const RelPath& path, std::uint64_t inode, std::function<void(bool)> then) = 0;
  /// Attributes, and all pages: data, listing or link text.
  virtual void inode(NodeId id) = 0;
  /// The same, done when it returns true: that waits for the answers to READs, WRITEs and READLINKs of it
  /// under way, though not long. Must not be called while holding back requests.
  virtual bool inode_now(NodeId id) = 0;
  /// The same of links, and however long it takes: without it they would lead elsewhere than they may. False:
  /// the daemon ends before.
  [[nodiscard]] virtual bool links_now(std::span<const NodeId> ids) = 0;
  /// Attributes alone, done when it returns: that waits for nothing, as long as the request that it is about
  /// keeps the inode in use, or it is a directory.
  virtual void attributes_now(NodeId id) = 0;
  /// Attributes and the listing of a directory that a request is moving to another one, done when it returns:
  /// the kernel has it locked (Linux 6.5), so nobody lists it, and that waits for nothing.
  virtual void moving_directory_now(NodeId id) = 0;
  /// Calls `then`, from another thread, once every change of names in this directory, and every listing of
  /// it, that is under way in the kernel now has ended there, too.
  virtual void after_changes_in(NodeId directory, std::function<void()> then) = 0;
  /// Calls `then`, from another thread, if the kernel does not know the inode: what it has of it is a FORGET
  /// at the most.
  virtual void if_unknown(NodeId id, std::function<void()> then) = 0;
  /// Waits until everything asked for before is done. Must not be called while holding back requests.
  virtual void drain() = 0;
};

/// The file system's operations, by node. Knows nothing of libfuse; every rule of the zones is applied here,
/// once, for the kernel's requests and the control socket's alike. Thread-safe. Errors carry the errno for
/// the kernel.
class Operations {
 public:
  struct Config {
    std::vector<std::string> mount_points;  // as it is named, and as the kernel names it
    uid_t owner_uid = 0;
    gid_t owner_gid = 0;
    mode_t root_mode = 0700;
    timespec created_at{};
    std::vector<std::string> symlink_host_roots;
    std::function<void(std::string_view, const RelPath&, int)> on_denial;
    bool expects_workdir = false;
    Start start = Start::kAnew;
  };
  Operations(Config config, Workspace& workspace, NodeTable& nodes, ChangeLog& changes, SessionState& state,
             Backings& backings, Invalidator& kernel);

  /// Whether the directory that a name is looked up in is locked meanwhile, as it is by the kernel while it
  /// is listed or a name made in it; else the name may be given to another file.
  enum class Lock : std::uint8_t { kHeld, kNotHeld };
  using Access = Backings::Access;

  // -- Names (operations_names.cpp)
  Result<Entry> look_up(NodeId parent, const char* name);
  /// As look_up, where the name has just been listed in an open directory, or made and is still `opened`.
  Result<Entry> look_up_in(const Directory& directory, const char* name, int opened = -1,
                           Lock lock = Lock::kHeld);
  Result<void> make_known(Node& node, Volume& volume, int at, const char* name);
  /// NodeTable::may_leave_out
  bool may_leave_out(const Directory& directory, const ListedName& row);
  /// Notes that the kernel is given so many names of a listing, from its start or on from there; none at its
  /// end.
  void listed(NodeId id, bool from_start, std::uint32_t names) { nodes_.listed(id, from_start, names); }
  void forget(NodeId id, std::uint64_t count);
  /// NodeTable::make_own
  void make_own(NodeId id) { nodes_.make_own(id); }
  void forget_own(NodeId id) {
    nodes_.give_back_own(id);
    forget(id, 1);
  }
  /// What seems to be the node of the inode at a name now, if it is known in this directory: by that name, or
  /// by one that it had before it was renamed behind the kernel's back. To be asked before it is looked up
  /// here.
  std::optional<Node> known_in(NodeId parent, const char* name);

  /// It begins to list a directory now, and will keep that.
  void kernel_lists(NodeId id);
  /// Visits the names from `offset` on until `visit` answers false or no more are `wanted`.
  Result<void> list(
      NodeId id, off_t offset, const ListVisitor& visit,
      const ListingAppetite& wanted = [] { return kListingPiece; });

  // -- Directories that a restore put elsewhere (operations_places.cpp)
  /// A directory at this name that the kernel knows by another one, here or elsewhere, was moved behind its
  /// back: it goes on as the node that it was, which is answered. To be called while requests are held back,
  /// before it is looked up here. (From elsewhere, where the kernel may have texts of links in it that could
  /// lead out meanwhile, it becomes another node.)
  std::optional<NodeId> take_in(NodeId parent, const char* name);
  /// After a daemon died while it changed the workspace, before requests are answered: does that for all.
  void take_in_all();
  /// Has the kernel look for a directory where it is now, once it was told what was asked for before. False:
  /// it is not known where that is.
  bool have_found(NodeId directory);
  /// The same for all that the former daemon took in.
  void have_misplaced_found();
  /// Whether the kernel may have a directory, one above it, or one that a link is in, where it is no more.
  bool is_misplaced(NodeId id) const { return !nodes_.misplaced_from(id).empty(); }
  /// Waits until it has found them, though not long: that may depend on who waits.
  void let_be_found(NodeId id);

  // -- Links (operations_links.cpp)
  Result<std::string> read_link(NodeId id);
  /// The same for the kernel, which may still have the link where it stood before a rename: ESTALE has it
  /// look again. How often such renames are waited for at the most, some milliseconds each.
  Result<std::string> read_link_of_kernel(NodeId id, int most_waits);
  /// After a rename, before the kernel has its answer, once nothing is held back.
  [[nodiscard]] bool drop_texts(const std::vector<NodeId>& links);

  // -- Namespace changes (operations_changes.cpp, operations_renames.cpp, operations_going.cpp)
  Result<Entry> make_node(const Request& request, NodeId parent, const char* name, mode_t mode, dev_t device);
  Result<Entry> make_directory(const Request& request, NodeId parent, const char* name, mode_t mode);
  Result<Entry> make_symlink(const Request& request, NodeId parent, const char* name, const char* text);
  /// Also of an inode that never had a name.
  Result<Entry> make_link(const Request& request, NodeId id, NodeId parent, const char* name);
  /// An inode that lost its last name, if one did: to be let go of once the kernel has its answer.
  using Nameless = std::optional<NodeId>;
  Result<Nameless> unlink(const Request& request, NodeId parent, const char* name);
  Result<void> remove_directory(const Request& request, NodeId parent, const char* name);
  struct Renamed {
    Nameless replaced;
    std::vector<NodeId> links;  // the kernel must ask again for their texts
  };
  /// `source` is what status_at() answered for the name; its inode number was noted as the fact of the
  /// request.
  Result<Renamed> rename(const Request& request, NodeId parent, const char* name,
                         const Result<struct stat>& source, NodeId new_parent, const char* new_name,
                         unsigned flags);
  void let_go(Nameless inode);
  /// A daemon that died may have taken FORGETs with it: lets go of the inodes without a name that the kernel
  /// does not know any more. To be called now and then.
  void forget_unknown();
  /// A node whose inode a former daemon took away without a word becomes one without a name.
  void part_with_gone(const Node& node);
  Result<struct stat> status_at(NodeId parent, const char* name);
  /// Names are about to go by another way than these operations. Until names_went(), when the kernel was
  /// told, their nodes keep them; then they are gone, or stay after all. All while requests are held back.
  void names_will_go(const std::vector<RelPath>& paths);
  void names_went();
  /// What the last daemon took away has the status still that it noted.
  void recall_going();
  /// The same of one node, as names_will_go().
  void name_may_go(NodeId id) { going_.add(id, {}); }
  /// Whether a directory that was to lose this name has another one now.
  bool has_another_name(NodeId parent, const std::string& name);
  /// The kernel is told anew what stands at a name.
  void is_looked_up(NodeId parent, const char* name) { going_.drop_name(parent, name); }
  /// After put(): no change that is on its way goes by what the kernel had at the name, once it was told what
  /// was asked for before.
  void forget_when_told(NodeId parent, const std::string& name);
  /// Makes a zone's directory, if it is not there yet, before anything in it has a name.
  Result<void> make_zone(Zone zone);
  /// Puts a finished file, made by the control socket elsewhere in the same file system, under a name.
  Result<void> put(int from_directory, const char* from_name, NodeId parent, const char* name,
                   unsigned flags);

  /// That of the root for a node that is not known any more.
  Zone zone_of(NodeId id) const { return nodes_.zone_of(id); }

  // -- Attributes (operations_attributes.cpp)
  Result<Entry> attributes(NodeId id);
  /// When the inode was made; nothing where the backing file system does not say.
  std::optional<timespec> birth_time(NodeId id);
  Result<Entry> set_attributes(const Request& request, NodeId id, const SetAttributes& wanted);
  Result<std::string> extended_attribute(NodeId id, const char* name);
  Result<std::string> extended_attribute_names(NodeId id);
  Result<void> set_extended_attribute(const Request& request, NodeId id, const char* name,
                                      std::span<const char> value, int flags);
  Result<void> remove_extended_attribute(const Request& request, NodeId id, const char* name);
  /// Whether it is there, to be noted before it is made or removed so that a repeated request can be
  /// recognised.
  Fact attribute_fact(NodeId id, const char* name);
  /// Of the file system that the node's files are on.
  Result<struct statvfs> file_system_status(NodeId id);

  // -- Files (operations_files.cpp)
  Result<Opened> open(const Request& request, NodeId id, int flags);
  Result<std::pair<Entry, Opened>> create(const Request& request, NodeId parent, const char* name,
                                          mode_t mode, int flags);
  /// A file that has no name until make_link() gives it one (O_TMPFILE).
  Result<std::pair<Entry, Opened>> create_nameless(const Request& request, NodeId parent, mode_t mode,
                                                   int flags);
  void release(FileId file);
  Result<std::size_t> read(const Request& request, NodeId id, std::span<std::byte> into, off_t offset);
  /// To be noted before a write, so that a repeated one can be told: where an append would begin, if only the
  /// file can tell.
  Fact append_fact(NodeId id, int flags);
  /// `flags`: those that the file was opened with, here and in append_fact().
  Result<std::size_t> write(const Request& request, NodeId id, std::span<const std::byte> from, off_t offset,
                            int flags);
  Result<void> sync(NodeId id, bool data_only);
  /// As sync(), through an open file: it also answers errors that other open files of the node met.
  Result<void> sync_file(const Request& request, NodeId id, FileId file, bool data_only);
  Result<void> allocate(const Request& request, NodeId id, int mode, off_t offset, off_t length);
  /// `whence`: SEEK_DATA or SEEK_HOLE. Nothing if it has to be seek_after_stores(): data that was stored
  /// through a mapping may be a hole in the file still.
  Result<std::optional<off_t>> seek(NodeId id, off_t offset, int whence);
  /// Has the kernel write them, which waits for the answers to its WRITEs.
  Result<off_t> seek_after_stores(NodeId id, off_t offset, int whence);
  /// Whether the kernel copies between two files of this session as well as copy_range() could, without us.
  bool kernel_copies_as_well() const;
  /// Whether fsync(2) never has anything to do, as long as the session is mounted.
  bool never_syncs() const;
  Result<std::size_t> copy_range(const Request& request, NodeId from, off_t from_offset, NodeId to,
                                 off_t to_offset, std::size_t length);
  /// Whether the kernel may have contents of the file that it did not write yet: Invalidator::inode() fetches
  /// them.
  bool may_hide_stores(NodeId id) const { return nodes_.open_state(id).may_hide_stores(); }
  /// Has the kernel write what was stored through mappings. Not under a lock that a WRITE may need.
  bool fetch_stores(NodeId id) { return kernel_.inode_now(id); }
  /// A descriptor of a regular file for reading, for the control socket.
  Result<FileDescriptor> open_for_reading(NodeId id);

  // -- Paths (operations_paths.cpp)
  /// Where a node is now; ENOENT when it has no name any more.
  Result<RelPath> path_of(const Node& node);

  void set_metadata(std::string metadata);
  Directories& directories() { return directories_; }
  const Directories& directories() const { return directories_; }
  Orphans& orphans() { return orphans_; }
  ChangeRecorder& recorder() { return recorder_; }
  const std::vector<std::string>& mount_points() const { return config_.mount_points; }

 private:
  static constexpr double kMomentSeconds = 0.001;  // rounded up to a tick of the kernel's clock
  // Where a name is to be changed: the rules allow it and the directory is there.
  using Place = std::shared_ptr<const Directory>;
  Result<Place> place_for_change(const Request& request, NodeId parent, const char* name,
                                 std::string_view operation);
  /// Whether the kernel judged the caller by what may be old, as the host can change it, too.
  static bool is_judged_again(const Request& request, Zone zone);
  /// Then: whether he has all rights `wanted` (of S_IRWXO) to what `file` is open on.
  static bool may_still(const Request& request, Zone zone, int file, mode_t wanted);
  static bool may_change_names_in(const Request& request, const Directory& directory);
  /// `flags`: open(2)'s. EACCES
  Result<void> judge_open(const Request& request, const Node& node, int flags);
  /// Counts and reports a refusal by the zone rules, and makes it the error.
  Unexpected deny(std::string_view operation, NodeId parent, const char* name, int errno_value);
  Result<Node> changeable(NodeId id, std::string_view operation);
  Result<void> make_if_zone(const Node& node);
  static Unexpected why_no_attributes(const Node& node, const Error& error);

  /// NodeTable::told, and has those directories listed again.
  AttributesTold tell(NodeId id, bool has_one_name);
  Entry entry_of(const Node& node, struct stat status);
  /// The attributes of a file that was mapped, once nobody can store to it any more.
  std::optional<struct stat> settled_status(const Node& node);
  Entry virtual_directory(Zone zone);
  nlink_t shown_zones() const;
  Entry metadata_entry();
  Result<Entry> zone_entry(Zone zone);
  Result<Entry> skill_entry(const char* name);
  Result<struct stat> status_of(const Node& node);
  Result<Entry> current_entry(const Node& node);
  /// The kernel has it give way if the host changed the directory since, as its status tells.
  void drop_outdated_listing(const Node& node, const struct stat& status);
  /// Whether `name` in `file` (what `file` is open on if empty) is a link that leads to nothing outside of
  /// the session from any directory of its zone.
  bool stays_in_anywhere(int file, const char* name, const struct stat& status);
  /// Nothing if the kernel does not know it.
  std::optional<NodeId> node_of_directory(const RelPath& path, int directory) const;
  Result<void> list_virtual(NodeId id, off_t offset, const ListVisitor& visit);
  static Result<void> go_to(Listings::Listing& listing, int directory, off_t offset);

  /// To be called when an inode was changed by a request that tells the kernel no attributes of it, before
  /// that is answered (KernelKnowledge::changed).
  void attributes_changed(NodeId id);

  static void before_making(const Request& request);
  /// Whether a daemon that died had made what stands at a name, for this very request.
  static bool was_made_before(const Request& request, const Directory& directory, const char* name);
  Result<Entry> finish_new(const Request& request, const Directory& directory, const char* name, mode_t mode,
                           int opened = -1);
  Result<Entry> expected(Result<Entry> entry, mode_t mode);
  static void take_back(const Directory& directory, const char* name, int flags);
  /// What unlink and rmdir share; unlinkat(2)'s flags.
  Result<Nameless> remove(const Request& request, NodeId parent, const char* name, int flags,
                          std::string_view operation);
  /// To be called before an inode is dealt with by its number: where the host changes things, that may be
  /// known as the number of one that is gone, or as one that stood elsewhere. It is at `name` in `file`, or
  /// what `file` is open on if that is empty.
  void part_with_former(const Directory& directory, int file, const char* name, const struct stat& status);
  /// Whether a sticky directory lets the caller take away what stands at a name of it now (EPERM). The kernel
  /// judges by what it was told; the host may have put another file there since, or given it to somebody
  /// else.
  bool may_take_away(const Request& request, const Directory& directory, const struct stat& status) const;
  /// Whether it is such a directory to the caller, and not one of his.
  static bool is_sticky_to(const Request& request, const Directory& directory);
  /// The same of a directory that is to go to another one: its own ".." changes (rename(2), EACCES).
  static bool may_be_carried_off(const Request& request, const Directory& from, const Directory& to,
                                 const struct stat& status);
  /// To be called before a name goes that may be the last one of what `held` is open on.
  void before_removal(const Directory& directory, const struct stat& status, int held);
  /// The name stays after all, unless `error` says that it was gone already. Answers the error.
  Unexpected refused_removal(const Directory& directory, const struct stat& status, int error);
  /// The node as it was, if it has none left.
  std::optional<Node> may_have_lost_names(NodeId id, GoingInodes::Going going);
  void name_is_given(const Node& node, const Directory& directory, const char* name);
  Nameless name_is_gone(const Directory& directory, const char* name, const struct stat& status,
                        FileDescriptor held);
  /// Where little is left, a file that lost its last name and is not open goes at once, as it does without a
  /// kernel in between that tells of it later. Who still has its inode (O_PATH) is then told ESTALE.
  void make_room(NodeId id, VolumeId volume);
  /// What was kept of an inode without a name is not needed any more.
  void not_held(NodeId id);
  Result<Renamed> move(const Request& request, const Directory& from, const char* name,
                       const struct stat& source, const Directory& to, const char* new_name, unsigned flags);
  /// What is known of an inode, and of the one it changed places with, goes with its name. Answers
  /// Renamed::links.
  std::vector<NodeId> name_moved(const Directory& from, const char* name, const Directory& to,
                                 const char* new_name, const struct stat& source,
                                 const struct stat* exchanged);
  /// To be called when an inode has gone from one directory to another; its listing has another "..".
  void moved_inode_changed(NodeId id, const struct stat& moved, const Directory& from, const Directory& to);
  /// A daemon that died had taken this name away from whatever it stood for but `but_inode`: what is known of
  /// that inode is brought up to date.
  void name_was_taken(const Directory& directory, const char* name, std::uint64_t but_inode = 0);
  bool is_last_name(std::optional<NodeId> id, const struct stat& status) const;
  Result<std::string> link_text(const Node& node, struct stat& status);
  /// Whether a dead daemon may have moved a node, or what it is in, and the kernel not have heard of it yet.
  bool may_be_moving(const Node& node);
  /// Whether this text of a link leads to nothing outside of the session from where it stands.
  bool stays_in(const Node& link, std::string_view text, const struct stat& status);
  /// Takes in a directory, or parts with it: whether the former.
  bool may_go_on(NodeId directory);
  /// To be called before what is known of a link or directory goes to another directory with its name.
  void note_deeper_move(const InodeKey& moved, mode_t mode, const Directory& from, const Directory& to);
  /// The kernel keeps link texts. Where a link, or a directory with links in it, has come nearer to the root,
  /// a text that stayed inside may now lead out: adds those links.
  void add_links_to_recheck(const struct stat& moved, const Directory& from, const Directory& to,
                            std::vector<NodeId>& links);
  /// Whether a link with this text may stand in a directory of this depth (NodeTable::depth). Without one it
  /// is judged as if it stood right in the zone: so is a link with several names, which may come to stand
  /// anywhere while the kernel keeps one text for all of them.
  bool link_allowed(std::string_view text, std::optional<std::size_t> depth);
  /// What the caller may set of that. The kernel judges by what it was told, and of an open file it does not
  /// ask again: where the host may have given the file to somebody else since, this does, by what `file` is
  /// now. EPERM.
  Result<SetAttributes> judged(const Request& request, const Node& node, int file,
                               SetAttributes wanted) const;
  /// The same of the mode for a new file in a directory.
  mode_t judged_mode(const Request& request, const Directory& directory, mode_t mode) const;
  RelPath shown_path(NodeId directory);
  Result<void> apply(const Request& request, const Node& node, int file, const SetAttributes& wanted);
  Result<void> resize(const Node& node, int file, const SetAttributes& wanted);
  Result<std::optional<mode_t>> mode_to_set(const Request& request, const Node& node, int file,
                                            const SetAttributes& wanted);
  /// A mode given as an ACL is set; any other ACL is refused with EOPNOTSUPP.
  Result<void> set_acl(const Request& request, const Node& node, std::string_view name,
                       std::span<const char> value);
  /// A descriptor for calls on the backing inode's attributes; it may be O_PATH.
  Result<std::shared_ptr<FileDescriptor>> attribute_file(const Node& node);
  /// ChangeRecorder::Locate
  Result<std::optional<RelPath>> locate(const Node& node);
  /// Where a file is, if the backing file system has that in its memory.
  Result<RelPath> path_by_inode(const Node& node);
  /// The name of a node in its directory.
  Result<std::string> name_of(const Node& node, const Directory& directory);
  /// What a daemon that died had made for this very request, if it is still there.
  std::optional<std::pair<Entry, Opened>> nameless_made_before(const Request& request);
  /// Opens what was just made.
  Result<std::pair<Entry, Opened>> open_new(const Request& request, Entry entry, FileDescriptor file,
                                            int flags);
  /// `file`, if given, is open on the node's inode; `known`, what is known of it.
  Result<Opened> register_open(const Request& request, const Node& node, FileDescriptor file,
                               const struct stat* known, int flags);
  /// The backing inode of a node, also after it lost its last name.
  Result<FileDescriptor> open_inode(const Node& node, int flags);
  /// EWOULDBLOCK: somebody on the host holds a lease on the file, and was told to give it up.
  Result<FileDescriptor> open_backing(const Node& node, int flags);
  /// The answer to an open that a dead daemon had carried out.
  Opened opened_before(FileId file, NodeId id) const;
  /// For reading and writing; one that may only be written to at its end (chattr +a), for that.
  Result<FileDescriptor> open_writable(const Node& node);
  /// The descriptor that reads and writes of an inode go through while it is open without passthrough.
  Result<std::shared_ptr<FileDescriptor>> data_file(const Node& node, Access access);
  /// To be called when the last writer of an inode is gone: from now on that descriptor only reads.
  void hold_for_reading(NodeId id);

  Config config_;
  Workspace& workspace_;
  NodeTable& nodes_;
  SessionState& state_;
  Backings& backings_;
  Invalidator& kernel_;
  Directories directories_;
  ChangeRecorder recorder_;
  Listings listings_;
  Orphans orphans_;
  AccessOrder access_order_;
  SteadyAttributes steady_attributes_;
  DeeperMoves deeper_moves_;
  DirectorySearches searches_;
  RemovedInodes removed_;
  std::atomic<std::uint32_t> removals_ = 0;
  GoingInodes going_;
  Mutex metadata_mutex_;
  std::shared_ptr<const std::string> metadata_ GUARDED_BY(metadata_mutex_);
};

}  // namespace okcvm::fusefs
