#include "policy/fault.h"

#ifdef OKCVM_FAULTS

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace okcvm {
namespace {

struct ErrnoName {
  std::string_view name;
  int value;
};
constexpr std::array kErrnoNames{ErrnoName{"ENOSPC", ENOSPC}, ErrnoName{"EIO", EIO},
                                 ErrnoName{"EDQUOT", EDQUOT}, ErrnoName{"EACCES", EACCES},
                                 ErrnoName{"ENOMEM", ENOMEM}};

int errno_of(std::string_view text) {
  for (const auto& row : kErrnoNames)
    if (text == row.name) return row.value;
  return 0;
}

std::vector<std::string> fields_of(const std::string& text) {
  std::vector<std::string> fields;
  for (std::size_t start = 0; start <= text.size();) {
    const auto end = std::min(text.find(':', start), text.size());
    fields.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return fields;
}

/// What is asked for, and how often each was passed. Not thread-safe.
class Plan {
 public:
  /// Brings the plan up to date with the environment and the file that it names.
  void read() {
    if (!is_read_) {
      is_read_ = true;
      const char* text = std::getenv("OKCVM_FAULT");
      const std::string fault = text ? text : "";
      if (fault.starts_with("file:"))
        file_ = fault.substr(5);
      else
        understand(fault);
    }
    if (!file_.empty()) read_file();
  }
  /// Counts a point; true at that where the process is to die.
  bool counts_to_death() { return ++points_ == kill_at_; }
  std::chrono::milliseconds delay_at(std::string_view name) const {
    return name == delay_name_ ? delay_ : std::chrono::milliseconds(0);
  }
  int error_at(std::string_view name) {
    if (error_ == 0 || error_name_ != name) return 0;
    ++asked_;
    return error_at_ == 0 || asked_ == error_at_ ? error_ : 0;
  }
  void take_line_away() const {
    if (file_.empty()) return;
    std::ifstream in(file_);
    std::string first;
    std::getline(in, first);
    const std::string rest(std::istreambuf_iterator<char>(in), {});
    in.close();
    if (rest.empty())
      ::unlink(file_.c_str());
    else
      std::ofstream(file_, std::ios::trunc) << rest;
  }

 private:
  void read_file() {
    struct stat status {};
    const bool is_there = ::stat(file_.c_str(), &status) == 0;
    const auto seen = is_there ? std::optional(status.st_ino) : std::nullopt;
    if (seen == seen_) return;
    seen_ = seen;
    std::string line;
    if (is_there) std::getline(std::ifstream(file_) >> std::ws, line);
    understand(line);
  }

  void understand(const std::string& fault) {
    kill_at_ = error_at_ = -1;
    points_ = asked_ = 0;
    error_ = 0;
    error_name_.clear();
    delay_name_.clear();
    const auto fields = fields_of(fault);
    if (fields[0] == "kill" && fields.size() == 2) kill_at_ = std::atol(fields[1].c_str());
    if (fields[0] == "errno" && fields.size() == 4) {
      error_name_ = fields[1];
      error_at_ = std::atol(fields[2].c_str());
      error_ = errno_of(fields[3]);
    }
    if (fields[0] == "delay" && fields.size() == 3) {
      delay_name_ = fields[1];
      delay_ = std::chrono::milliseconds(std::atol(fields[2].c_str()));
    }
  }

  bool is_read_ = false;
  std::string file_;
  std::optional<ino_t> seen_;
  long kill_at_ = -1;
  std::string error_name_;
  long error_at_ = -1;
  int error_ = 0;
  std::string delay_name_;
  std::chrono::milliseconds delay_{0};
  long points_ = 0;
  long asked_ = 0;
};

struct GuardedPlan {
  std::mutex mutex;
  Plan plan;
};

GuardedPlan& guarded_plan() {
  static GuardedPlan the_plan;
  return the_plan;
}

}  // namespace

void fault_point(const char* name) {
  auto& [mutex, plan] = guarded_plan();
  std::chrono::milliseconds delay{0};
  {
    const std::lock_guard lock(mutex);
    plan.read();
    if (plan.counts_to_death()) {
      plan.take_line_away();
      ::kill(::getpid(), SIGKILL);
    }
    delay = plan.delay_at(name);
  }
  if (delay.count() > 0) std::this_thread::sleep_for(delay);
}

int fault_error(const char* name) {
  auto& [mutex, plan] = guarded_plan();
  const std::lock_guard lock(mutex);
  plan.read();
  return plan.error_at(name);
}

void fault_reset() {
  auto& [mutex, plan] = guarded_plan();
  const std::lock_guard lock(mutex);
  plan = Plan();
}

}  // namespace okcvm

#endif
