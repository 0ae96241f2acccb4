#pragma once

#include <vector>

namespace okcvm::bench {

/// How long a daemon takes for a session's making and deleting, in milliseconds each, over its control socket
/// and by the command line. One created is mounted: its root directory was looked at within the time.
struct DaemonCost {
  std::vector<double> create_keep_alive, create_fresh, create_program;
  std::vector<double> delete_keep_alive, delete_program;
};
/// `rounds` of each, one after the other, at an okcvmd of our own below the scratch directory. Throws
/// std::runtime_error.
DaemonCost measure_daemon(int rounds);

}  // namespace okcvm::bench
