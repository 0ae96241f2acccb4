#include "policy/fault.h"

#ifdef OKCVM_FAULTS

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <mutex>
#include <string>

namespace okcvm {
namespace {

struct ErrnoName {
  const char* name;
  int value;
};
constexpr std::array kErrnoNames{ErrnoName{"ENOSPC", ENOSPC}, ErrnoName{"EIO", EIO},
                                 ErrnoName{"EDQUOT", EDQUOT}, ErrnoName{"EACCES", EACCES},
                                 ErrnoName{"ENOMEM", ENOMEM}};

/// What the environment asks for, and how often each was passed. Thread-safe.
struct Plan {
  std::mutex mutex;
  bool is_read = false;
  long kill_at = -1;
  std::string error_name;
  long error_at = -1;
  int error = 0;
  long points = 0;
  long asked = 0;

  void read() {
    if (is_read) return;
    is_read = true;
    const char* text = std::getenv("OKCVM_FAULT");
    const std::string fault = text ? text : "";
    if (fault.starts_with("kill:")) kill_at = std::atol(fault.c_str() + 5);
    if (!fault.starts_with("errno:")) return;
    const auto name_end = fault.find(':', 6);
    const auto count_end = name_end == fault.npos ? fault.npos : fault.find(':', name_end + 1);
    if (count_end == fault.npos) return;
    error_name = fault.substr(6, name_end - 6);
    error_at = std::atol(fault.c_str() + name_end + 1);
    for (const auto& row : kErrnoNames)
      if (fault.substr(count_end + 1) == row.name) error = row.value;
  }
};

Plan& plan() {
  static Plan the_plan;
  return the_plan;
}

}  // namespace

void fault_point(const char* /*name*/) {
  Plan& the_plan = plan();
  const std::lock_guard lock(the_plan.mutex);
  the_plan.read();
  if (++the_plan.points == the_plan.kill_at) ::kill(::getpid(), SIGKILL);
}

int fault_error(const char* name) {
  Plan& the_plan = plan();
  const std::lock_guard lock(the_plan.mutex);
  the_plan.read();
  if (the_plan.error == 0 || the_plan.error_name != name) return 0;
  ++the_plan.asked;
  return the_plan.error_at == 0 || the_plan.asked == the_plan.error_at ? the_plan.error : 0;
}

void fault_reset() {
  Plan& the_plan = plan();
  const std::lock_guard lock(the_plan.mutex);
  the_plan.is_read = false;
  the_plan.kill_at = the_plan.error_at = -1;
  the_plan.error = 0;
  the_plan.points = the_plan.asked = 0;
}

}  // namespace okcvm

#endif
