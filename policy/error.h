#pragma once

#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace okcvm {

/// The closed set of error codes that the control socket and the command line speak (DESIGN section 4).
enum class Code : std::uint8_t {
  kInvalidRequest,
  kPathTraversalBlocked,
  kReadOnly,
  kNotFound,
  kAlreadyExists,
  kAmbiguousPrefix,
  kUnknownSnapshot,
  kSnapshotsDisabled,
  kForbidden,
  kBusy,
  kQuotaExceeded,
  kNoSpace,
  kCorrupt,
  kInternal,
};

/// The wire name of a code ("invalid_request") and the HTTP status that goes with it.
struct CodeText {
  std::string_view name;
  int http_status;
};
CodeText text_of(Code code);

/// What went wrong, in every vocabulary that an edge may need. `errno_value` is positive, never zero.
/// `message` is for people: what failed and, of our own refusals, what to do next. None that a peer sees
/// shows a backing path; `path`, if any, is session-relative.
struct Error {
  Code code = Code::kInternal;
  int errno_value = EIO;
  std::string message;
  std::string path;

  /// A failed system call: the code follows from the errno (ENOSPC: no_space, EDQUOT: quota_exceeded, ...).
  static Error from_errno(int errno_value, std::string_view what, std::string path = {});
  /// The same without any text, for the request path, where the kernel only takes the errno.
  static Error plain(int errno_value);
  /// A refusal by one of our own rules: the errno follows from the code.
  static Error of(Code code, std::string message, std::string path = {});
};

template <typename T>
using Result = tl::expected<T, Error>;

using Unexpected = tl::unexpected<Error>;

/// `return fail(Code::kNotFound, "...")` from any function that returns a Result.
inline Unexpected fail(Code code, std::string message, std::string path = {}) {
  return Unexpected(Error::of(code, std::move(message), std::move(path)));
}
inline Unexpected fail_errno(int errno_value, std::string_view what, std::string path = {}) {
  return Unexpected(Error::from_errno(errno_value, what, std::move(path)));
}
inline Unexpected fail_errno(int errno_value) {
  return Unexpected(Error::plain(errno_value));
}
inline Unexpected fail(Error error) {
  return Unexpected(std::move(error));
}

}  // namespace okcvm
