#include "fusefs/handover.h"

#include <algorithm>
#include <cstring>

#include "fusefs/cpu_follower.h"

namespace okcvm::fusefs {
namespace {

using Clock = std::chrono::steady_clock;

// The time of a few requests: the thread may be in one, and others may have its processor.
constexpr std::chrono::microseconds kOverdue{100};
// In requests. To look for a program costs as much as one.
constexpr int kFirstLook = 16;
constexpr int kBetweenLooks = 1024;

}  // namespace

void Handover::close(Seat& seat) {
  if (seat.state_ != Seat::State::kOpen) return;
  const MutexLock lock(mutex_);
  if (seat.state_ == Seat::State::kOpen) seat.state_ = Seat::State::kClosed;
}

void Handover::open(Seat& seat) {
  if (!seat.has_place() || seat.state_ != Seat::State::kClosed) return;
  const MutexLock lock(mutex_);
  seat.state_ = Seat::State::kOpen;
}

bool Handover::leave(Seat& seat) {
  if (!seat.has_place()) return true;
  const MutexLock lock(mutex_);
  if (seat.state_ == Seat::State::kGiven) return false;
  seat.state_ = Seat::State::kClosed;
  seat.processor_ = -1;
  std::erase(seats_, &seat);
  return true;
}

bool Handover::gives_away(Seat& seat, std::uint32_t pid, std::span<const std::byte> request) {
  if (pid == 0 || request.size() > Seat::kRoom) return false;
  bool look = false;
  bool given = false;
  {
    const MutexLock lock(mutex_);
    Caller& known = caller(pid);
    if (known.pid != pid) known = {.pid = pid, .requests = kFirstLook};
    look = --known.requests == 0;
    if (look) known.requests = kBetweenLooks;
    given = give(seat, known, request);
  }
  if (look) {
    const int processor = processor_of_thread(pid);
    const MutexLock lock(mutex_);
    if (Caller& known = caller(pid); known.pid == pid) known.processor = processor;
  }
  return given;
}

bool Handover::give(Seat& from, const Caller& caller, std::span<const std::byte> request) {
  const int processor = caller.processor;
  if (processor < 0) return false;
  const auto there = std::find_if(seats_.begin(), seats_.end(),
                                  [=](const Seat* one) { return one->processor_ == processor; });
  if (there == seats_.end()) {
    if (from.has_place()) return false;
    from.processor_ = processor;
    seats_.push_back(&from);
    return false;
  }
  Seat& to = **there;
  if (&to == &from || to.state_ != Seat::State::kOpen) return false;
  std::memcpy(to.request_.data(), request.data(), request.size());
  to.size_ = request.size();
  to.given_at_ = Clock::now();
  to.program_ = caller.pid;
  to.state_ = Seat::State::kGiven;
  ++given_;
  return true;
}

std::size_t Handover::take(Seat& seat, std::span<std::byte> buffer) {
  if (seat.state_ != Seat::State::kGiven) return 0;
  const MutexLock lock(mutex_);
  return taken(seat, buffer);
}

std::size_t Handover::take_back(std::span<std::byte> buffer, Age age) {
  if (!has_given()) return 0;
  const auto latest = Clock::now() - (age == Age::kAny ? Clock::duration{} : kOverdue);
  const MutexLock lock(mutex_);
  const auto left = std::find_if(seats_.begin(), seats_.end(), [&](const Seat* seat) {
    return seat->state_ == Seat::State::kGiven && seat->given_at_ <= latest;
  });
  if (left == seats_.end()) return 0;
  caller((*left)->program_) = {};
  return taken(**left, buffer);
}

std::size_t Handover::taken(Seat& seat, std::span<std::byte> buffer) {
  if (seat.state_ != Seat::State::kGiven) return 0;
  seat.state_ = Seat::State::kOpen;
  --given_;
  std::memcpy(buffer.data(), seat.request_.data(), seat.size_);
  return seat.size_;
}

}  // namespace okcvm::fusefs
