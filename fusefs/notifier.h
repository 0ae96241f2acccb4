#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "fusefs/operations.h"
#include "fusefs/teller.h"
#include "policy/thread_annotations.h"

namespace okcvm::fusefs {

/// Tells the kernel that something it remembers is no longer true, in order, from a thread of its own:
/// telling may wait for a lock that a request holds. The thread, and the teller's, are there while there is
/// something to tell, and for a short while longer. Thread-safe.
class Notifier final : public Invalidator {
 public:
  ~Notifier() override { stop(); }

  /// `device` is borrowed; it is that of the mount at this path.
  void start(int device, const std::filesystem::path& mount_point, SessionState& state) EXCLUDES(mutex_);
  /// Waits for nothing that is being told any more; what was not told yet is dropped.
  void cut() EXCLUDES(mutex_);
  /// The same, and ends the thread. Nothing may be asked afterwards.
  void stop() EXCLUDES(mutex_);

  void entry(NodeId parent, const std::string& name) override { push({parent, name, Manner::kDrop}); }
  void expire(NodeId parent, const std::string& name) override {
    push({parent, name, Manner::kExpireOrNothing});
  }
  void renamed(NodeId parent, const std::string& name) override {
    push({parent, name, Manner::kExpireOrDrop});
  }
  void look_up(const RelPath& path, std::uint64_t inode, std::function<void(bool)> then) override {
    std::function<void(Told)> once_told;
    if (then) once_told = [then = std::move(then)](Told told) { then(told == Told::kYes); };
    push({kRootNode, path.is_root() ? "." : path.text(), Manner::kLookUp, std::move(once_told), inode});
  }
  void inode(NodeId id) override { push({id, {}, Manner::kDrop}); }
  /// Waits as drain() does.
  bool inode_now(NodeId id) override;
  [[nodiscard]] bool links_now(std::span<const NodeId> ids) override;
  void attributes_now(NodeId id) override;
  void moving_directory_now(NodeId id) override;
  void after_changes_in(NodeId directory, std::function<void()> then) override {
    push({directory, {}, Manner::kDrop, [then = std::move(then)](Told) { then(); }});
  }
  void if_unknown(NodeId id, std::function<void()> then) override {
    push({id, {}, Manner::kAsk, [then = std::move(then)](Told told) {
            if (told == Told::kNotFound) then();
          }});
  }
  /// Waits until everything asked for before was told, but not for a program that keeps a directory locked:
  /// where nothing could be told for a while the rest is told when it can be, at the latest by the next
  /// daemon.
  void drain() override { drain_while_told(kTimeout); }
  /// The same, with another time in which nothing could be told.
  void drain_while_told(std::chrono::seconds timeout) EXCLUDES(mutex_);
  /// How often it was not waited for to the end.
  std::uint64_t times_late() const { return times_late_; }
  /// Whether that was so in this time.
  bool drain_for(std::chrono::milliseconds time) EXCLUDES(mutex_);

 private:
  using Told = Teller::Line::Told;
  static constexpr std::chrono::seconds kTimeout{2};
  static constexpr std::size_t kMostLate = 8;
  enum class Waiting : std::uint8_t { kShort, kEndless };
  /// What becomes of a name; what comes after the "Or" is for a kernel that cannot let it expire.
  enum class Manner : std::uint8_t { kDrop, kExpireOrNothing, kExpireOrDrop, kLookUp, kAsk };
  struct Notice {
    NodeId node;
    std::string name;  // empty: the inode itself; a path from the root, to be looked up
    Manner manner;
    std::function<void(Told)> then = {};  // after_changes_in(), look_up(), if_unknown()
    std::uint64_t inode = 0;              // look_up()
  };
  void push(Notice notice) EXCLUDES(mutex_);
  void have_thread() REQUIRES(mutex_);
  /// The next daemon is to tell everything.
  void was_late();
  void run() EXCLUDES(mutex_);
  /// One round of what is asked for; false: nothing is.
  bool tell_next(Waiting waiting) EXCLUDES(mutex_);
  void tell_in_place() EXCLUDES(mutex_);
  /// Whether the caller is to tell in place, as no thread does or can be had.
  bool takes_telling_over() EXCLUDES(mutex_);
  std::vector<std::byte> message_of(const Notice& notice) const;
  /// Comes back when the kernel has taken them (kYes, or kNotFound of the last), or nobody may wait any more.
  Told tell(std::vector<std::byte> notices, Waiting waiting = Waiting::kEndless) EXCLUDES(mutex_);
  std::shared_ptr<Teller::Line> take_line() EXCLUDES(mutex_);
  /// Whether so many wait for the kernel that no more should.
  bool is_held_up() EXCLUDES(mutex_);
  /// Answers the same, unless it was cut.
  Told give_back(std::shared_ptr<Teller::Line> line, Told told) EXCLUDES(mutex_);

  int device_ = -1;
  std::string mount_point_;
  SessionState* state_ = nullptr;
  Mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Notice> queue_ GUARDED_BY(mutex_);
  std::uint64_t pushed_ GUARDED_BY(mutex_) = 0, told_ GUARDED_BY(mutex_) = 0;  // so many
  std::atomic<std::uint64_t> times_late_ = 0;
  bool is_cut_ GUARDED_BY(mutex_) = false;
  bool is_running_ GUARDED_BY(mutex_) = false;                           // somebody tells, mostly thread_
  std::vector<std::shared_ptr<Teller::Line>> lines_ GUARDED_BY(mutex_);  // all of them
  std::vector<std::shared_ptr<Teller::Line>> idle_lines_
      GUARDED_BY(mutex_);  // of which nobody tells just now
  std::vector<std::shared_ptr<Teller::Line>> late_lines_
      GUARDED_BY(mutex_);  // for which nobody waits any more
  std::thread thread_;
};

}  // namespace okcvm::fusefs
