#pragma once

#include <cstdint>

#include "policy/file_descriptor.h"

namespace okcvm::fusefs {

/// The processor that the thread of this id last ran on (proc(5)); -1 when it cannot be told.
int processor_of_thread(std::uint32_t id);

/// Keeps a thread that serves requests on the processor of the program that makes them, as long as that is
/// one program. Each waits for the other, so they share a processor without loss, and no idle processor must
/// be woken for a request, which costs several times the request itself. A program that the scheduler keeps
/// moving away is followed ever more seldom. Not thread-safe: one for each serving thread.
class CpuFollower {
 public:
  CpuFollower();

  /// Called with each request's process id, and whether the thread had to be woken for it. 0 is the kernel's
  /// own doing, a RELEASE for one, and says nothing.
  void follow(std::uint32_t pid, bool slept);
  /// Keeps the thread on this processor, whoever makes requests, until follow() is called again.
  void settle_on(int processor);

 private:
  void look();
  void start_with(std::uint32_t pid);
  void stay_on(int cpu);

  // In requests that found the thread awake, which gain least: so many are worth one that had to wake it.
  static constexpr std::uint32_t kAwakeAsOneSlept = 64;
  static constexpr std::uint32_t kFirstLook = 256;
  static constexpr std::uint32_t kShortestPause = 4096;
  static constexpr std::uint32_t kLongestPause = 65'536;
  static constexpr std::uint32_t kManyStrangers = 64;

  std::uint32_t pid_ = 0;
  std::uint32_t streak_ = 0;
  std::uint32_t next_look_ = kFirstLook;
  std::uint32_t pause_ = kShortestPause;  // between two looks
  std::uint32_t strangers_ = 0;           // requests in which no program kept on
  int cpu_ = -1;                          // -1: anywhere
  FileDescriptor status_;                 // /proc/<pid>/stat
};

}  // namespace okcvm::fusefs
