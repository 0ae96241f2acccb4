#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/process.h"

namespace okcvm::soak {

/// okcvmd under its keeper, with private directories, and the okcvm commands that talk to it.
class KeptDaemon final {
 public:
  /// Starts it and waits until it answers. Throws std::runtime_error.
  KeptDaemon(const std::filesystem::path& top, const std::vector<std::string>& more_options);
  ~KeptDaemon();
  KeptDaemon(const KeptDaemon&) = delete;
  KeptDaemon& operator=(const KeptDaemon&) = delete;

  /// The daemon's pid now; 0 between two of them.
  pid_t daemon() const;
  /// Kills the daemon with SIGKILL. False if there was none just then.
  bool kill_daemon();
  /// Has the keeper replace the daemon as an upgrade does: it leaves its mounts and ends, and the next takes
  /// over.
  bool upgrade();
  /// Kills keeper and daemon with SIGKILL; the mounts are dead then.
  void crash();
  /// Ends all of it; sessions are unmounted.
  void stop();

  /// `okcvm ARGUMENTS`.
  test::CommandResult command(std::vector<std::string> arguments, std::chrono::seconds timeout) const;
  std::filesystem::path mount_of(const std::string& id) const { return top_ / "mnt" / ("okcvm-" + id); }
  std::filesystem::path log() const { return top_ / "daemon.log"; }
  std::filesystem::path socket() const { return top_ / "run" / "control.sock"; }

  struct Size {
    long descriptors = 0;
    long resident_kib = 0;
  };
  Size size() const;

 private:
  std::filesystem::path top_;
  pid_t keeper_ = -1;
};

}  // namespace okcvm::soak
