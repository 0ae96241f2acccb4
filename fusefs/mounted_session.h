#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fusefs/channel.h"
#include "fusefs/dispatch.h"
#include "fusefs/notifier.h"
#include "fusefs/path_files.h"
#include "fusefs/request_loop.h"
#include "fusefs/session_mount.h"

namespace okcvm::fusefs {

/// The parts of a session's mount, put together: the kernel's requests through channel, loop and dispatcher
/// to the operations; the daemon's through the files by path. Its interface is SessionMount's.
class MountedSession final : public SessionMount {
 public:
  static Result<std::unique_ptr<SessionMount>> start(MountConfig config, FileDescriptor device, Start start);
  ~MountedSession() override;

  Result<void> unmount(bool force) override;
  void abandon() override;
  bool is_held_up() const override { return is_held_up_; }
  int device() const override { return device_.get(); }
  bool is_mounted() const override { return loop_ && !loop_->ended() && !is_held_up_; }
  bool is_in_place() const override;
  Files& files() override { return files_; }

  ChangeSet cut_changes() override;
  void retire_changes(const ChangeSet& changes) override { changes_->retire(changes); }
  void forget_unknown() override { operations_.forget_unknown(); }
  void changes_count_from(const std::string& state) override { changes_->counts_from(state); }
  void mark_changed(const std::vector<RelPath>& paths) override;
  std::unique_ptr<Hold> hold() override;

  Result<void> load_skill(Skill skill) override;
  bool shows_skill(const Name& name) const override { return workspace_->skill(name.text()).has_value(); }
  Result<bool> renew_skill(Skill skill) override;
  Result<void> unload_skill(const Name& name) override;
  void set_metadata(std::string metadata) override;
  MountStatistics statistics() const override;

 private:
  class SessionHold;

  MountedSession(MountConfig config, FileDescriptor device, std::unique_ptr<Workspace> workspace,
                 std::unique_ptr<NodeTable> nodes, std::unique_ptr<ChangeLog> changes,
                 std::unique_ptr<SessionState> state, Start start);
  Result<void> run();
  void tell_of_skill(const Name& name);
  /// Waits so long for requests that were begun. False: is_held_up(), and the rest is left for the next call.
  bool end_loop(std::chrono::milliseconds timeout);
  Result<void> put_away();
  /// Whether no file is open; the kernel tells of a close(2) a moment later.
  bool all_closed_within(std::chrono::milliseconds time) const;
  void settle_after_take_over();
  void tell_after_take_over();
  void tell_everything();
  std::optional<RelPath> tell_of(const Node& node);
  void add_names_in(NodeId id, std::vector<RelPath>& paths);
  void forget_names();
  enum class Stores : std::uint8_t { kSnapshotted, kAll };
  void fetch_mapped_stores(Stores which);
  ChangeSet cut_held();
  void invalidate(const std::vector<RelPath>& changed);

  const MountConfig config_;
  FileDescriptor device_;
  std::optional<dev_t> mounted_as_;  // its device number
  std::unique_ptr<Workspace> workspace_;
  std::unique_ptr<NodeTable> nodes_;
  std::unique_ptr<ChangeLog> changes_;
  std::unique_ptr<SessionState> state_;
  Backings backings_;
  Gates gates_;
  Notifier notifier_;
  Operations operations_;
  PathFiles files_;
  Channel channel_;
  Dispatcher dispatcher_;
  fuse_session* session_ = nullptr;
  std::unique_ptr<RequestLoop> loop_;
  std::promise<void> ready_;  // the handshake with the kernel is done
  /// What was left where the next mount would have it too is put away once.
  enum class Phase : std::uint8_t { kServing, kUnmounted, kPutAway, kAbandoned };
  Phase phase_ = Phase::kServing;
  std::atomic<bool> is_held_up_{false};
};

}  // namespace okcvm::fusefs
