#pragma once

#include <bit>
#include <cstdint>

namespace okcvm::fusefs {

/// Notices that a walk goes round in a circle, within a few rounds and without a list of where it has been:
/// it comes back to a mark that is set anew after 1, 2, 4... steps (Brent's algorithm). Not thread-safe.
class CycleDetector {
 public:
  /// To be asked at each place on the way.
  bool closes_at(const void* place) {
    if (place == mark_) return true;
    if (std::has_single_bit(++steps_)) mark_ = place;
    return false;
  }

 private:
  const void* mark_ = nullptr;
  std::uint64_t steps_ = 0;
};

}  // namespace okcvm::fusefs
