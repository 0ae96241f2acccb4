#pragma once

#include "tools/daemon/host/options.h"
#include "tools/daemon/sessions/backends.h"

namespace okcvm::daemon {

/// The daemon from start to stop, over the parts given. Answers the exit status of the process: 0 after a
/// stop that was asked for, 1 if it could not start (the reason is in the log).
int run_daemon(const Options& options, Backends backends);

}  // namespace okcvm::daemon
