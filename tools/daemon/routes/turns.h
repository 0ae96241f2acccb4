#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <map>
#include <memory>

#include "policy/thread_annotations.h"

namespace okcvm::daemon {

/// Requests whose answers take much memory and work are served a few at a time for each user; the others
/// wait, for nobody else's. Thread-safe.
class Turns final {
 public:
  static constexpr int kMost = 4;

  /// Waits for a turn of this user's. It ends when what is answered is dropped.
  [[nodiscard]] std::shared_ptr<void> take(uid_t user) EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    while (taken_[user] >= kMost) changed_.wait(mutex_);
    ++taken_[user];
    return {nullptr, [this, user](void*) { give_back(user); }};
  }

 private:
  void give_back(uid_t user) EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (--taken_[user] == 0) taken_.erase(user);
    changed_.notify_all();
  }

  Mutex mutex_;
  std::condition_variable_any changed_;
  std::map<uid_t, int> taken_ GUARDED_BY(mutex_);
};

}  // namespace okcvm::daemon
