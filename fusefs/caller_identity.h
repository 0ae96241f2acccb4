#pragma once

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

  /// From now on this thread stays who it was last: the next request is probably of the same caller, and each
  /// change is a system call. Only for threads that create for callers alone, or as_daemon().
  static void keep_in_this_thread();
  /// This thread is the daemon again.
  static void drop();
};

/// While it stands, this thread may not do what only an inode's owner may (CAP_FOWNER).
class WithoutFowner {
 public:
  WithoutFowner();
  ~WithoutFowner();
  WithoutFowner(const WithoutFowner&) = delete;
  WithoutFowner& operator=(const WithoutFowner&) = delete;
};

/// Runs a system call that makes something, as the caller's.
template <typename Call>
auto as_caller(const Request& caller, Call call) {
  const CallerIdentity identity(caller);
  return call();
}

/// Runs a system call that takes a name away, which in a sticky directory of others is refused (EPERM) unless
/// the caller owns what stands there in that moment.
template <typename Call>
auto as_caller_without_fowner(const Request& caller, Call call) {
  const CallerIdentity identity(caller);
  const WithoutFowner rights;
  return call();
}

/// Runs what may make something of the daemon's own, in a thread that may have kept a caller's identity.
template <typename Call>
auto as_daemon(Call call) {
  CallerIdentity::drop();
  return call();
}

}  // namespace okcvm::fusefs
