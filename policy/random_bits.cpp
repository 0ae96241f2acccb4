#include "policy/random_bits.h"

#include <cstdio>
#include <random>

namespace okcvm {

std::uint64_t random_bits() {
  std::random_device device;
  const std::uint64_t high = device();
  return high << 32 | device();
}

std::string random_name() {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(random_bits()));
  return text;
}

}  // namespace okcvm
