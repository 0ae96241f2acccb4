#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <vector>

#include "fusefs/types.h"
#include "policy/thread_annotations.h"

namespace okcvm::fusefs {

/// Keeps the order of reads, which move a file's access time, and of requests that set it. The kernel reads
/// ahead without waiting, so a program may set the time while a read that it made before is still on its way.
/// The kernel's numbers of requests (Request::unique) say which was made first.
/// Thread-safe.
class AccessOrder {
 public:
  /// A read under way, for as long as this lives.
  class Read {
   public:
    Read(AccessOrder& order, NodeId node, std::uint64_t unique);
    ~Read();
    Read(const Read&) = delete;
    Read& operator=(const Read&) = delete;
    /// The access time was set by a later request and must stay.
    bool is_late() const { return is_late_; }

   private:
    AccessOrder& order_;
    NodeId node_;
    std::uint64_t unique_;
    bool is_late_;
  };

  /// To be called before the access time is set: waits for the reads made before.
  void before_setting(NodeId node, std::uint64_t unique) EXCLUDES(mutex_);

 private:
  struct Access {
    NodeId node;
    std::uint64_t unique = 0;
    bool operator==(const Access&) const = default;
  };

  Mutex mutex_;
  std::condition_variable_any read_ended_;
  std::vector<Access> reads_ GUARDED_BY(mutex_);
  std::array<Access, 64> set_ GUARDED_BY(mutex_);  // the last ones
  std::size_t next_set_ GUARDED_BY(mutex_) = 0;
};

}  // namespace okcvm::fusefs
