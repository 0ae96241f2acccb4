#pragma once

#include <sys/stat.h>

#include <string>
#include <vector>

#include "tests/differential/operation.h"
#include "tests/differential/side.h"

namespace okcvm::differential {

/// The objects that an operation may touch, as root sees them: its paths, their directories, its open files.
struct Observation {
  struct Object {
    std::string label;  // "path", "parent of path2", "slot"
    bool exists = false;
    struct stat found {};
  };
  std::vector<Object> objects;
  timespec at{};  // coarse clock
};

Observation observe(Side& side, const Operation& operation);

/// What one side's operation did to what it touched, in words that mean the same on the other side: statuses
/// after it, which objects are one inode, and (from `before` and `after`) which times moved. Where the clock
/// is too coarse to tell on either side, times are left out; hence both sides at once. Returns the first
/// difference, empty if there is none.
std::string compare_observations(const Operation& operation, bool succeeded, const Observation& before_a,
                                 const Observation& after_a, const Observation& before_b,
                                 const Observation& after_b);

}  // namespace okcvm::differential
