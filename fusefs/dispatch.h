#pragma once

#include <functional>

#include "fusefs/gate.h"
#include "fusefs/operations.h"
#include "fusefs/protocol.h"
#include "fusefs/session_state.h"

namespace okcvm::fusefs {

/// What libfuse's callbacks need; the user data of a fuse_session.
struct Dispatcher {
  Operations& operations;
  Gates& gates;
  SessionState& state;
  class Channel& channel;
};

/// libfuse's table of callbacks: takes requests apart, passes the gate, runs the operation, replies. The only
/// place that turns an Error into the kernel's errno.
const fuse_lowlevel_ops& fuse_callbacks();

}  // namespace okcvm::fusefs
