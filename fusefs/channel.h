#pragma once

#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cassert>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <span>

#include "fusefs/cpu_follower.h"
#include "fusefs/handover.h"
#include "fusefs/io_buffer.h"
#include "fusefs/protocol.h"
#include "fusefs/reader_turn.h"
#include "fusefs/session_state.h"
#include "fusefs/wakefulness.h"
#include "policy/error.h"
#include "policy/file_descriptor.h"
#include "policy/zones.h"

namespace okcvm::fusefs {

/// The request that this thread is carrying out, as it came from the kernel: libfuse hides parts of it.
struct CurrentRequest {
  const fuse_in_header* header = nullptr;
  std::size_t size = 0;
  std::chrono::steady_clock::time_point started;
  std::uint32_t opcode = 0;       // libfuse is told a similar one where it does not know this
  std::int32_t backing_id = 0;    // to be added to the open or create reply; 0: none
  std::int64_t answer_size = 0;   // in bytes
  std::optional<Zone> zone = {};  // of the node that it is about, once somebody asked

  std::uint64_t unique() const { return header->unique & ~protocol::kUniqueResend; }
  bool resent() const { return header->unique & protocol::kUniqueResend; }
  template <typename Body>
  const Body& body() const {
    assert(header);
    return *reinterpret_cast<const Body*>(header + 1);
  }
};

/// What a thread that serves requests keeps from one to the next.
struct Reader {
  /// A FORGET, kept until the request that came right after it is answered.
  struct SetAside {
    std::array<std::byte, sizeof(fuse_in_header) + sizeof(fuse_forget_in)> bytes;
    bool is_there = false;
  };
  IoBuffer buffer;
  CpuFollower follower;
  std::chrono::nanoseconds spin_time{};                   // how long it waits awake for the next request
  std::chrono::steady_clock::time_point crowded_until{};  // before that it does not
  RequestRate rate;
  Handover::Seat seat;
  bool serving = false;  // a program's request
  SetAside set_aside;
};

/// The bytes between libfuse and /dev/fuse (fuse_session_custom_io). Adds what libfuse 3.14 does not know:
/// passthrough, resending, kill-privileges v2, files without a name; records the handshake and plays it again
/// after a take-over; polls the device for a moment before sleeping; counts. Thread-safe.
class Channel {
 public:
  /// After a take-over the kernel's side is set up: libfuse is handed the recorded handshake first.
  /// `ready` is called once, when the handshake is done; `need_thread` when a request is in hand and no
  /// thread waits for the next one.
  Channel(int device, SessionState& state, Passthrough passthrough, Start start, std::function<void()> ready,
          std::function<void()> need_thread);

  /// The size of the next request, which is then in the reader's buffer, or -1 with an errno; EAGAIN: the
  /// calling thread should end. The buffer is given back while nothing comes. First comes a FORGET that was
  /// set aside, then what other threads gave to this one, then what the kernel has.
  ssize_t read(Reader& reader);
  /// Whether the thread has a request in hand already; otherwise it is given none until it calls read().
  bool has_one_for(Reader& reader);
  ssize_t write(std::span<const iovec> parts);
  /// After a take-over: waits until all that the former daemon had read and not answered was read again, or
  /// for so long.
  void wait_for_resent(std::chrono::milliseconds timeout) { all_came_.get_future().wait_for(timeout); }
  /// Makes every reader return; the mount stays.
  void stop();
  bool is_stopped() const { return stopped_; }

  /// A request that waits for somebody on the host takes no thread away from the others.
  class Waiting final {
   public:
    explicit Waiting(Channel& channel) : Waiting(channel.waiting_) { channel.need_thread_(); }
    /// One that may come to wait, with a change begun. nullptr: none that may.
    static Waiting perhaps(Channel* channel) { return channel ? Waiting(channel) : Waiting(); }
    ~Waiting() {
      if (count_) --*count_;
    }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    Waiting() = default;
    explicit Waiting(std::atomic<int>& count) : count_(&count) { ++count; }
    explicit Waiting(Channel* channel) : Waiting(channel->may_wait_) {
      if (channel->turn_.is_deserted()) channel->need_thread_();  // there may be one more now
    }
    std::atomic<int>* const count_ = nullptr;
  };
  int waiting() const { return waiting_; }
  int may_wait() const { return may_wait_; }

  static CurrentRequest& current();
  std::chrono::system_clock::time_point last_used() const {
    return std::chrono::system_clock::time_point(
        std::chrono::seconds(last_used_.load(std::memory_order_relaxed)));
  }

 private:
  /// How long a request had to be waited for.
  enum class Wait { kNone, kAwake, kAsleep };

  ssize_t replay_init(Reader& reader);
  /// read(2). EAGAIN: nothing comes, and another thread waits for it too.
  ssize_t read_device(Reader& reader, Wait& wait);
  ssize_t read_now(Reader& reader);
  /// As that, or what was given to this thread; and what it has for others is given to them.
  ssize_t look(Reader& reader);
  bool gives_away(Reader& reader, std::span<const std::byte> request);
  /// The size of a request that stands in the way of resting, 0 if there is none: then none is given to the
  /// thread any more.
  ssize_t before_rest(Reader& reader);
  /// With a FORGET in the reader's buffer, for which no program waits, the next request instead if it comes
  /// at once.
  ssize_t set_forget_aside(Reader& reader);
  static ssize_t take_up_forget(Reader& reader);
  /// The request in the reader's buffer becomes current().
  static void begin(Reader& reader, ssize_t size);
  void wait_for_request();
  ssize_t answer_init(std::span<const iovec> parts);
  ssize_t answer_open(std::span<const iovec> parts, std::int32_t backing_id);

  const int device_;
  SessionState& state_;
  const bool allow_passthrough_;
  std::function<void()> ready_;
  std::function<void()> need_thread_;
  FileDescriptor wake_;  // eventfd(2)
  ReaderTurn turn_;
  Handover handover_;
  std::atomic<bool> replay_;
  std::atomic<bool> replaying_{false};
  std::atomic<bool> is_resending_{false};
  std::promise<void> all_came_;
  std::atomic<bool> stopped_{false};
  std::atomic<int> waiting_{0};
  std::atomic<int> may_wait_{0};
  std::atomic<std::int64_t> last_used_{0};
};

}  // namespace okcvm::fusefs
