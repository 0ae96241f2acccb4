#include "tools/cli/output.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string_view>

#include "tools/cli/text.h"

namespace okcvm::cli {

Outcome<void> write_all(int descriptor, std::string_view bytes, const std::string& name) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor, bytes.data(), bytes.size());
    if (count >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(count));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno == EAGAIN) {  // a terminal or pipe that someone else made non-blocking
      pollfd state{descriptor, POLLOUT, 0};
      ::poll(&state, 1, -1);
      continue;
    }
    auto failure = system_failure(errno, name).value();
    failure.silent = errno == EPIPE;
    return tl::unexpected(failure);
  }
  return {};
}

bool is_dumb_terminal() {
  const char* const name = std::getenv("TERM");
  return name != nullptr && std::string_view(name) == "dumb";
}

Output::Output() : terminal_(::isatty(STDOUT_FILENO) == 1) {}

Outcome<void> Output::write(std::string_view bytes) const {
  return write_all(STDOUT_FILENO, bytes, "standard output");
}

ProgressLine::ProgressLine(std::string what)
    : what_(std::move(what)),
      terminal_(::isatty(STDERR_FILENO) == 1 && !is_dumb_terminal()),
      next_(std::chrono::steady_clock::now() + std::chrono::seconds(1)) {}

ProgressLine::~ProgressLine() {
  if (shown_) (void)write_all(STDERR_FILENO, "\r\x1b[K", "standard error");
}

void ProgressLine::show(std::string_view phase, std::uint64_t done, std::uint64_t total, bool bytes) {
  const auto now = std::chrono::steady_clock::now();
  if (!terminal_ || now < next_) return;
  next_ = now + std::chrono::milliseconds(100);
  shown_ = true;
  const auto amount = [&](std::uint64_t value) { return bytes ? human_size(value) : std::to_string(value); };
  std::string line = "\r" + visible(what_);
  if (!phase.empty()) line += ": " + visible(phase);
  if (done > 0 || total > 0) line += "  " + amount(done);
  if (total > 0)
    line += " of " + amount(total) + " (" + std::to_string(done >= total ? 100 : done * 100 / total) + "%)";
  (void)write_all(STDERR_FILENO, line + "\x1b[K", "standard error");
}

}  // namespace okcvm::cli
