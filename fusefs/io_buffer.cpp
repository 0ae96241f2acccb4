#include "fusefs/io_buffer.h"

#include <sys/mman.h>

#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "policy/thread_annotations.h"

namespace okcvm::fusefs {
namespace {

constexpr std::size_t kMostSpare = 8;
constexpr std::chrono::milliseconds kUntilThereIsMemory{10};

// The first byte of memory that lies unused and in place. A child process finds 0 there (MADV_WIPEONFORK).
constexpr std::byte kInPlace{1};

std::byte* map_pages() {
  void* const memory = ::mmap(nullptr, IoBuffer::kSize, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  ::madvise(memory, IoBuffer::kSize, MADV_WIPEONFORK);
  return static_cast<std::byte*>(memory);
}

/// Those that nobody uses now.
class Spare {
 public:
  Spare() { buffers_.reserve(kMostSpare); }

  /// The last used, or none.
  std::byte* take() {
    MutexLock lock(mutex_);
    if (buffers_.empty()) return nullptr;
    std::byte* const buffer = buffers_.back();
    buffers_.pop_back();
    if (*buffer != kInPlace) ::madvise(buffer, IoBuffer::kSize, MADV_POPULATE_WRITE);
    return buffer;
  }
  /// False when there are enough.
  bool add(std::byte* buffer) {
    MutexLock lock(mutex_);
    if (buffers_.size() == kMostSpare) return false;
    *buffer = kInPlace;
    buffers_.push_back(buffer);
    return true;
  }

 private:
  Mutex mutex_;
  std::vector<std::byte*> buffers_ GUARDED_BY(mutex_);
};

Spare& spare() {
  static auto& all = *new Spare;  // outlives every thread
  return all;
}

}  // namespace

std::span<std::byte> IoBuffer::bytes() {
  while (!memory_) {
    memory_ = spare().take();  // another thread may give one back meanwhile, and wait for this one
    if (!memory_) memory_ = map_pages();
    if (!memory_) std::this_thread::sleep_for(kUntilThereIsMemory);
  }
  return {memory_, kSize};
}

void IoBuffer::give_back() {
  std::byte* const memory = std::exchange(memory_, nullptr);
  if (memory && !spare().add(memory)) ::munmap(memory, kSize);
}

}  // namespace okcvm::fusefs
