#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <span>

#include "fusefs/types.h"
#include "policy/thread_annotations.h"

namespace okcvm::fusefs {

/// Directories that the kernel was asked to look for where they are now. Thread-safe.
class DirectorySearches final {
 public:
  /// `asked`: how many directories had been misplaced by then; another is looked for again. False: it is
  /// looked for already.
  [[nodiscard]] bool begin(NodeId directory, std::uint64_t asked) EXCLUDES(mutex_);
  /// That one is over, whether or not it was found.
  void end(NodeId directory, std::uint64_t asked) EXCLUDES(mutex_);
  /// Waits until none of them is looked for, or `is_done`, though not long: that may depend on who waits.
  void let_end(std::span<const NodeId> directories, const std::function<bool()>& is_done) const
      EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  mutable std::condition_variable_any ended_;
  std::map<NodeId, std::uint64_t> under_way_ GUARDED_BY(mutex_);
};

}  // namespace okcvm::fusefs
