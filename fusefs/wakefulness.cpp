#include "fusefs/wakefulness.h"

#include <fcntl.h>
#include <unistd.h>

#include <exception>
#include <thread>

#include "policy/file_descriptor.h"

namespace okcvm::fusefs {
namespace {

constexpr const char* kDevice = "/dev/cpu_dma_latency";

// A few processors wait awake. Of many, most have nothing to do with the matter: they may sleep, but lightly.
constexpr unsigned kFewProcessors = 8;
constexpr std::int32_t kAwake = 0;
constexpr std::int32_t kLightly = 2;

constexpr std::chrono::seconds kEndAfter{1};

std::int64_t now() {
  return Wakefulness::Clock::now().time_since_epoch().count();
}

}  // namespace

Wakefulness& Wakefulness::instance() {
  static auto& one = *new Wakefulness;  // its thread may outlive main()
  return one;
}

Wakefulness::Wakefulness()
    : microseconds_(std::thread::hardware_concurrency() <= kFewProcessors ? kAwake : kLightly) {}

void Wakefulness::start() try {
  const MutexLock lock(mutex_);
  if (!running_) std::thread([this] { run(); }).detach();
  running_ = true;
  changed_.notify_one();
} catch (const std::exception&) {
  // No thread could be made, or there is no memory for one: requests take longer, and the next one tries
  // again.
}

void Wakefulness::run() {
  for (;;) {
    {
      const MutexLock lock(mutex_);
      if (!changed_.wait_for(mutex_, kEndAfter, [this] { return now() < until_; })) {
        running_ = false;
        return;
      }
    }
    asleep_ = false;
    const FileDescriptor device(::open(kDevice, O_WRONLY | O_CLOEXEC));
    if (!device) return;  // asleep_ stays false: nobody asks again
    [[maybe_unused]] const ssize_t written = ::write(device.get(), &microseconds_, sizeof microseconds_);
    while (now() < until_) std::this_thread::sleep_for(std::chrono::nanoseconds(until_ - now()));
    asleep_ = true;
  }
}

}  // namespace okcvm::fusefs
