#pragma once

namespace okcvm {

// Places where a test may strike. `fault_point` stands before each step that changes the disk: with the
// environment OKCVM_FAULT="kill:N" the process dies by SIGKILL at the Nth one it passes. `fault_error`
// answers an errno that the caller treats as the step's failure: with "errno:NAME:N:ENOSPC" at the Nth time
// that NAME is asked (N 0: every time), else 0. Outside builds with OKCVM_FAULTS both are nothing.
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

}  // namespace okcvm
