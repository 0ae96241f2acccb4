#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "policy/error.h"
#include "policy/thread_annotations.h"
#include "tools/daemon/http/message.h"

namespace okcvm::daemon {

/// Requests whose answers take much memory and work are served a few at a time for each user; the others wait
/// in their order, for nobody else's. Where one session's have to wait for each other anyway, they have one
/// turn at a time, so that they do not wait with the turns of other sessions. To be taken before anything
/// that others wait for. Thread-safe.
class Turns final {
 public:
  static constexpr std::size_t kMost = 4;
  using Turn = std::shared_ptr<HeldTurn>;

  /// With `one_a_session`, no two requests of one session are served at once.
  explicit Turns(bool one_a_session = false) : one_a_session_(one_a_session) {}

  /// Waits for a turn of this user's, which ends with what is returned. `busy` once `goes_on` says no. The
  /// session is empty where the request is of none.
  Result<Turn> take(uid_t user, const std::string& session, const std::function<bool()>& goes_on)
      EXCLUDES(mutex_);

 private:
  struct User {
    std::multiset<std::string> taken;  // by these sessions
    std::list<std::string> waiting;    // who came first is first
  };
  class Held;
  bool may_go(const User& user, std::list<std::string>::const_iterator who) const;
  bool is_wanted(uid_t user, const std::string& session) EXCLUDES(mutex_);
  void give_back(uid_t user, const std::string& session) EXCLUDES(mutex_);
  void drop_idle(uid_t user) REQUIRES(mutex_);

  const bool one_a_session_;
  Mutex mutex_;
  std::condition_variable_any changed_;
  std::map<uid_t, User> users_ GUARDED_BY(mutex_);
};

}  // namespace okcvm::daemon
