#pragma once

#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fusefs/files.h"
#include "policy/change_set.h"
#include "policy/error.h"
#include "policy/file_descriptor.h"
#include "policy/rel_path.h"
#include "policy/session_id.h"

namespace okcvm::fusefs {

enum class Passthrough : std::uint8_t { kAuto, kOff };

/// A directory of the host shown read-only under skills/NAME.
struct Skill {
  Name name;
  FileDescriptor directory;  // O_RDONLY | O_DIRECTORY
};

/// All that a mount needs to know. Paths are absolute and belong to the host; none is ever shown to a
/// session.
struct MountConfig {
  SessionId id;
  std::filesystem::path mount_point;  // made if absent; must be empty; removed by unmount
  std::filesystem::path workspace;    // <state-dir>/workspaces/<id>; its parent exists, it may not (laziness)
  std::filesystem::path runtime_dir;  // <run-dir>/sessions: where the state that outlives the daemon is kept
  uid_t owner_uid = 0;
  gid_t owner_gid = 0;
  mode_t root_mode = 0700;
  timespec created_at{};
  Passthrough passthrough = Passthrough::kAuto;
  /// Off: as on a file system without file handles, a descriptor is kept open for every node (for tests;
  /// slower; ENFILE past descriptors_for_one_session()).
  bool file_handles = true;
  bool record_changes = true;      // off: no snapshots will be taken of this session
  bool is_as_snapshotted = false;  // the workspace was written out of the newest snapshot and not used yet
  std::vector<std::string> symlink_host_roots;
  std::vector<Skill> skills;
  FileDescriptor workdir;        // O_RDONLY | O_DIRECTORY of the bound workdir, if any
  bool expects_workdir = false;  // one is bound; if it was not found, the next daemon may find it
  std::string metadata;          // the bytes of .metadata.json
  std::function<void(std::string_view operation, const RelPath& path, int errno_value)> on_denial;
};

/// How a session's mount is being used. Counters are since the mount; they survive the daemon.
struct MountStatistics {
  struct Operation {
    std::string_view name;  // the FUSE opcode: "LOOKUP"
    std::uint64_t count = 0;
    std::uint64_t nanoseconds = 0;  // total time to answer
    // latency[i]: answered within 2^i microseconds (not cumulative); the last: or later
    std::array<std::uint64_t, 24> latency{};
  };
  std::vector<Operation> operations;                  // those with a count
  std::vector<std::pair<int, std::uint64_t>> errors;  // by errno
  std::uint64_t denials = 0;                          // EROFS, EPERM and EXDEV of our own rules
  std::uint64_t nodes = 0;                            // inodes that the kernel knows
  std::uint64_t open_files = 0;
  std::uint64_t open_directories = 0;  // descriptors in the directory cache
  bool passthrough = false;            // in use
  std::uint32_t protocol_minor = 0;    // of the kernel, FUSE 7.x
  bool survives_daemon = false;        // the kernel can resend, inodes are found again
  std::chrono::system_clock::time_point
      last_used{};  // to the second; the epoch if not since this daemon began
};

/// One session's file system: the mount, its request loop and the state behind it. Thread-safe.
/// Nothing here is a singleton; a daemon holds as many as it has sessions.
class SessionMount {
 public:
  /// Mounts and serves. `busy` if the mount point is in use or not empty, `not_found` if its parent is
  /// missing, `forbidden` if /dev/fuse cannot be used.
  static Result<std::unique_ptr<SessionMount>> mount(MountConfig config);

  /// Takes over a live mount whose daemon is gone: `device` is its /dev/fuse descriptor and runtime_dir holds
  /// its state (DESIGN section 7). Calls that were pending complete. `corrupt` if the state is not usable, as
  /// where the file system has no file handles; then nothing has been done and the caller detaches the mount
  /// and mounts anew.
  static Result<std::unique_ptr<SessionMount>> take_over(MountConfig config, FileDescriptor device);

  /// Unmounts unless already unmounted or abandoned, and ends the request loop.
  virtual ~SessionMount() = default;

  /// Detaches the mount (MNT_DETACH: open files go on until they are closed), removes the mount point and the
  /// runtime state. `busy` when files are open and `force` is false, or when it is_held_up().
  virtual Result<void> unmount(bool force) = 0;

  /// Ends the request loop and leaves the mount to the next daemon, which take_over()s with a duplicate of
  /// device(). Requests already read are answered first.
  virtual void abandon() = 0;

  /// Whether unmount() or abandon() ended with a request still in hand, as where a file system does not
  /// answer (a skill's, the workdir's): its destructor would wait for that. To be unmounted once more, unless
  /// abandoned.
  virtual bool is_held_up() const = 0;

  /// The /dev/fuse descriptor, for whoever keeps it across daemons. Owned by this object.
  virtual int device() const = 0;

  /// Set while the kernel still has the mount; cleared when someone unmounts it from outside.
  virtual bool is_mounted() const = 0;
  /// Whether something is mounted at the mount point: the kernel has a mount that was taken away from there
  /// for as long as a program stands in it.
  virtual bool is_in_place() const = 0;

  /// The driver's own operations, by path, for the control socket.
  virtual Files& files() = 0;

  // -- Changes and restores

  /// Cuts the change set: every change made before the call is in it, every later one goes to the next. Files
  /// open for writing are in both. Namespace operations wait for the moment this takes.
  virtual ChangeSet cut_changes() = 0;
  /// The snapshot of this set is safe: forget it. Without this call the next cut contains it again.
  virtual void retire_changes(const ChangeSet& changes) = 0;
  /// What is not retired is counted from this state from now on (ChangeSet::counts_from).
  virtual void changes_count_from(const std::string& state) = 0;
  /// Lets go of removed files that the kernel does not know any more, of which a daemon died before it heard.
  /// To be called now and then.
  virtual void forget_unknown() = 0;
  /// Puts paths into the next cut (files found to be still written through a mapping, say).
  virtual void mark_changed(const std::vector<RelPath>& paths) = 0;

  /// While it lives, requests of this session wait (reads and writes of open passthrough files go on).
  class Hold {
   public:
    virtual ~Hold() = default;
    /// Cuts while holding.
    virtual ChangeSet cut_changes() = 0;
    /// These names are about to be removed or given to something else, until invalidate(). Who has open what
    /// stands there keeps it, whatever daemons die.
    virtual void will_replace(const std::vector<RelPath>& paths) = 0;
    /// The workspace was changed behind the driver; `changed` lists every path that was touched. What the
    /// kernel remembers of them is stale before this object's destructor returns (only then can requests that
    /// were held back go on, and the kernel may need that to forget).
    virtual void invalidate(const std::vector<RelPath>& changed) = 0;
  };
  virtual std::unique_ptr<Hold> hold() = 0;

  // -- What a session shows

  /// Shows a skill; `already_exists` if its name is taken.
  virtual Result<void> load_skill(Skill skill) = 0;
  virtual bool shows_skill(const Name& name) const = 0;
  /// Shows another directory under the name of a skill that is loaded; what is open in the former one stays
  /// readable. False if it is shown already; `not_found` if the skill is not loaded.
  virtual Result<bool> renew_skill(Skill skill) = 0;
  /// Hides it; descriptors already open in it stay readable. `not_found` if it is not loaded.
  virtual Result<void> unload_skill(const Name& name) = 0;
  /// Replaces the bytes of .metadata.json.
  virtual void set_metadata(std::string metadata) = 0;

  virtual MountStatistics statistics() const = 0;
};

/// Detaches every mount of type fuse.okcvm directly below `mount_root` that `is_ours` accepts and nobody
/// serves, and removes its mount point; also one that says nothing for a second, if `runtime_dir` tells that
/// a daemon of ours served it. Returns the names detached ("okcvm-12ab34cd").
std::vector<std::string> detach_stale_mounts(const std::filesystem::path& mount_root,
                                             const std::filesystem::path& runtime_dir,
                                             const std::function<bool(std::string_view name)>& is_ours);

/// Where a record of changes that outlives its mount is written before it gets its name; a kill leaves it
/// there.
inline std::filesystem::path draft_of_record(const std::filesystem::path& record) {
  return record.parent_path() / ("." + record.filename().string());
}

/// Whether a directory is the one that a live mount whose daemon is gone had as its workdir, as far as that
/// is known: what the kernel has of it is looked for there.
bool may_be_workdir(const std::filesystem::path& runtime_dir, const SessionId& id, int directory);

/// Whether a daemon that is dead left something of a session's mount in `runtime_dir`.
bool has_left_mount(const std::filesystem::path& runtime_dir, const SessionId& id);

/// Removes what a daemon that is dead left of a session's mount in `runtime_dir`; there is nothing to take
/// over then.
void forget_mount(const std::filesystem::path& runtime_dir, const SessionId& id);

}  // namespace okcvm::fusefs
