#include "tools/daemon/http/one_at_a_time.h"

#include <exception>
#include <utility>

#include "tools/daemon/host/log.h"

namespace okcvm::daemon {

void OneAtATime::post() {
  {
    const MutexLock lock(mutex_);
    if (std::exchange(state_, state_ == State::kNone ? State::kUnderWay : State::kOnceMore) != State::kNone)
      return;
  }
  workers_.post([this] { run(); });
}

void OneAtATime::run() {
  do {
    try {
      work_();
    } catch (const std::exception& error) {
      log_error("work that comes again and again was given up this time: {}", error.what());
    }
  } while (has_more());
}

bool OneAtATime::has_more() {
  const MutexLock lock(mutex_);
  state_ = state_ == State::kOnceMore ? State::kUnderWay : State::kNone;
  return state_ == State::kUnderWay;
}

}  // namespace okcvm::daemon
