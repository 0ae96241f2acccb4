#pragma once

#include <cstddef>
#include <span>

namespace okcvm::fusefs {

/// Memory for one request or the data of one reply, taken from what all threads of the process share and only
/// while it is needed. All its pages are in place before it is handed out: the kernel will not fetch a page
/// for a process that is being killed, and answers the request that it was copying with EIO instead of
/// keeping it for the next daemon. To be used by one thread.
class IoBuffer {
 public:
  /// The most that a read or write may carry.
  static constexpr std::size_t kMaxData = std::size_t{1} << 20;
  /// That and what comes before it.
  static constexpr std::size_t kSize = kMaxData + 4096;

  IoBuffer() = default;
  ~IoBuffer() { give_back(); }
  IoBuffer(const IoBuffer&) = delete;
  IoBuffer& operator=(const IoBuffer&) = delete;

  /// The memory, kSize bytes; fetched if there is none. It stays the same until given back. Waits while the
  /// system has no memory.
  std::span<std::byte> bytes();
  void give_back();

 private:
  std::byte* memory_ = nullptr;
};

}  // namespace okcvm::fusefs
