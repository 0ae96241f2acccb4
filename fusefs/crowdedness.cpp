#include "fusefs/crowdedness.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

namespace okcvm::fusefs {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks{5};

}  // namespace

Crowdedness& Crowdedness::instance() {
  static Crowdedness crowdedness;
  return crowdedness;
}

Crowdedness::Crowdedness()
    : file_(::open("/proc/loadavg", O_RDONLY | O_CLOEXEC)), processors_(::sysconf(_SC_NPROCESSORS_ONLN)) {}

bool Crowdedness::is_there(std::chrono::steady_clock::time_point now) {
  auto next = next_look_.load(std::memory_order_relaxed);
  if (now >= next && next_look_.compare_exchange_strong(next, now + kBetweenLooks))
    is_there_.store(look(), std::memory_order_relaxed);
  return is_there_.load(std::memory_order_relaxed);
}

/// "0.20 0.18 0.12 1/80 11206": the fourth field begins with how many are running or could.
bool Crowdedness::look() const {
  std::array<char, 128> text;
  const ssize_t size = ::pread(file_.get(), text.data(), text.size() - 1, 0);
  if (size <= 0) return false;
  text[static_cast<std::size_t>(size)] = '\0';
  std::string_view rest(text.data());
  for (int field = 1; field < 4; ++field) rest.remove_prefix(std::min(rest.find(' ') + 1, rest.size()));
  return std::strtol(rest.data(), nullptr, 10) > processors_;
}

}  // namespace okcvm::fusefs
