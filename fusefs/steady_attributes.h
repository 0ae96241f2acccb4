#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <vector>

#include "fusefs/types.h"
#include "policy/thread_annotations.h"

namespace okcvm::fusefs {

/// How often in a row the attributes of a file were told that were the same. Of a file that may be stored
/// into unseen nothing may be believed for long; but a database asks for the size before each query. Keeps
/// the files asked for last, by slot. Thread-safe.
class SteadyAttributes {
 public:
  /// Whether it was often enough.
  bool are_steady(NodeId id, const struct stat& status) EXCLUDES(mutex_);

 private:
  static constexpr std::uint32_t kOften = 16;
  struct Row {
    NodeId id{};
    timespec modified{}, changed{};
    blkcnt_t blocks = 0;
    std::uint32_t times = 0;
  };
  Mutex mutex_;
  static constexpr std::size_t kRows = 256;
  std::vector<Row> rows_ GUARDED_BY(mutex_);  // kRows, once one is needed: most sessions need none
};

}  // namespace okcvm::fusefs
