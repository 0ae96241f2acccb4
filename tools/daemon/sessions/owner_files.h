#pragma once

#include <cstdint>
#include <future>
#include <string>
#include <system_error>

#include "policy/caller.h"
#include "policy/error.h"
#include "policy/file_descriptor.h"

namespace okcvm::daemon {

/// Gives the calling thread, and no other, the user's identity for file access (setfsuid(2) and the raw
/// setgroups(2) are per thread). There is no way back.
Result<void> become_for_files(const Caller& user);

/// Runs `work`, which answers a Result, as the kernel would let the user reach files: on a thread of its own
/// that ends with it, so that nothing else can run under that identity. An error, too, where there is no
/// thread to be had.
template <typename Work>
auto as_owner(const Caller& user, Work work) -> decltype(work()) try {
  const auto run = [&]() -> decltype(work()) {
    if (auto become = become_for_files(user); !become) return fail(become.error());
    return work();
  };
  return std::async(std::launch::async, run).get();
} catch (const std::system_error& error) {
  return fail_errno(error.code().value(), "the owner's files cannot be looked at");
}

/// openat2(2), with O_CLOEXEC and never through the links of /proc, which pass by the rights to a file's
/// parents.
Result<FileDescriptor> open_at(int directory, const std::string& path, int flags, std::uint64_t resolve = 0);

}  // namespace okcvm::daemon
