#include "tools/daemon/routes/turns.h"

#include <algorithm>
#include <chrono>

namespace okcvm::daemon {

constexpr std::chrono::milliseconds kBetweenLooks{100};  // at who asked

/// Nobody is before it but who waits for their own session.
bool Turns::User::may_go(std::list<std::string>::const_iterator who) const {
  return taken.size() < kMost && !has(*who) &&
         std::all_of(waiting.begin(), who, [this](const auto& session) { return has(session); });
}

Result<Turns::Turn> Turns::take(uid_t user, const std::string& session,
                                const std::function<bool()>& goes_on) {
  const MutexLock lock(mutex_);
  auto& entry = users_[user];
  const auto place = entry.waiting.insert(entry.waiting.end(), session);
  while (!entry.may_go(place)) {
    changed_.wait_for(mutex_, kBetweenLooks);
    if (goes_on()) continue;
    entry.waiting.erase(place);
    drop_idle(user);
    changed_.notify_all();
    return fail(Code::kBusy, "the request was given up while it waited for others of the same user");
  }
  entry.waiting.erase(place);
  entry.taken.insert(session);
  changed_.notify_all();
  return Turn(nullptr, [this, user, session](void*) { give_back(user, session); });
}

void Turns::give_back(uid_t user, const std::string& session) {
  const MutexLock lock(mutex_);
  auto& taken = users_[user].taken;
  taken.erase(taken.find(session));
  drop_idle(user);
  changed_.notify_all();
}

void Turns::drop_idle(uid_t user) {
  const auto found = users_.find(user);
  if (found->second.taken.empty() && found->second.waiting.empty()) users_.erase(found);
}

}  // namespace okcvm::daemon
