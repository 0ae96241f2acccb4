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

/// Two gates: a file system of the host's that hangs (a workdir's) keeps none of its operations from ending
/// that a snapshot or a restore waits for. Locked both are closed.
struct Gates {
  Gate managed;
  Gate shared;  // to zones that the host changes, too

  Gate& to(Zone zone) { return rule_of(zone).changes_underneath ? shared : managed; }

  void lock() {
    shared.lock();  // first: where it waits for long, the other one is still open
    managed.lock();
  }
  void unlock() {
    managed.unlock();
    shared.unlock();
  }
};

}  // namespace okcvm::fusefs
