#include "tools/daemon/http/worker_pool.h"

#include <chrono>
#include <exception>
#include <thread>

#include "tools/daemon/host/log.h"

namespace okcvm::daemon {
namespace {

constexpr std::chrono::seconds kIdle{10};

}  // namespace

WorkerPool::WorkerPool(std::size_t most) : most_(most) {
  const MutexLock lock(mutex_);
  start_thread();
}

void WorkerPool::start_thread() {
  std::thread([this] { run(); }).detach();
  ++threads_;
}

void WorkerPool::finish() {
  const MutexLock lock(mutex_);
  ending_ = true;
  changed_.notify_all();
  while (threads_ > 0) changed_.wait(mutex_);
}

bool WorkerPool::finish_within(std::chrono::milliseconds time) {
  const MutexLock lock(mutex_);
  ending_ = true;
  changed_.notify_all();
  const auto has_ended = [this]() REQUIRES(mutex_) { return threads_ == 0; };
  return changed_.wait_for(mutex_, time, has_ended);
}

void WorkerPool::post(std::function<void()> work) {
  const MutexLock lock(mutex_);
  waiting_.push_back(std::move(work));
  if (waiting_.size() <= idle_ || threads_ >= most_) {
    changed_.notify_one();
    return;
  }
  try {
    start_thread();
  } catch (const std::exception&) {
    // The host has no more threads, or no memory for one: those that run will come to it.
  }
}

void WorkerPool::run() {
  mutex_.lock();
  for (;;) {
    while (waiting_.empty() && !ending_) {
      ++idle_;
      const bool is_last = threads_ == 1;  // there might be none to be had later
      if (is_last) changed_.wait(mutex_);
      const bool is_timeout = !is_last && changed_.wait_for(mutex_, kIdle) == std::cv_status::timeout;
      --idle_;
      if (is_timeout && waiting_.empty() && threads_ > 1) break;
    }
    if (waiting_.empty()) break;
    auto work = std::move(waiting_.front());
    waiting_.pop_front();
    mutex_.unlock();
    try {
      work();
    } catch (const std::exception& error) {
      log_error("a piece of work was given up: {}", error.what());
    }
    work = nullptr;
    mutex_.lock();
  }
  // Under the lock to the last touch: finish() returns when no thread is left.
  --threads_;
  changed_.notify_all();
  mutex_.unlock();
}

}  // namespace okcvm::daemon
