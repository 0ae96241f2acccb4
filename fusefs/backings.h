#pragma once

#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "fusefs/node_table.h"
#include "fusefs/session_state.h"
#include "fusefs/types.h"
#include "policy/error.h"
#include "policy/file_descriptor.h"
#include "policy/thread_annotations.h"

namespace okcvm::fusefs {

/// The open backing files of inodes: registered with the kernel for passthrough (a backing id), or held here
/// where reads and writes come to us. All opens of one inode are of one kind while any is open (the kernel
/// answers EIO otherwise). A backing id is kept after the last close, for the next open, which costs a third
/// less then; how many is bounded, the one unused longest goes first. Thread-safe.
class Backings {
 public:
  Backings(NodeTable& nodes, SessionState& state) : nodes_(nodes), state_(state) {}
  ~Backings();

  /// To be called once the mount's /dev/fuse descriptor is known. It is borrowed, and outlives this object.
  void start(int device, bool passthrough) EXCLUDES(mutex_);
  /// After a take-over: gives back the backing ids that the former daemons were about to note or to give back
  /// when they died, and those of inodes that are gone.
  void settle() EXCLUDES(mutex_);

  struct Use {
    std::int32_t backing_id = 0;           // 0: not passed through
    std::shared_ptr<FileDescriptor> file;  // then the file itself
    FileDescriptor not_needed;             // to be closed when there is time
  };
  enum class Access : std::uint8_t { kRead, kWrite };
  enum class Purpose : std::uint8_t {
    kPass,   // to be passed through; answered with no descriptor where that may not be
    kServe,  // to be read and written from here
  };
  /// Counts an open with open(2)'s `flags`. `open_file` is called when the inode's backing file is not at
  /// hand; while it waits, only opens of the same inode wait with it. A file that is `shared` with the host
  /// can be given set-id bits unseen: the kernel has to take them away when it writes to it.
  using OpenFile = std::function<Result<FileDescriptor>(Purpose)>;
  Result<Use> opened(NodeId id, int flags, bool shared, const OpenFile& open_file) EXCLUDES(mutex_);
  /// Answers how it is open then.
  OpenState closed(NodeId id, int flags) EXCLUDES(mutex_);

  /// The file of an inode that is open without passthrough; null if there is none that serves.
  std::shared_ptr<FileDescriptor> file(NodeId id, Access access) const EXCLUDES(mutex_);
  /// It is held from now on, in place of what was; but not one for reading alone while there are writers.
  void remember_file(NodeId id, std::shared_ptr<FileDescriptor> file) EXCLUDES(mutex_);

  /// Whether an inode that was open for reading and writing can still be written to, as through a mapping,
  /// which holds the backing file alone; `file` is open on that for reading.
  bool is_mapped(NodeId id, int file) EXCLUDES(mutex_);

  /// A descriptor to reach the attributes of an open inode by; null if none is at hand.
  std::shared_ptr<FileDescriptor> attribute_file(NodeId id) const EXCLUDES(mutex_);
  /// Keeps a descriptor, open for reading, for attribute_file() until the last close, if there is room.
  void remember_attribute_file(NodeId id, std::shared_ptr<FileDescriptor> file) EXCLUDES(mutex_);

  /// Gives back the backing id of an inode unless it is open.
  void drop_unused(NodeId id) EXCLUDES(mutex_);
  /// Lets go of `count` references to a node, with the last one of its backing id.
  Forgotten forget(NodeId id, std::uint64_t count) EXCLUDES(mutex_);

 private:
  static constexpr std::size_t kMostKept = 8192;
  static constexpr std::size_t kMostKeptInAll = 65'536;  // by all sessions of this process
  static constexpr std::size_t kMostAttributeFiles = 64;
  static constexpr std::size_t kMostAttributeFilesInAll = 4096;
  static constexpr std::int32_t kMostLost = 16;  // by daemons that died one after the other
  class Opening;
  std::optional<Use> open_another(NodeId id, int flags) REQUIRES(mutex_);
  Result<Use> open_first(NodeId id, int flags, bool shared, const OpenFile& open_file, bool may_pass)
      EXCLUDES(mutex_);
  /// Whether it may stay open unused: where the host may remove a file, its space must not stay taken.
  bool may_be_kept(NodeId id) const;
  void drop_unused_locked(NodeId id) REQUIRES(mutex_);
  void keep(NodeId id) REQUIRES(mutex_);
  bool has_room_for_attribute_file() const REQUIRES(mutex_);
  void add_attribute_file(NodeId id, std::shared_ptr<FileDescriptor> file) REQUIRES(mutex_);
  std::shared_ptr<FileDescriptor> take_attribute_file(NodeId id) REQUIRES(mutex_);
  void not_kept_any_more(NodeId id) REQUIRES(mutex_);
  /// Takes the id from its node before the kernel has it back: the other way round a death in between would
  /// leave a node with an id that may be another file's.
  void give_back(NodeId id, std::int32_t backing_id) REQUIRES(mutex_);
  void close(std::int32_t backing_id) const;

  NodeTable& nodes_;
  SessionState& state_;
  int device_ = -1;
  bool passthrough_ = false;
  mutable Mutex mutex_;
  struct HeldFile {
    std::shared_ptr<FileDescriptor> file;
    bool can_write = false;
  };
  static HeldFile held_file(std::shared_ptr<FileDescriptor> file);
  std::unordered_map<std::uint64_t, HeldFile> files_ GUARDED_BY(mutex_);
  std::unordered_map<std::uint64_t, std::shared_ptr<FileDescriptor>> attribute_files_ GUARDED_BY(mutex_);
  std::unordered_set<std::uint64_t> opening_ GUARDED_BY(mutex_);  // their files are being opened
  std::condition_variable_any opening_ended_;
  std::list<NodeId> kept_ GUARDED_BY(mutex_);  // unused backing ids, longest unused first
  std::unordered_map<std::uint64_t, std::list<NodeId>::iterator> kept_at_ GUARDED_BY(mutex_);
};

}  // namespace okcvm::fusefs
