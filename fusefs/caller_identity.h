#pragma once

#include <optional>

#include "fusefs/directories.h"
#include "fusefs/types.h"
#include "policy/zones.h"

namespace okcvm::fusefs {

/// While it stands, what this thread creates is the caller's from its first moment (setfsuid(2),
/// setfsgid(2)); the daemon's own rights over files stay. For directories that the host can change too:
/// giving a file away by its name after it was made could hit another one that was put in its place
/// meanwhile.
class CallerIdentity {
 public:
  explicit CallerIdentity(const Request& caller);
  ~CallerIdentity();
  CallerIdentity(const CallerIdentity&) = delete;
  CallerIdentity& operator=(const CallerIdentity&) = delete;
};

/// Runs a system call that makes something in a directory, as the caller where the host can change it too.
template <typename Call>
auto as_caller(const Request& caller, const Directory& directory, Call call) {
  std::optional<CallerIdentity> identity;
  if (rule_of(directory.zone).changes_underneath) identity.emplace(caller);
  return call();
}

}  // namespace okcvm::fusefs
