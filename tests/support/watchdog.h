#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <string>

#include "policy/file_descriptor.h"

namespace okcvm::test {

/// A process beside the test that ends what cannot end itself: a file system whose server hangs blocks even
/// its own killed process. When the test does not call expect_progress() again in time, or dies, the watchdog
/// aborts every FUSE connection mounted below the scratch directory and detaches the mounts; on a hang it
/// also aborts the test. Start it before any thread and any mount.
class Watchdog final {
 public:
  /// The one of this process, started at the first call.
  static Watchdog& instance();

  /// From now on, mounts below `top` are this watchdog's to end.
  void guard(const std::filesystem::path& top);
  /// Remembers what is mounted below `top` now: it will be ended even after it was detached, which takes it
  /// out of every table while open files in it can still hang.
  void note_mounts(const std::filesystem::path& top);
  /// The test is alive; it must say so again within `limit`.
  void expect_progress(std::chrono::seconds limit);
  /// Nothing is mounted any more: no limit.
  void rest();

  /// How long one test may take: $OKCVM_TEST_TIMEOUT seconds, or 120.
  static std::chrono::seconds usual_limit();

 private:
  Watchdog();
  void tell(char what, const std::string& text);

  FileDescriptor channel_;
};

/// Aborts the FUSE connections of all mounts below `top`, and detaches them. Never touches the mounts' files.
/// Returns how many there were.
int end_mounts_below(const std::filesystem::path& top);

}  // namespace okcvm::test
