#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fusefs/session_mount.h"
#include "policy/error.h"
#include "policy/file_descriptor.h"
#include "snapshots/store.h"

namespace okcvm::daemon {

/// The parts that the daemon wires together, as functions so that tests can put others in their place.
/// They are called from many threads at once.
struct Backends {
  std::function<Result<std::unique_ptr<fusefs::SessionMount>>(fusefs::MountConfig)> mount;
  std::function<Result<std::unique_ptr<fusefs::SessionMount>>(fusefs::MountConfig, FileDescriptor)> take_over;
  std::function<std::vector<std::string>(const std::filesystem::path&, const std::filesystem::path&,
                                         const std::function<bool(std::string_view)>&)>
      detach_stale;
  /// Removes what a dead daemon left of a mount in a run-time directory.
  std::function<void(const std::filesystem::path&, const SessionId&)> forget_mount;
  std::function<Result<std::unique_ptr<snapshots::Store>>(snapshots::StoreConfig)> open_store;

  /// Whoever keeps a mount's descriptor across daemons; both may be called for any session at any time.
  std::function<void(const SessionId&, int device)> keep_device;
  std::function<void(const SessionId&)> forget_device;

  /// Readable once nothing can be told to the kernel any more, and the next daemon is needed; -1: never.
  int telling_ends = -1;
};

}  // namespace okcvm::daemon
