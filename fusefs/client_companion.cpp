#include "fusefs/client_companion.h"

#include <sched.h>
#include <unistd.h>

namespace okcvm::fusefs {
namespace {

constexpr std::int64_t kSpinNanoseconds = 1'000'000;
constexpr std::chrono::seconds kEndAfter{1};

std::int64_t now() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

void pause_briefly() {
  for (int i = 0; i < 32; ++i) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
  }
}

int processors() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  return ::sched_getaffinity(::getpid(), sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
}

}  // namespace

ClientCompanion::ClientCompanion() : worthwhile_(processors() > 1) {}

ClientCompanion::~ClientCompanion() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  until_ = 0;
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void ClientCompanion::follow(std::uint32_t pid, std::chrono::steady_clock::time_point now) {
  if (!pid) return;
  if (pid != pid_) {
    pid_ = pid;
    streak_ = 0;
    return;
  }
  if (!worthwhile_ || ++streak_ < kWorthwhile) return;
  until_.store(now.time_since_epoch().count() + kSpinNanoseconds, std::memory_order_relaxed);
  if (asleep_.load(std::memory_order_relaxed) || streak_ == kWorthwhile) start();
}

void ClientCompanion::start() {
  const std::lock_guard lock(mutex_);
  if (running_) return wake_.notify_all();
  if (thread_.joinable()) thread_.join();  // it ended by itself
  running_ = true;
  asleep_ = false;
  thread_ = std::thread([this] { run(); });
}

void ClientCompanion::run() {
  const sched_param lowest{};
  if (::sched_setscheduler(0, SCHED_IDLE, &lowest) != 0) {
    const std::lock_guard lock(mutex_);
    running_ = false;
    return;
  }
  for (;;) {
    while (now() < until_.load(std::memory_order_relaxed)) pause_briefly();
    std::unique_lock lock(mutex_);
    asleep_ = true;
    const bool woken =
        stopping_ || wake_.wait_for(lock, kEndAfter) == std::cv_status::no_timeout || now() < until_;
    if (stopping_ || !woken) {
      running_ = false;
      return;
    }
    asleep_ = false;
  }
}

}  // namespace okcvm::fusefs
