#pragma once

#include <optional>

#include "fusefs/types.h"

namespace okcvm::fusefs {

/// While it stands, what this thread creates is the caller's from its first moment (setfsuid(2),
/// setfsgid(2)); the daemon's own rights over files stay. Giving a file away after it was made would show in
/// its ctime, and where the host can make changes too, could hit another one that took its place meanwhile.
class CallerIdentity {
 public:
  explicit CallerIdentity(const Request& caller);
  ~CallerIdentity();
  CallerIdentity(const CallerIdentity&) = delete;
  CallerIdentity& operator=(const CallerIdentity&) = delete;
};

/// Runs a system call that makes something, as the caller's.
template <typename Call>
auto as_caller(const Request& caller, Call call) {
  std::optional<CallerIdentity> identity;
  if (caller.uid != 0 || caller.gid != 0) identity.emplace(caller);
  return call();
}

}  // namespace okcvm::fusefs
