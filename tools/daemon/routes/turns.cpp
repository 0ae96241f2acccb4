#include "tools/daemon/routes/turns.h"

#include <chrono>

namespace okcvm::daemon {

constexpr std::chrono::milliseconds kBetweenLooks{100};  // at who asked

Result<Turns::Turn> Turns::take(uid_t user, const std::function<bool()>& goes_on) {
  const MutexLock lock(mutex_);
  auto& [taken, waiting] = users_[user];
  const auto place = waiting.insert(waiting.end(), &lock);
  while (taken >= kMost || waiting.front() != &lock) {
    changed_.wait_for(mutex_, kBetweenLooks);
    if (goes_on()) continue;
    waiting.erase(place);
    drop_idle(user);
    changed_.notify_all();
    return fail(Code::kBusy, "the request was given up while it waited for others of the same user");
  }
  waiting.erase(place);
  ++taken;
  changed_.notify_all();
  return Turn(nullptr, [this, user](void*) { give_back(user); });
}

void Turns::give_back(uid_t user) {
  const MutexLock lock(mutex_);
  --users_[user].taken;
  drop_idle(user);
  changed_.notify_all();
}

void Turns::drop_idle(uid_t user) {
  const auto found = users_.find(user);
  if (found->second.taken == 0 && found->second.waiting.empty()) users_.erase(found);
}

}  // namespace okcvm::daemon
