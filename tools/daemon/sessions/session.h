#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <optional>
#include <string>

#include "policy/error.h"
#include "policy/thread_annotations.h"
#include "tools/daemon/sessions/registry.h"

namespace okcvm::fusefs {
class SessionMount;
}
namespace okcvm::snapshots {
class Store;
}

namespace okcvm::daemon {

/// Also for a session of somebody else, whose existence is nobody's business.
Unexpected no_such_session();

/// Lets many use a session at once, or one change it alone. Waiting is bounded: then `busy`. Once closed for
/// good, `not_found`. Thread-safe.
class SessionGate final {
 public:
  class Pass final {
   public:
    Pass(Pass&& other) noexcept : gate_(std::exchange(other.gate_, nullptr)), alone_(other.alone_) {}
    Pass& operator=(Pass&&) = delete;
    ~Pass();

   private:
    friend class SessionGate;
    Pass(SessionGate& gate, bool alone) : gate_(&gate), alone_(alone) {}
    SessionGate* gate_;
    bool alone_;
  };
  Result<Pass> share() EXCLUDES(mutex_);
  Result<Pass> alone() EXCLUDES(mutex_);
  /// `busy` at once if anybody uses the session.
  Result<Pass> alone_now() EXCLUDES(mutex_);
  /// As alone(), for an end of what the session holds: work that takes long sees is_ending() meanwhile and
  /// stops.
  Result<Pass> alone_for_end() EXCLUDES(mutex_);
  bool is_ending() const { return ending_ > 0; }
  /// Whoever waits, or comes later, is told that the session is gone. Only by who holds the gate alone.
  void close() EXCLUDES(mutex_);

 private:
  void leave(bool alone) EXCLUDES(mutex_);
  Mutex mutex_;
  std::condition_variable_any changed_;
  int sharing_ GUARDED_BY(mutex_) = 0;
  bool is_alone_ GUARDED_BY(mutex_) = false;
  int waiting_alone_ GUARDED_BY(mutex_) = 0;
  bool closed_ GUARDED_BY(mutex_) = false;
  std::atomic<int> ending_ = 0;
};

/// One session in memory: its record, its mount while there is one, its snapshots while they are open.
/// Thread-safe; lock order: gate, then the record's mutex. Only who passed the gate alone replaces the mount
/// or the store.
class Session final {
 public:
  explicit Session(SessionRecord record);
  ~Session();

  const SessionId& id() const { return id_; }
  uid_t owner() const { return owner_; }
  SessionGate& gate() { return gate_; }
  /// Before the gate, and alone: for who takes or restores a snapshot and then says which checkpoint that is
  /// the files of.
  SessionGate& checkpoint_gate() { return checkpoint_gate_; }

  SessionRecord record() const EXCLUDES(mutex_);
  /// The record as its mount shows it: without a workdir that could not be bound this time, and with the
  /// reason.
  SessionRecord record_as_mounted() const EXCLUDES(mutex_);
  void set_record(SessionRecord record) EXCLUDES(mutex_);

  /// The mount, if the kernel still has it. Valid as long as it is held, though unmounted meanwhile perhaps.
  std::shared_ptr<fusefs::SessionMount> mount() const EXCLUDES(mutex_);
  /// The mount object though its mount may be gone.
  std::shared_ptr<fusefs::SessionMount> mount_object() const EXCLUDES(mutex_);
  /// `unbound`: the record's workdir, if this mount has to do without it.
  void set_mount(std::shared_ptr<fusefs::SessionMount> mount, std::optional<WorkdirFallback> unbound = {})
      EXCLUDES(mutex_);
  std::optional<WorkdirFallback> unbound_workdir() const EXCLUDES(mutex_);
  /// mount(), or `busy`: mount it first.
  Result<std::shared_ptr<fusefs::SessionMount>> need_mount() const;

  std::shared_ptr<snapshots::Store> store() const EXCLUDES(mutex_);
  void set_store(std::shared_ptr<snapshots::Store> store, std::string why_not) EXCLUDES(mutex_);
  /// Why there is no store; empty if none was asked for yet.
  std::string store_error() const EXCLUDES(mutex_);

  /// Held by who opens the store.
  Mutex& opening_store() { return opening_store_; }

  /// Notes a use, without a write.
  void touch();
  /// Milliseconds since 1970 of the last use, through the socket or the mount.
  std::int64_t last_used() const;
  /// last_used() if it is not what the registry holds.
  std::optional<std::int64_t> unsaved_use() const;
  void note_saved(std::int64_t use) { saved_ = use; }

 private:
  const SessionId id_;
  const uid_t owner_;
  SessionGate gate_;
  SessionGate checkpoint_gate_;
  std::atomic<std::int64_t> touched_;
  std::atomic<std::int64_t> saved_;

  Mutex opening_store_;  // before mutex_
  mutable Mutex mutex_;
  SessionRecord record_ GUARDED_BY(mutex_);
  std::shared_ptr<fusefs::SessionMount> mount_ GUARDED_BY(mutex_);
  std::optional<WorkdirFallback> unbound_workdir_ GUARDED_BY(mutex_);
  std::shared_ptr<snapshots::Store> store_ GUARDED_BY(mutex_);
  std::string store_error_ GUARDED_BY(mutex_);
};

using SessionPointer = std::shared_ptr<Session>;

}  // namespace okcvm::daemon
