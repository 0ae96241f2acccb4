#include "fusefs/request_loop.h"

#include <pthread.h>

#include <algorithm>
#include <cerrno>

#include "fusefs/caller_identity.h"

namespace okcvm::fusefs {
namespace {

constexpr std::size_t kStackSize = 512 * 1024;

}  // namespace

bool RequestLoop::add_thread() {
  const MutexLock lock(mutex_);
  const int besides =
      std::min(channel_.waiting(), kMostWaiting) + std::min(channel_.may_wait(), kMostThatMayWait);
  if (threads_ >= kMaxThreads + besides || ended_) return false;
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setstacksize(&attributes, kStackSize);
  ::pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  const bool started = ::pthread_create(&thread, &attributes, run, this) == 0;
  ::pthread_attr_destroy(&attributes);
  if (started) ++threads_;
  return started;
}

void* RequestLoop::run(void* self) {
  static_cast<RequestLoop*>(self)->serve();
  return nullptr;
}

void RequestLoop::serve() {
  CallerIdentity::keep_in_this_thread();
  Reader reader;
  while (!fuse_session_exited(session_) || channel_.has_one_for(reader)) {
    const ssize_t size = channel_.read(reader);
    if (size < 0 && (errno == EINTR || errno == ENOENT)) continue;  // ENOENT: it was taken back meanwhile
    if (size < 0) break;  // stopped, unmounted, or not needed any more
    fuse_buf request{};
    request.mem = reader.buffer.bytes().data();
    request.size = static_cast<std::size_t>(size);
    fuse_session_process_buf(session_, &request);
  }
  const MutexLock lock(mutex_);
  if (--threads_ > 0) return;
  ended_ = true;
  last_ended_.notify_all();
}

void RequestLoop::join() {
  const MutexLock lock(mutex_);
  while (threads_ > 0) last_ended_.wait(mutex_);
}

bool RequestLoop::join_within(std::chrono::milliseconds time) {
  const MutexLock lock(mutex_);
  return last_ended_.wait_for(mutex_, time, [this]() REQUIRES(mutex_) { return threads_ == 0; });
}

}  // namespace okcvm::fusefs
