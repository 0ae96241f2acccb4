#pragma once

#include <cstdlib>
#include <string_view>

namespace okcvm::test {

/// Whether sweeps take every point, not a sample: OKCVM_SWEEP_STRIDE=1.
inline bool takes_every_point() {
  const char* stride = std::getenv("OKCVM_SWEEP_STRIDE");
  return stride != nullptr && std::string_view(stride) == "1";
}

}  // namespace okcvm::test
