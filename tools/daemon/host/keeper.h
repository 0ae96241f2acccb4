#pragma once

#include <filesystem>
#include <string_view>

namespace okcvm::daemon {

/// In the environment of a keeper's child: the keeper's process id.
inline constexpr const char* kKeeperVariable = "OKCVMD_KEEPER";
/// With a keeper that was started before there was the variable, and that an upgrade leaves as it is, the
/// child's NOTIFY_SOCKET starts like this.
inline constexpr std::string_view kFormerKeeperPrefix = "@okcvm-keeper-";

/// The keeper: starts the daemon with the same arguments less --keeper, keeps the descriptors that it gives
/// away over NOTIFY_SOCKET (FDSTORE, as systemd does) and hands them to the next one when it dies. SIGHUP
/// replaces the daemon and leaves the mounts, SIGTERM and SIGINT stop it and unmount. It keeps no file open
/// and nobody but its child can send it anything, which costs it at most a descriptor. The run directory is
/// a place for a moment (make_notice_socket()). Answers the exit status of the process.
int run_keeper(char** arguments, const std::filesystem::path& run_dir);

}  // namespace okcvm::daemon
