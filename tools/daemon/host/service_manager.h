#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "policy/file_descriptor.h"

namespace okcvm::daemon {

/// Descriptors that this process was started with (LISTEN_FDS).
struct Inherited {
  struct Socket {
    FileDescriptor socket;  // a listening Unix stream socket
    std::string path;       // that it is bound to; empty if that is no path
    bool is_own = false;    // one that an earlier daemon made and gave into keeping; else a socket unit's
  };
  std::vector<Socket> sockets;
  std::map<std::string, FileDescriptor> devices;  // by session id
};

/// systemd, our keeper, or nobody: whoever started the daemon, watches it and keeps descriptors across its
/// deaths (sd_notify(3), NOTIFY_SOCKET). Thread-safe. With nobody there, all calls do nothing.
class ServiceManager final {
 public:
  ServiceManager();

  /// Once, at the start.
  static Inherited take_inherited();

  bool is_there() const;
  /// "systemd", "keeper" or "nobody".
  std::string kept_by() const { return is_there() ? kept_by_ : "nobody"; }

  void ready(const std::string& status) const;
  void stopping() const;
  /// How often keep_watch() has to be called; none if nobody watches.
  std::optional<std::chrono::milliseconds> watch_interval() const;
  void keep_watch() const;
  /// In place of more keep_watch(), when this process is about to end.
  void end_within(std::chrono::microseconds most) const;

  void keep_control(int socket) const;
  void forget_control() const;
  void keep_device(const std::string& session, int device) const;
  /// Waits until it is let go, so that the mount ends with our own descriptor.
  void forget_device(const std::string& session) const;

  /// Whether systemd is about to start this unit again after the stop it asked for (`systemctl restart`).
  bool is_restarting() const;
  /// Waits for the end of the reload that systemd was asked for (`systemctl reload`), a few seconds at most:
  /// it counts a process that ends during it as failed.
  void let_reload_end() const;

 private:
  std::string kept_by_;
  pid_t keeper_ = 0;  // our parent, if it is one; it can die before us
};

}  // namespace okcvm::daemon
