#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cerrno>
#include <string>
#include <type_traits>

namespace okcvm::test {

/// Whether a system or library call's return value says that it failed.
template <typename T>
bool says_failure(T value) {
  if constexpr (std::is_pointer_v<T>)
    return value == nullptr || static_cast<const void*>(value) == MAP_FAILED;
  else
    return value < 0;
}

/// "EPERM", or "ok" for 0.
std::string errno_name(int value);

/// Formats a mismatch with the names of both errors.
::testing::AssertionResult same_errno(const char* expected_text, const char* call_text, int expected,
                                      int got);

}  // namespace okcvm::test

/// The errno that a call leaves, or 0 when it succeeds.
#define ERRNO_OF(call)                                       \
  ([&]() -> int {                                            \
    errno = 0;                                               \
    const auto returned_ = (call);                           \
    return okcvm::test::says_failure(returned_) ? errno : 0; \
  }())

namespace okcvm::test {
/// Keeps the text of the call, and not of the wrapping lambda, in failure messages.
struct ErrnoFormatter {
  const char* call;
  ::testing::AssertionResult operator()(const char* expected_text, const char*, int expected, int got) const {
    return same_errno(expected_text, call, expected, got);
  }
};
}  // namespace okcvm::test

#define EXPECT_ERRNO(expected, call) \
  EXPECT_PRED_FORMAT2(okcvm::test::ErrnoFormatter{#call}, expected, ERRNO_OF(call))
#define ASSERT_ERRNO(expected, call) \
  ASSERT_PRED_FORMAT2(okcvm::test::ErrnoFormatter{#call}, expected, ERRNO_OF(call))
/// The same in words, for stories that are compared.
#define ANSWER_OF(call) okcvm::test::errno_name(ERRNO_OF(call))
#define EXPECT_OK(call) EXPECT_ERRNO(0, call)
#define ASSERT_OK(call) ASSERT_ERRNO(0, call)
