#include "tools/daemon/host/clock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "policy/file_descriptor.h"

namespace okcvm::daemon {
namespace {

/// What only this process's user could have written.
std::optional<std::int64_t> read_number(const std::filesystem::path& path) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || status.st_uid != ::geteuid() || (status.st_mode & 022))
    return std::nullopt;
  std::array<char, 32> text{};
  const ssize_t size = ::read(file.get(), text.data(), text.size());
  std::int64_t number = 0;
  if (size <= 0 || std::from_chars(text.data(), text.data() + size, number).ec != std::errc() ||
      number < -kMost || number > kMost)
    return std::nullopt;
  return number;
}

void write_number(const std::filesystem::path& path, std::int64_t number) {
  ::unlink(path.c_str());  // one of an older version can be written to by anybody
  const FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  const auto text = std::to_string(number);
  if (file) [[maybe_unused]]
    const ssize_t written = ::write(file.get(), text.data(), text.size());
}

}  // namespace

timespec time_now() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  now.tv_nsec -= now.tv_nsec % 1'000'000;
  return now;
}

std::int64_t to_milliseconds(const timespec& time) {
  return static_cast<std::int64_t>(time.tv_sec) * 1000 + time.tv_nsec / 1'000'000;
}

timespec from_milliseconds(std::int64_t milliseconds) {
  std::int64_t seconds = milliseconds / 1000;
  std::int64_t rest = milliseconds % 1000;
  if (rest < 0) rest += 1000, --seconds;
  return timespec{static_cast<time_t>(seconds), static_cast<long>(rest * 1'000'000)};
}

std::int64_t ClockWatch::lead_now() {
  timespec since_boot{};
  ::clock_gettime(CLOCK_BOOTTIME, &since_boot);
  return time_now().tv_sec - since_boot.tv_sec;
}

ClockWatch::ClockWatch(std::filesystem::path file, Lead lead)
    : file_(std::move(file)), lead_(std::move(lead)), seen_(lead_()) {
  if (const auto kept = read_number(file_))
    seen_ = *kept;
  else
    write_number(file_, seen_);
}

bool ClockWatch::was_set() {
  constexpr std::int64_t kHour = 3600;
  const auto now = lead_();
  if (std::abs(now - seen_.exchange(now)) <= kHour) return false;
  write_number(file_, now);
  return true;
}

}  // namespace okcvm::daemon
