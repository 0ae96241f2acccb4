#include "tools/daemon/http/worker_pool.h"

#include <chrono>
#include <system_error>
#include <thread>

namespace okcvm::daemon {
namespace {

constexpr std::chrono::seconds kIdle{10};

}  // namespace

void WorkerPool::finish() {
  const MutexLock lock(mutex_);
  ending_ = true;
  changed_.notify_all();
  while (threads_ > 0) changed_.wait(mutex_);
}

void WorkerPool::post(std::function<void()> work) {
  const MutexLock lock(mutex_);
  waiting_.push_back(std::move(work));
  if (waiting_.size() <= idle_ || threads_ >= most_) {
    changed_.notify_one();
    return;
  }
  ++threads_;
  try {
    std::thread([this] { run(); }).detach();
  } catch (const std::system_error&) {
    --threads_;  // the host has no more threads: those that run will come to it
  }
}

void WorkerPool::run() {
  mutex_.lock();
  for (;;) {
    while (waiting_.empty() && !ending_) {
      ++idle_;
      const auto woken = changed_.wait_for(mutex_, kIdle);
      --idle_;
      if (woken == std::cv_status::timeout && waiting_.empty()) break;
    }
    if (waiting_.empty()) break;
    auto work = std::move(waiting_.front());
    waiting_.pop_front();
    mutex_.unlock();
    work();
    work = nullptr;
    mutex_.lock();
  }
  // Under the lock to the last touch: finish() returns when no thread is left.
  --threads_;
  changed_.notify_all();
  mutex_.unlock();
}

}  // namespace okcvm::daemon
