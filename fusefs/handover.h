#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "policy/thread_annotations.h"

namespace okcvm::fusefs {

/// Gives a request to the thread that shares a processor with the program that made it. Threads that wait for
/// requests of one session find them in the order in which they were made; but who answers a program on
/// another processor interrupts what runs there, which costs several times the request. Thread-safe.
class Handover {
 public:
  /// What a thread that serves requests has of its own. Once it has a place, which is a processor, it is
  /// given requests of the programs there, one at a time.
  class Seat {
   public:
    bool has_place() const { return processor_ >= 0; }
    int processor() const { return processor_; }

   private:
    friend class Handover;
    static constexpr std::size_t kRoom = 1024;  // longer requests are not given
    enum class State : std::uint8_t { kClosed, kOpen, kGiven };

    int processor_ = -1;  // changed by its own thread alone
    std::atomic<State> state_{State::kClosed};
    std::chrono::steady_clock::time_point given_at_;
    std::uint32_t program_ = 0;
    std::size_t size_ = 0;
    std::array<std::byte, kRoom> request_;  // of which `size_` bytes mean something
  };

  /// How long ago a request was given.
  enum class Age : std::uint8_t { kAny, kOverdue };

  /// The seat is given nothing until it is opened: its thread has something long to do. What it was given
  /// before stays.
  void close(Seat& seat) EXCLUDES(mutex_);
  void open(Seat& seat) EXCLUDES(mutex_);
  /// The seat has no place any more, and is given nothing. False, and nothing is changed, when it was given a
  /// request before. To be called before its thread rests or ends.
  bool leave(Seat& seat) EXCLUDES(mutex_);

  /// Called by the thread of `seat` with a request that it read, and the id of the thread that made it: true
  /// when it was given to another seat. A seat without a place may get one.
  bool gives_away(Seat& seat, std::uint32_t pid, std::span<const std::byte> request) EXCLUDES(mutex_);
  /// The size of the request that was given to the seat, now in `buffer`; 0 if there is none.
  std::size_t take(Seat& seat, std::span<std::byte> buffer) EXCLUDES(mutex_);
  /// As that, of any seat, whose thread did not come for it yet: its processor, where the program may not be
  /// any more, has other things to do. Whoever waits for requests looks here for what is overdue, and before
  /// it rests for any: nothing that was given away is left alone.
  std::size_t take_back(std::span<std::byte> buffer, Age age) EXCLUDES(mutex_);
  /// Whether take() or take_back() would find one for somebody.
  bool has_given() const { return given_ > 0; }

 private:
  struct Caller {
    std::uint32_t pid = 0;
    int processor = -1;  // -1: not known
    int requests = 0;    // until it is looked for
  };

  Caller& caller(std::uint32_t pid) REQUIRES(mutex_) { return callers_[pid % callers_.size()]; }
  bool give(Seat& from, const Caller& caller, std::span<const std::byte> request) REQUIRES(mutex_);
  std::size_t taken(Seat& seat, std::span<std::byte> buffer) REQUIRES(mutex_);

  Mutex mutex_;
  std::vector<Seat*> seats_ GUARDED_BY(mutex_);  // those with a place
  std::array<Caller, 32> callers_ GUARDED_BY(mutex_){};
  std::atomic<int> given_{0};  // requests in seats
};

}  // namespace okcvm::fusefs
