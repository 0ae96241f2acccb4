#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "fusefs/operations.h"
#include "fusefs/protocol.h"

namespace okcvm::fusefs {

/// Tells the kernel that something it remembers is no longer true, in order, from a thread of its own:
/// telling may wait for a lock that a request holds. The thread is started with the first notice.
/// Thread-safe.
class Notifier final : public Invalidator {
 public:
  ~Notifier() override { stop(); }

  void start(fuse_session* session) { session_ = session; }
  /// Drops what was not told yet and ends the thread. Nothing may be asked afterwards.
  void stop();

  void entry(NodeId parent, const std::string& name) override { push({parent, name, false}); }
  void expire(NodeId parent, const std::string& name) override { push({parent, name, true}); }
  void inode(NodeId id) override { push({id, {}, false}); }
  void inode_now(NodeId id) override;
  void attributes_now(NodeId id) override;
  void after_changes_in(NodeId directory, std::function<void()> then) override {
    push({directory, {}, false, std::move(then)});
  }
  void drain() override;

 private:
  struct Notice {
    NodeId node;
    std::string name;  // empty: the inode itself
    bool expire_only;
    std::function<void()> then = {};  // after_changes_in()
  };
  void push(Notice notice);
  void run();
  void tell(const Notice& notice);

  fuse_session* session_ = nullptr;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Notice> queue_;
  bool busy_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace okcvm::fusefs
