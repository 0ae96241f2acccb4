#include "tests/support/expect.h"

#include <cstring>
#include <string>

namespace okcvm::test {

std::string errno_name(int value) {
  if (value == 0) return "ok";
  const char* name = ::strerrorname_np(value);
  return name ? name : std::to_string(value);
}

::testing::AssertionResult same_errno(const char*, const char* call_text, int expected, int got) {
  if (expected == got) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << call_text << ": expected " << errno_name(expected) << ", got " << errno_name(got);
}

}  // namespace okcvm::test
