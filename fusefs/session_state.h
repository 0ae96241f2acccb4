#pragma once

#include <fcntl.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "fusefs/going_names.h"
#include "fusefs/session_mount.h"
#include "fusefs/shared_region.h"
#include "fusefs/types.h"
#include "policy/thread_annotations.h"

namespace okcvm::fusefs {

struct FileRecord;
struct StateHeader;

/// What a session's mount must remember across daemons besides its nodes: the handshake with the kernel,
/// which requests are being carried out, which files are open, the counters. Shared mapping; thread-safe.
class SessionState {
 public:
  static constexpr std::size_t kMaxInit = 512;
  static constexpr std::size_t kChanges = 64;      // that can be under way at once
  static constexpr std::size_t kReferences = 513;  // noted of one

  /// `corrupt` when what is there to be taken over is not usable.
  static Result<std::unique_ptr<SessionState>> open(const std::filesystem::path& path,
                                                    const std::filesystem::path& going, Start start);

  // -- Handshake
  void record_init(std::span<const std::byte> request);
  std::span<const std::byte> init() const;
  void set_protocol(std::uint32_t minor, bool passthrough, bool resend);
  std::uint32_t protocol_minor() const;
  bool passthrough() const;
  bool can_resend() const;

  // -- Requests that change something or hand out references, while they are carried out
  /// A started change; it counts as unfinished until it is destroyed, which must be after the reply.
  class Change {
   public:
    Change(SessionState* state, std::uint32_t slot) : state_(state), slot_(slot) {}
    Change(Change&& other) noexcept : state_(std::exchange(other.state_, nullptr)), slot_(other.slot_) {}
    /// What the next daemon is told of it (Request::note).
    Fact* fact() const;
    /// The references on nodes that were taken for its reply, by dead daemons first; 0: given back. Once the
    /// kernel lost a request's reply, nobody else knows of them. At most kReferences are noted.
    std::uint32_t references() const;
    std::uint64_t reference(std::uint32_t index) const;
    void set_reference(std::uint32_t index, std::uint64_t node);
    void add_reference(std::uint64_t node);
    ~Change() {
      if (state_) state_->finish(slot_);
    }
    /// It stays unanswered, and the next daemon is to know that it was begun.
    void leave() { state_ = nullptr; }

   private:
    SessionState* state_;
    std::uint32_t slot_;
  };
  /// Of a request that a dead daemon had started already, that daemon's fact stays.
  Change start(std::uint64_t unique, Fact fact = {});
  /// Whether a dead daemon had started this request, and the fact it noted.
  std::optional<Fact> unfinished(std::uint64_t unique) const;

  /// The nodes that references were taken on for replies that are under way.
  std::unordered_set<std::uint64_t> handed_out() const;

  /// Whether there are changes that a dead daemon had started which have not come again.
  bool has_unclaimed() const;
  /// To be called once the kernel was told of everything.
  void forget_unclaimed();
  /// Those of the changes that a dead daemon had started of which the kernel may not have heard yet: they
  /// have not come again, or they have and are not answered.
  std::vector<Fact> old_facts() const;

  /// While one exists, the workspace may differ from what the kernel was told of it.
  class Untold {
   public:
    explicit Untold(SessionState& state);
    ~Untold();
    Untold(const Untold&) = delete;
    Untold& operator=(const Untold&) = delete;

   private:
    SessionState& state_;
  };
  /// The workspace will differ from that when this daemon ends.
  void set_untold() EXCLUDES(mutex_);
  /// Whether one existed when a daemon died.
  bool has_untold() const;
  void set_all_told() EXCLUDES(mutex_);
  /// While one exists: these names go. Kept until the kernel was told of everything.
  void note_going(const std::vector<RelPath>& paths) EXCLUDES(mutex_);
  /// And with them perhaps these nodes, which are this still.
  void note_going(const GoingNames::Statuses& statuses) EXCLUDES(mutex_);
  std::vector<RelPath> going() const EXCLUDES(mutex_);
  GoingNames::Statuses going_statuses() const EXCLUDES(mutex_);
  bool knows_all_going() const EXCLUDES(mutex_);

  // -- Backing ids that no node has
  /// The last one that the kernel made, or one before it that a node has; it counts upwards. 0: none was
  /// noted yet.
  std::int32_t last_backing() const;
  void set_last_backing(std::int32_t id);
  /// One that is about to be given back; 0: none.
  std::int32_t closing_backing() const;
  void set_closing_backing(std::int32_t id);

  // -- Open files (session_state_files.cpp)
  struct OpenFile {
    NodeId node;
    int flags = 0;  // open(2)'s
  };
  /// ENFILE when the table is full.
  Result<FileId> add_file(const OpenFile& file, std::uint64_t unique) EXCLUDES(mutex_);
  std::optional<OpenFile> file(FileId id) const EXCLUDES(mutex_);
  std::optional<OpenFile> remove_file(FileId id) EXCLUDES(mutex_);
  /// The file that a request opened before its daemon died.
  std::optional<FileId> file_opened_by(std::uint64_t unique) const EXCLUDES(mutex_);
  std::vector<OpenFile> all_files() const EXCLUDES(mutex_);
  std::uint64_t open_count() const EXCLUDES(mutex_);
  /// That bytes of a node's file could not be written to the disk: each of its open files is to be told of
  /// that once, and the kernel tells only one descriptor of ours.
  void note_sync_error(NodeId node, int errno_value) EXCLUDES(mutex_);
  /// That of which no other request through this open file was told yet, as an errno value; 0: nothing.
  int take_sync_error(FileId id, std::uint64_t unique) EXCLUDES(mutex_);

  // -- Counters
  void count(std::uint32_t opcode, std::uint64_t nanoseconds, int errno_value);
  void count_denial();
  void fill(MountStatistics& statistics) const;

 private:
  explicit SessionState(SharedRegion region);
  void forget_going() REQUIRES(mutex_);
  StateHeader& header() const;
  FileRecord* find_file(FileId id) const REQUIRES(mutex_);
  void finish(std::uint32_t slot);
  Fact fact_of(std::uint32_t slot) const;
  std::atomic<std::uint64_t>& reference_at(std::uint32_t slot, std::uint32_t index) const;

  mutable Mutex mutex_;
  SharedRegion region_;
  struct Unfinished {
    std::uint32_t slot;
    Fact fact;
  };
  std::unordered_map<std::uint64_t, Unfinished> unfinished_;  // by request; set once, at take-over
  struct Slot {
    std::atomic<bool> inherited;  // from a dead daemon, and not come again; if it was answered it never will
    std::atomic<bool> is_old;     // from a dead daemon, and not finished
    std::atomic<bool> has_more_room;  // for references
  };
  std::array<Slot, kChanges> slots_;
  std::vector<std::uint32_t> free_files_ GUARDED_BY(mutex_);
  std::uint32_t next_file_ GUARDED_BY(mutex_) = 0;
  GoingNames going_ GUARDED_BY(mutex_);
};

}  // namespace okcvm::fusefs
