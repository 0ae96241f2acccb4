#pragma once

#include <string_view>

namespace okcvm::daemon {

/// NOTIFY_SOCKET of a keeper's child starts like this.
inline constexpr std::string_view kKeeperSocketPrefix = "@okcvm-keeper-";

/// The keeper: starts the daemon with the same arguments less --keeper, keeps the descriptors that it gives
/// away over NOTIFY_SOCKET (FDSTORE, as systemd does) and hands them to the next one when it dies. SIGHUP
/// replaces the daemon and leaves the mounts, SIGTERM and SIGINT stop it and unmount. It opens no file, and
/// whatever its child sends costs it at most a descriptor. Answers the exit status of the process.
int run_keeper(char** arguments);

}  // namespace okcvm::daemon
