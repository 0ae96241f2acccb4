#pragma once

#include <cerrno>

namespace okcvm {

// Places where a test may strike. A `fault_point` stands before or after each step that changes what survives
// this process; `fault_error` answers an errno that the caller treats as the step's failure, 0 for none.
//
// The environment's OKCVM_FAULT asks for one of:
//   kill:N                die by SIGKILL at the Nth point that is passed
//   errno:NAME:N:ENOSPC   fail at the Nth time that NAME is asked (N 0: every time)
//   delay:NAME:MS         wait so many milliseconds at every point of this name
//   file:PATH             what the first line of this file asks for, as long as it is there
//
// With a file, counts begin when it appears, and a kill takes its line away first: the next process finds the
// rest.
//
// Outside builds with OKCVM_FAULTS all of it is nothing.
#ifdef OKCVM_FAULTS
void fault_point(const char* name);
int fault_error(const char* name);
/// Reads the environment again and counts from one: for tests that fork.
void fault_reset();
#else
inline void fault_point(const char* /*name*/) {}
constexpr int fault_error(const char* /*name*/) {
  return 0;
}
inline void fault_reset() {}
#endif

/// A system call with a point before it, where it may also fail, and a point after it.
template <typename Call>
auto with_faults(const char* name, Call call) -> decltype(call()) {
  fault_point(name);
  if (const int injected = fault_error(name)) {
    errno = injected;
    return -1;
  }
  const auto result = call();
#ifdef OKCVM_FAULTS
  const int error = errno;
  fault_point(name);
  errno = error;
#endif
  return result;
}

}  // namespace okcvm
