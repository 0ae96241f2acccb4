#pragma once

#include "fusefs/session_state.h"
#include "fusefs/types.h"

namespace okcvm::fusefs {

class Operations;

/// While one exists, which must be until its request is answered, the references on nodes that its thread
/// takes are those that the reply hands to the kernel. They are noted for the next daemon.
class Handout {
 public:
  Handout(SessionState::Change change, Operations& operations);
  ~Handout();
  Handout(const Handout&) = delete;
  Handout& operator=(const Handout&) = delete;

  const SessionState::Change& change() const { return change_; }

  // -- Of this thread's; without one there is nothing to do
  /// To be called before the reply: gives back what dead daemons took for theirs, which the kernel never had.
  static void settle();
  static void taken(NodeId id);
  static void given_back(NodeId id);
  /// No more can be noted for the next daemon: what else is handed out, the kernel may lose with a reply for
  /// good.
  static bool is_full();
  /// A reference that a dead daemon took is handed out now.
  static void keep(NodeId id);

 private:
  SessionState::Change change_;
  Operations& operations_;
  std::uint32_t former_;  // how many references dead daemons took
};

}  // namespace okcvm::fusefs
