#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "policy/error.h"
#include "policy/file_descriptor.h"

namespace okcvm::snapshots {

/// Writes all of it at the file's position. `what` starts the message of an error.
Result<void> write_all(int fd, std::string_view bytes, std::string_view what);
/// Writes all of it at `offset`.
Result<void> write_all_at(int fd, std::string_view bytes, std::uint64_t offset, std::string_view what);
/// Reads up to `size` bytes at `offset` into `buffer`; fewer only at the end of the file.
Result<std::size_t> read_at(int fd, char* buffer, std::size_t size, std::uint64_t offset);
/// A whole small file of our own below a directory; `not_found` if it is absent.
Result<std::string> read_file(int directory, const char* name);
/// Whether a file is on disk when the call that writes it returns.
enum class Durability : std::uint8_t { kLater, kNow };
/// Replaces a file of our own in one step; `name` is one component.
Result<void> replace_file(int directory, const char* name, std::string_view bytes, Durability durability);
/// The `busy` of work whose Progress answered false.
Unexpected stopped();
/// Whether something has this host path; a link itself counts.
Result<bool> is_there(const std::filesystem::path& path);

}  // namespace okcvm::snapshots
