#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <shared_mutex>

#include "policy/zones.h"

namespace okcvm::fusefs {

/// Lets a session's operations pass, and holds them back while something must not change: while a change set
/// is cut or a restore runs, or while names move. Thread-safe; whoever closes may open from another thread. A
/// waiting closer goes before new passes, which std::shared_mutex does not promise.
class Gate {
 public:
  using Pass = std::shared_lock<Gate>;
  using Closing = std::lock_guard<Gate>;

  /// Waits for other closers and for every pass to end. Passes must not nest, nor be held while closing.
  void lock() {
    for (std::uint32_t seen = state_.load();;) {
      if (seen & kClosed) {
        state_.wait(seen);
        seen = state_.load();
      } else if (state_.compare_exchange_weak(seen, seen | kClosed)) {
        break;
      }
    }
    for (std::uint32_t seen = state_.load(); seen != kClosed; seen = state_.load()) state_.wait(seen);
  }

  void unlock() {
    state_.fetch_and(~kClosed);
    state_.notify_all();
  }

  void lock_shared() {
    for (std::uint32_t seen = state_.load(std::memory_order_relaxed);;) {
      if (seen & kClosed) {
        state_.wait(seen);
        seen = state_.load();
      } else if (state_.compare_exchange_weak(seen, seen + 1)) {
        return;
      }
    }
  }
  void unlock_shared() {
    if (state_.fetch_sub(1) == (kClosed | 1)) state_.notify_all();
  }

 private:
  static constexpr std::uint32_t kClosed = 1u << 31;
  std::atomic<std::uint32_t> state_{0};
};

/// Two gates: a workdir's file system that hangs keeps no request of the kernel from ending that a snapshot
/// or a restore waits for.
struct Gates {
  Gate managed;
  Gate workdir;

  Gate& to(Zone zone) { return zone == Zone::kWorkdir ? workdir : managed; }
};

/// While names in a zone are changed by path, as the kernel's locks make its own changes of names: closes
/// both gates for the workdir, since a way there may begin elsewhere.
class ClosedFor final {
 public:
  ClosedFor(Zone zone, Gates& gates) {
    if (zone == Zone::kWorkdir) workdir_ = std::unique_lock(gates.workdir);  // may take long: first
    managed_ = std::unique_lock(gates.managed);
  }
  void unlock() {
    managed_.unlock();
    if (workdir_) workdir_.unlock();
  }

 private:
  std::unique_lock<Gate> workdir_;
  std::unique_lock<Gate> managed_;
};

}  // namespace okcvm::fusefs
