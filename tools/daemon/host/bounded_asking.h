#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "policy/thread_annotations.h"

namespace okcvm::daemon {

/// How long is waited for what the daemon can do without.
inline constexpr std::chrono::milliseconds kAnswerTimeout{2000};

/// Asks file systems that may never answer (a network's) on threads of their own, and waits for a bounded
/// time. What is late is not asked again until its answer has come, nor is anything else once many are late:
/// each holds a thread. Copies share that. Thread-safe.
class BoundedAsking final {
 public:
  /// What `work` answers about the file at `path`; nothing where that takes longer than `limit`. The thread
  /// may outlive whoever asks, and this object: `work` owns all that it uses.
  template <typename Work>
  auto ask(const std::string& path, std::chrono::milliseconds limit, Work work) const
      -> std::optional<decltype(work())> {
    if (!late_->may_ask(path)) return std::nullopt;
    std::packaged_task<decltype(work())()> asking(work);
    auto answer = asking.get_future();
    try {
      std::thread([asking = std::move(asking), late = late_, path]() mutable {
        asking();
        late->answered(path);
      }).detach();
    } catch (const std::system_error&) {  // the host has no more threads
      return work();
    }
    const auto has_come = [&answer](std::chrono::milliseconds within) {
      return answer.wait_for(within) == std::future_status::ready;
    };
    if (has_come(limit) || !late_->note(path, [&] { return has_come({}); })) return answer.get();
    return std::nullopt;
  }

 private:
  class Late final {
   public:
    bool may_ask(const std::string& path) EXCLUDES(mutex_);
    /// False where the answer has come meanwhile.
    bool note(const std::string& path, const std::function<bool()>& has_come) EXCLUDES(mutex_);
    void answered(const std::string& path) EXCLUDES(mutex_);

   private:
    Mutex mutex_;
    std::set<std::string> paths_ GUARDED_BY(mutex_);
  };

  std::shared_ptr<Late> late_ = std::make_shared<Late>();
};

}  // namespace okcvm::daemon
