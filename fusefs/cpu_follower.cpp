#include "fusefs/cpu_follower.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <string_view>

namespace okcvm::fusefs {
namespace {

FileDescriptor open_status(std::uint32_t id) {
  char path[32];
  std::snprintf(path, sizeof path, "/proc/%u/stat", id);
  return FileDescriptor(::open(path, O_RDONLY | O_CLOEXEC));
}

/// Field 39 of /proc/<pid>/stat.
int processor_of(int status) {
  char buffer[1024];
  const ssize_t size = ::pread(status, buffer, sizeof buffer, 0);
  if (size <= 0) return -1;
  std::string_view text(buffer, static_cast<std::size_t>(size));
  text.remove_prefix(std::min(text.rfind(')') + 1, text.size()));  // the name may hold anything
  for (int field = 2; field < 38; ++field) {
    const auto space = text.find(' ', 1);
    if (space == text.npos) return -1;
    text.remove_prefix(space);
  }
  int cpu = -1;
  std::from_chars(text.data() + 1, text.data() + text.size(), cpu);
  return cpu;
}

/// Where the daemon as a whole may run: its main thread never follows anybody.
const cpu_set_t& allowed_processors() {
  static const cpu_set_t cpus = [] {
    cpu_set_t all;
    CPU_ZERO(&all);
    ::sched_getaffinity(::getpid(), sizeof all, &all);
    return all;
  }();
  return cpus;
}

}  // namespace

int processor_of_thread(std::uint32_t id) {
  const auto status = open_status(id);
  return status ? processor_of(status.get()) : -1;
}

CpuFollower::CpuFollower() {
  stay_on(-1);  // a thread starts with the place of the one that made it
}

void CpuFollower::follow(std::uint32_t pid, bool slept) {
  if (!pid) return;
  if (pid == pid_) {
    strangers_ = 0;
    streak_ += slept ? kAwakeAsOneSlept : 1;
    if (streak_ >= next_look_) look();
    return;
  }
  start_with(pid);
  if (++strangers_ == kManyStrangers && cpu_ >= 0) stay_on(-1);
}

void CpuFollower::settle_on(int processor) {
  if (pid_ != 0) start_with(0);
  if (processor != cpu_) stay_on(processor);
}

void CpuFollower::start_with(std::uint32_t pid) {
  pid_ = pid;
  streak_ = 0;
  next_look_ = kFirstLook;
  pause_ = kShortestPause;
  status_.reset();
}

void CpuFollower::look() {
  next_look_ = streak_ + pause_;
  if (!status_) status_ = open_status(pid_);
  if (!status_) return;
  const int cpu = processor_of(status_.get());
  if (cpu < 0 || cpu == cpu_) return;
  stay_on(cpu);
  pause_ = std::min(2 * pause_, kLongestPause);
}

void CpuFollower::stay_on(int cpu) {
  cpu_set_t cpus = allowed_processors();
  if (cpu >= 0) {
    if (!CPU_ISSET(cpu, &cpus)) return;
    CPU_ZERO(&cpus);
    CPU_SET(cpu, &cpus);
  }
  if (::sched_setaffinity(0, sizeof cpus, &cpus) == 0) cpu_ = cpu;
}

}  // namespace okcvm::fusefs
