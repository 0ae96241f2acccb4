#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <optional>

#include "policy/file_descriptor.h"

namespace okcvm::fusefs {

/// A process that does for its parent what the kernel may hold up without an end, so that nobody waits for it
/// longer than he wants to. It shares nothing that others wait for: of the parent's descriptors it keeps one.
class ShortChild final {
 public:
  /// `work` answers its exit status. It may use nothing that another thread of the parent may have locked,
  /// such as the heap (fork(2)). `kept` is a descriptor, or -1.
  template <typename Work>
  ShortChild(int kept, const Work& work) : pid_(::fork()) {
    if (pid_ == 0) {
      close_all_but(kept);
      ::_exit(work());
    }
    watch();
  }
  /// Does not wait for one that the kernel holds up.
  ~ShortChild();
  ShortChild(const ShortChild&) = delete;
  ShortChild& operator=(const ShortChild&) = delete;

  /// False where the host has no room for it.
  explicit operator bool() const { return static_cast<bool>(handle_); }
  /// Its exit status, -1 if a signal ended it; none if it does not end in this time.
  std::optional<int> status_within(std::chrono::milliseconds timeout);
  /// Ends it, and waits until the kernel lets it go.
  void end();

 private:
  static void close_all_but(int kept);
  void watch();

  pid_t pid_;
  FileDescriptor handle_;
};

}  // namespace okcvm::fusefs
