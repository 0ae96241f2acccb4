#include "fusefs/wakefulness.h"

#include <fcntl.h>
#include <unistd.h>

#include <thread>

#include "policy/file_descriptor.h"

namespace okcvm::fusefs {
namespace {

constexpr const char* kDevice = "/dev/cpu_dma_latency";

// A few processors wait awake. Of many, most have nothing to do with the matter: they may sleep, but lightly.
constexpr unsigned kFewProcessors = 8;
constexpr std::int32_t kAwake = 0;
constexpr std::int32_t kLightly = 2;

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

void Wakefulness::start() {
  const std::lock_guard lock(mutex_);
  if (!started_) std::thread([this] { run(); }).detach();
  started_ = true;
  changed_.notify_one();
}

void Wakefulness::run() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return now() < until_.load(std::memory_order_relaxed); });
    }
    asleep_ = false;
    const FileDescriptor device(::open(kDevice, O_WRONLY | O_CLOEXEC));
    if (!device) return;  // asleep_ stays false: nobody asks again
    [[maybe_unused]] const ssize_t written = ::write(device.get(), &microseconds_, sizeof microseconds_);
    while (now() < until_.load(std::memory_order_relaxed))
      std::this_thread::sleep_for(std::chrono::nanoseconds(until_.load(std::memory_order_relaxed) - now()));
    asleep_ = true;
  }
}

}  // namespace okcvm::fusefs
