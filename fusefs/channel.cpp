#include "fusefs/channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

#include "fusefs/kernel_knowledge.h"
#include "policy/fault.h"

namespace okcvm::fusefs {
namespace {

using Clock = std::chrono::steady_clock;

// A program that makes its next request as soon makes one after the other.
constexpr std::chrono::microseconds kDense{60};
// The kernel takes about half as long to make use of a listing, before the program can go on.
constexpr std::chrono::nanoseconds kForListedByte{12};
// A thread that shares the turn looks at least so often: others may have the processor meanwhile.
constexpr int kLooks = 64;
// A program that waits for an answer asks again before it had the processor for so long. Who has it for
// longer has other things to do.
constexpr std::chrono::microseconds kOthersTurn{500};
constexpr std::chrono::milliseconds kCrowdedFor{100};
// A program that made the kernel forget an inode, as by unlink(2), makes its next request as soon.
constexpr std::chrono::microseconds kSetAside{4};

// What we ask of the kernel, where it offers it.
constexpr std::uint64_t kWanted = FUSE_ASYNC_READ | FUSE_ATOMIC_O_TRUNC | FUSE_BIG_WRITES |
                                  FUSE_AUTO_INVAL_DATA | FUSE_DO_READDIRPLUS | FUSE_ASYNC_DIO |
                                  FUSE_PARALLEL_DIROPS | FUSE_MAX_PAGES | FUSE_CACHE_SYMLINKS |
                                  protocol::kNoOpendirSupport | FUSE_HANDLE_KILLPRIV_V2 | FUSE_INIT_EXT |
                                  protocol::kPassthrough | protocol::kHasResend;

// Requests that may take long: another thread should wait for the next one meanwhile.
bool may_take_long(std::uint32_t opcode) {
  switch (opcode) {
    case FUSE_FSYNC:
    case FUSE_FSYNCDIR:
    case FUSE_READ:
    case FUSE_WRITE:
    case FUSE_FALLOCATE:
    case FUSE_COPY_FILE_RANGE:
      return true;
    default:
      return false;
  }
}

/// Whether somebody uses the session. It is none to be mounted and unmounted, as by an upgrade; the kernel
/// forgets when it is short of memory; and df(1), monitors and who lists the mount root look at all mounts
/// alike.
bool is_use(const fuse_in_header& header) {
  switch (header.opcode) {
    case FUSE_INIT:
    case FUSE_DESTROY:
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_STATFS:
      return false;
    case FUSE_GETATTR:
    case protocol::kStatx:
      return header.nodeid != FUSE_ROOT_ID;
    default:
      return true;
  }
}

/// The nearest request that libfuse knows.
std::uint32_t known_to_libfuse(std::uint32_t opcode) {
  switch (opcode) {
    case protocol::kTmpfile:
      return FUSE_CREATE;
    case protocol::kStatx:
      return FUSE_GETATTR;
    default:
      return opcode;
  }
}

fuse_in_header* header_in(Reader& reader) {
  return reinterpret_cast<fuse_in_header*>(reader.buffer.bytes().data());
}

std::int64_t now_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME_COARSE, &now);
  return now.tv_sec;
}

std::size_t total_size(std::span<const iovec> parts) {
  std::size_t size = 0;
  for (const auto& part : parts) size += part.iov_len;
  return size;
}

/// A short message in one piece, so that fields of it can be changed; and the kernel, which maps the memory
/// of every piece on its own, takes it faster. It lies within one page.
class ShortMessage {
 public:
  static constexpr std::size_t kMaxSize = 512;

  explicit ShortMessage(std::span<const iovec> parts) {
    for (const auto& part : parts) {
      const std::size_t taken = std::min(part.iov_len, kMaxSize - size_);
      std::memcpy(bytes_.data() + size_, part.iov_base, taken);
      size_ += taken;
    }
  }
  /// Adds zeros up to this size.
  void extend(std::size_t size) { size_ = std::min(size, kMaxSize); }
  std::byte* data() { return bytes_.data(); }
  std::size_t size() const { return size_; }
  ssize_t send(int device) const { return ::write(device, bytes_.data(), size_); }

 private:
  alignas(kMaxSize) std::array<std::byte, kMaxSize> bytes_{};
  std::size_t size_ = 0;
};

/// Gives the processor to others between two looks at the device. When nobody takes it, the next looks follow
/// each other at once.
class Yielder {
 public:
  /// Answers how long they had it.
  std::chrono::nanoseconds operator()() {
    if (looks_without_ > 0) {
      --looks_without_;
      return {};
    }
    const auto before = Clock::now();
    ::sched_yield();
    const auto away = Clock::now() - before;
    if (away < kNobodyTookIt) looks_without_ = 4;
    return away;
  }

 private:
  static constexpr std::chrono::nanoseconds kNobodyTookIt{2500};
  int looks_without_ = 0;
};

/// Whether more threads want to run than there are processors (proc(5), /proc/loadavg).
bool is_crowded() {
  const FileDescriptor file(::open("/proc/loadavg", O_RDONLY | O_CLOEXEC));
  std::array<char, 64> text{};
  unsigned runnable = 0;
  return file && ::read(file.get(), text.data(), text.size() - 1) > 0 &&
         std::sscanf(text.data(), "%*s %*s %*s %u/", &runnable) == 1 &&
         runnable > std::thread::hardware_concurrency();
}

}  // namespace

Channel::Channel(int device, SessionState& state, Passthrough passthrough, Start start,
                 std::function<void()> ready, std::function<void()> need_thread)
    : device_(device),
      state_(state),
      allow_passthrough_(passthrough == Passthrough::kAuto),
      ready_(std::move(ready)),
      need_thread_(std::move(need_thread)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      replay_(start == Start::kTakeOver) {
  ::fcntl(device_, F_SETFL, ::fcntl(device_, F_GETFL) | O_NONBLOCK);
}

CurrentRequest& Channel::current() {
  thread_local CurrentRequest request;
  return request;
}

void Channel::stop() {
  stopped_ = true;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
  turn_.stop();
}

// -- Reading

/// The turn is kept until libfuse has answered: it would refuse a request that came before the handshake.
ssize_t Channel::replay_init(Reader& reader) {
  const auto init = state_.init();
  auto* const bytes = reader.buffer.bytes().data();
  std::memcpy(bytes, init.data(), init.size());
  replaying_ = true;
  begin(reader, static_cast<ssize_t>(init.size()));
  return static_cast<ssize_t>(init.size());
}

ssize_t Channel::read(Reader& reader) {
  if (const auto& last = current(); last.header && last.header->opcode == FUSE_READDIRPLUS)
    reader.spin_time = std::max(reader.spin_time, kForListedByte * last.answer_size);
  current() = {};
  if (std::exchange(reader.serving, false)) turn_.answered();
  if (reader.set_aside.is_there) {
    const ssize_t size = take_up_forget(reader);
    begin(reader, size);
    return size;
  }
  auto wait = Wait::kNone;
  ssize_t size = -1;
  do {
    if (!turn_.try_take()) {
      size = before_rest(reader);
      if (size > 0) {
        turn_.take_one_more();
        break;
      }
      reader.buffer.give_back();
      if (!turn_.take()) {
        errno = EAGAIN;
        return -1;
      }
    }
    if (replay_.exchange(false)) return replay_init(reader);
    size = read_device(reader, wait);
  } while (size < 0 && errno == EAGAIN);
  if (size < 0) {
    const int error = errno;
    size = before_rest(reader);
    if (size == 0) {
      if (error == ENODEV || stopped_)
        turn_.stop();  // unmounted: nobody needs to wait any more
      else if (turn_.leave({.may_take_long = true}))
        need_thread_();
      errno = error;
      return -1;
    }
  }
  if (header_in(reader)->opcode == FUSE_FORGET && reader.spin_time.count() > 0)
    size = set_forget_aside(reader);
  const auto bytes = reader.buffer.bytes().first(static_cast<std::size_t>(size));
  auto* header = header_in(reader);
  reader.serving = header->pid != 0;
  if (reader.seat.has_place())
    reader.follower.settle_on(reader.seat.processor());
  else
    reader.follower.follow(header->pid, wait == Wait::kAsleep);
  const bool is_long = may_take_long(header->opcode);
  if (is_long) handover_.close(reader.seat);
  if (turn_.leave({header->pid, wait == Wait::kNone, is_long})) need_thread_();
  begin(reader, size);
  if (header->pid && reader.rate.is_high_at(current().started))
    Wakefulness::instance().extend(current().started);
  if (is_use(*header)) last_used_.store(now_seconds(), std::memory_order_relaxed);
  if (header->opcode == FUSE_INIT) state_.record_init(bytes);
  return size;
}

void Channel::begin(Reader& reader, ssize_t size) {
  fuse_in_header* const header = header_in(reader);
  const std::uint32_t opcode = header->opcode;
  header->opcode = known_to_libfuse(opcode);
  Asking::begin(static_cast<std::int32_t>(header->pid));
  current() = {header, static_cast<std::size_t>(size), Clock::now(), opcode};
}

ssize_t Channel::set_forget_aside(Reader& reader) {
  auto& aside = reader.set_aside;
  std::memcpy(aside.bytes.data(), reader.buffer.bytes().data(), aside.bytes.size());
  aside.is_there = true;
  const auto until = Clock::now() + kSetAside;
  do {
    const ssize_t next = look(reader);
    if (next >= 0) return next;
    if (errno != EAGAIN) break;
  } while (Clock::now() < until);
  return take_up_forget(reader);
}

ssize_t Channel::take_up_forget(Reader& reader) {
  auto& aside = reader.set_aside;
  aside.is_there = false;
  std::memcpy(reader.buffer.bytes().data(), aside.bytes.data(), aside.bytes.size());
  return static_cast<ssize_t>(aside.bytes.size());
}

ssize_t Channel::read_now(Reader& reader) {
  const auto bytes = reader.buffer.bytes();
  return ::read(device_, bytes.data(), bytes.size());
}

ssize_t Channel::look(Reader& reader) {
  const auto buffer = reader.buffer.bytes();
  if (turn_.is_shared())
    handover_.open(reader.seat);
  else
    handover_.leave(reader.seat);
  auto given = handover_.take(reader.seat, buffer);
  if (given == 0) given = handover_.take_back(buffer, Handover::Age::kOverdue);
  if (given > 0) return static_cast<ssize_t>(given);
  ssize_t size = 0;
  do size = read_now(reader);
  while (size > 0 && gives_away(reader, buffer.first(static_cast<std::size_t>(size))));
  return size;
}

bool Channel::gives_away(Reader& reader, std::span<const std::byte> request) {
  return turn_.is_shared() && handover_.gives_away(reader.seat, header_in(reader)->pid, request);
}

ssize_t Channel::before_rest(Reader& reader) {
  while (!handover_.leave(reader.seat))  // unless another thread takes it meanwhile
    if (const auto given = handover_.take(reader.seat, reader.buffer.bytes()); given > 0)
      return static_cast<ssize_t>(given);
  if (!handover_.has_given()) return 0;
  return static_cast<ssize_t>(handover_.take_back(reader.buffer.bytes(), Handover::Age::kAny));
}

bool Channel::has_one_for(Reader& reader) {
  return reader.set_aside.is_there || !handover_.leave(reader.seat);
}

ssize_t Channel::read_device(Reader& reader, Wait& wait) {
  ssize_t size = look(reader);
  if (size >= 0 || errno != EAGAIN) return size;
  if (is_resending_.load(std::memory_order_relaxed) && is_resending_.exchange(false)) all_came_.set_value();
  const auto since = Clock::now();
  Yielder yield;
  int looks = 0;
  for (; size < 0 && errno == EAGAIN && !stopped_; size = look(reader)) {
    // While requests come one after the other the next is waited for awake; the program that makes them may
    // share this processor. When it has other things to do, we must not be in its way. Nor where others want
    // the processor as well: the scheduler would give it to them once a request comes, as we had our share.
    const auto now = Clock::now();
    const auto waited = now - since;
    const bool patient =
        now >= reader.crowded_until &&
        (waited < reader.spin_time || (turn_.is_shared() && (waited < kDense || ++looks < kLooks)));
    if (patient) {
      wait = std::max(wait, Wait::kAwake);
      if (yield() > kOthersTurn && is_crowded()) reader.crowded_until = Clock::now() + kCrowdedFor;
    } else if (const ssize_t given = before_rest(reader); given > 0) {
      return given;
    } else if (turn_.retire()) {
      reader.spin_time = {};
      errno = EAGAIN;
      return -1;
    } else {
      reader.buffer.give_back();
      wait_for_request();
      wait = Wait::kAsleep;
    }
  }
  reader.spin_time = Clock::now() - since < kDense ? kDense : std::chrono::nanoseconds{};
  if (size < 0 && stopped_) errno = EINTR;
  return size;
}

void Channel::wait_for_request() {
  pollfd waits[] = {{device_, POLLIN, 0}, {wake_.get(), POLLIN, 0}};
  ::poll(waits, 2, -1);
}

// -- Writing

ssize_t Channel::write(std::span<const iovec> parts) {
  const auto& out = *static_cast<const fuse_out_header*>(parts.front().iov_base);
  const std::size_t size = total_size(parts);
  auto& request = current();
  const bool is_reply = out.unique != 0 && request.header && out.unique == request.header->unique;
  if (is_reply && request.header->opcode == FUSE_INIT) return answer_init(parts);
  if (is_reply) {
    const auto spent = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - request.started);
    request.answer_size = static_cast<std::int64_t>(size);
    state_.count(request.opcode, static_cast<std::uint64_t>(spent.count()), -out.error);
    fault_point("reply");
    if (request.backing_id && out.error == 0) return answer_open(parts, request.backing_id);
  }
  if (size <= ShortMessage::kMaxSize) return ShortMessage(parts).send(device_);
  return ::writev(device_, parts.data(), static_cast<int>(parts.size()));
}

ssize_t Channel::answer_init(std::span<const iovec> parts) {
  const auto& offer = current().body<fuse_init_in>();
  ShortMessage message(parts);
  const std::size_t whole = sizeof(fuse_out_header) + sizeof(fuse_init_out);
  auto& header = *reinterpret_cast<fuse_out_header*>(message.data());
  auto& reply = *reinterpret_cast<fuse_init_out*>(message.data() + sizeof(fuse_out_header));
  if (header.error == 0) {
    message.extend(whole);
    const bool extended = offer.flags & FUSE_INIT_EXT;
    const std::uint64_t offered = offer.flags | (extended ? std::uint64_t{offer.flags2} << 32 : 0);
    std::uint64_t chosen = offered & kWanted;
    if (!allow_passthrough_) chosen &= ~protocol::kPassthrough;
    const bool passthrough = chosen & protocol::kPassthrough;
    reply.minor = FUSE_KERNEL_MINOR_VERSION;
    reply.flags = static_cast<std::uint32_t>(chosen);
    reply.flags2 = static_cast<std::uint32_t>(chosen >> 32);
    reply.max_write = std::min<std::uint32_t>(reply.max_write, IoBuffer::kMaxData);
    reply.max_background = 128;
    reply.congestion_threshold = 96;
    const std::uint32_t stack_depth = passthrough ? 1 : 0;
    std::memcpy(reinterpret_cast<std::byte*>(&reply) + protocol::kMaxStackDepthOffset, &stack_depth,
                sizeof stack_depth);
    header.len = whole;
    // The kernel goes by the first answer, whatever another daemon would choose.
    if (!replaying_) state_.set_protocol(offer.minor, passthrough, chosen & protocol::kHasResend);
  }
  const bool ok = header.error == 0;
  ssize_t written = static_cast<ssize_t>(total_size(parts));
  if (!replaying_) {
    const ssize_t sent = message.send(device_);
    if (sent < 0) written = sent;
  }
  if (ok) ready_();
  if (replaying_.exchange(false)) {
    // Whatever the former daemon had read and not answered comes again.
    const fuse_out_header resend{sizeof(fuse_out_header), protocol::kNotifyResend, 0};
    [[maybe_unused]] const ssize_t sent = ::write(device_, &resend, sizeof resend);
    fault_point("channel.resent");
    is_resending_ = true;
    if (turn_.leave({.may_take_long = true})) need_thread_();
  }
  return written;
}

ssize_t Channel::answer_open(std::span<const iovec> parts, std::int32_t backing_id) {
  ShortMessage message(parts);
  auto& reply = *reinterpret_cast<fuse_open_out*>(message.data() + message.size() - sizeof(fuse_open_out));
  reply.open_flags |= protocol::kOpenPassthrough;
  std::memcpy(&reply.padding, &backing_id, sizeof backing_id);
  return message.send(device_);
}

}  // namespace okcvm::fusefs
