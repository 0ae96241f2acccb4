#include "tools/daemon/routes/turns.h"

#include <algorithm>
#include <chrono>

namespace okcvm::daemon {

constexpr std::chrono::milliseconds kBetweenLooks{100};  // at who asked

class Turns::Held final : public HeldTurn {
 public:
  Held(Turns& turns, uid_t user, std::string session)
      : turns_(turns), user_(user), session_(std::move(session)) {}
  ~Held() override { turns_.give_back(user_, session_); }
  bool is_wanted() const override { return turns_.is_wanted(user_, session_); }

 private:
  Turns& turns_;
  const uid_t user_;
  const std::string session_;
};

/// Nobody is before it but who waits for their own session.
bool Turns::may_go(const User& user, std::list<std::string>::const_iterator who) const {
  const auto has_to_wait = [&](const std::string& session) {
    return one_a_session_ && user.taken.contains(session);
  };
  return user.taken.size() < kMost && !has_to_wait(*who) &&
         std::all_of(user.waiting.begin(), who, has_to_wait);
}

Result<Turns::Turn> Turns::take(uid_t user, const std::string& session,
                                const std::function<bool()>& goes_on) {
  const MutexLock lock(mutex_);
  auto& entry = users_[user];
  const auto place = entry.waiting.insert(entry.waiting.end(), session);
  while (!may_go(entry, place)) {
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
  return std::make_shared<Held>(*this, user, session);
}

/// Where not all are taken, only who waits for their own session waits.
bool Turns::is_wanted(uid_t user, const std::string& session) {
  const MutexLock lock(mutex_);
  const auto& entry = users_.at(user);
  if (entry.taken.size() >= kMost) return !entry.waiting.empty();
  return std::find(entry.waiting.begin(), entry.waiting.end(), session) != entry.waiting.end();
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
