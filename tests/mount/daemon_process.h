#pragma once

#include <functional>
#include <memory>
#include <string>

#include "tests/support/process.h"
#include "tests/support/session.h"

namespace okcvm::test {

/// A process that serves one session, so that it can be killed. The device descriptor is kept here, in the
/// test's own process, as a keeper would.
class DaemonProcess final {
 public:
  /// `place` must outlive this object, and have no session mounted by the test's own process.
  explicit DaemonProcess(SessionPlace& place, Session::Adjust adjust = nullptr)
      : place_(place), adjust_(std::move(adjust)) {}

  /// Mounts the session in a new process. False with why() if that failed.
  bool mount();
  /// Takes the live mount over in a new process.
  bool take_over();
  void kill();
  pid_t pid() const { return process_->pid(); }
  /// Waits for the end of a process that dies by itself.
  void reap() { process_->join(); }
  void kill_and_take_over() {
    kill();
    if (!take_over()) failure_ = "take_over: " + failure_;
  }
  /// Ends serving without a kill: the mount is left to the next process.
  void abandon();

  /// Until the child `other` of this process ends (it is not reaped), takes the mount over again whenever the
  /// serving process dies. Answers how often that was. `meanwhile` is done while none serves.
  int serve_until_end_of(
      pid_t other, const std::function<void()>& meanwhile = [] {});

  /// What the process answers: "open files", "nodes", "count NAME", "changed PATH", "forget changes",
  /// "passthrough", "survives", "take away PATH" (as a restore does), "tell of PATH" (the kernel forgets it).
  std::string ask(const std::string& question);
  const std::string& why() const { return failure_; }

 private:
  bool start(bool fresh);

  SessionPlace& place_;
  const Session::Adjust adjust_;  // of the session's configuration
  FileDescriptor device_;
  std::unique_ptr<ChildProcess> process_;
  std::string failure_;
};

}  // namespace okcvm::test
