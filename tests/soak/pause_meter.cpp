#include "tests/soak/pause_meter.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <stdexcept>

#include "policy/file_descriptor.h"

namespace okcvm::soak {

/// Rounds that took longer than kNoteworthy; both processes see it.
struct PauseMeter::Shared {
  struct Round {
    Clock::time_point start, end;
  };
  std::atomic<std::size_t> count{0};
  std::array<Round, 100'000> rounds;
};

namespace {

constexpr std::chrono::milliseconds kNoteworthy{2};

bool one_round(const std::filesystem::path& name) {
  const FileDescriptor file(::open(name.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644));
  struct stat found {};
  return file && ::write(file.get(), "x", 1) == 1 && ::stat(name.c_str(), &found) == 0 &&
         found.st_size == 1 && ::unlink(name.c_str()) == 0;
}

}  // namespace

PauseMeter::PauseMeter(const std::filesystem::path& directory, const std::filesystem::path& stop) {
  void* const memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("mmap");
  shared_ = new (memory) Shared;
  pid_ = ::fork();
  if (pid_ < 0) throw std::runtime_error("fork");
  if (pid_ > 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto name = directory / "pause";
  while (::access(stop.c_str(), F_OK) != 0) {
    const auto start = Clock::now();
    if (!one_round(name)) ::_exit(1);
    const auto end = Clock::now();
    const auto index = shared_->count.load();
    if (end - start < kNoteworthy || index >= shared_->rounds.size()) continue;
    shared_->rounds[index] = {start, end};
    shared_->count = index + 1;
  }
  ::_exit(0);
}

PauseMeter::~PauseMeter() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ::munmap(shared_, sizeof(Shared));
}

bool PauseMeter::join() {
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  return status == 0;
}

double PauseMeter::longest_between(Clock::time_point from, Clock::time_point to) const {
  Clock::duration longest{0};
  for (std::size_t i = 0; i < shared_->count; ++i) {
    const auto& round = shared_->rounds[i];
    if (round.end > from && round.start < to) longest = std::max(longest, round.end - round.start);
  }
  return std::chrono::duration<double, std::milli>(longest).count();
}

}  // namespace okcvm::soak
