#pragma once

#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace okcvm::cli {

/// Exit statuses of `okcvm` (DESIGN section 3).
enum ExitStatus : int { kDone = 0, kFailed = 1, kUsage = 2 };

/// Why a verb was not carried out: one of the codes of DESIGN section 4, as the daemon sent it or as found
/// here, and what to say about it. A silent failure prints nothing (the reader of our output went away).
struct Failure {
  std::string code;
  std::string message;
  ExitStatus status = kFailed;
  bool silent = false;
};

template <typename T>
using Outcome = tl::expected<T, Failure>;

inline tl::unexpected<Failure> refuse(std::string code, std::string message) {
  return tl::unexpected(Failure{std::move(code), std::move(message)});
}
inline tl::unexpected<Failure> usage(std::string message) {
  return tl::unexpected(Failure{"invalid_request", std::move(message), kUsage});
}
/// A failed system call here, on this side of the socket. `what` names the thing ("report.pdf").
tl::unexpected<Failure> system_failure(int errno_value, const std::string& what);

}  // namespace okcvm::cli
