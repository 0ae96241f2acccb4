#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "policy/file_descriptor.h"

/// Plain reading and writing for tests. Whatever fails here is a test failure, named with its path and errno.
namespace okcvm::test {

/// An open descriptor; a failure (and an empty descriptor) if it cannot be had.
FileDescriptor open_file(const std::filesystem::path& path, int flags, mode_t mode = 0644);

/// All bytes of a file.
std::string read(const std::filesystem::path& path);
/// All bytes from the start of an open file; its offset does not move.
std::string read(const FileDescriptor& file);

/// Makes or replaces a file's content in place.
void write(const std::filesystem::path& path, std::string_view bytes, mode_t mode = 0644);
void append(const std::filesystem::path& path, std::string_view bytes);
/// write(2) until all is written.
void write_all(const FileDescriptor& file, std::string_view bytes);

/// lstat(2) and fstat(2).
struct stat stat_of(const std::filesystem::path& path);
struct stat stat_of(const FileDescriptor& file);
/// The twelve permission bits.
mode_t mode_of(const std::filesystem::path& path);

/// The names in a directory, sorted, without "." and "..".
std::vector<std::string> list(const std::filesystem::path& directory);
bool there_is(const std::filesystem::path& path);
/// Where a link points.
std::string link_text(const std::filesystem::path& path);

/// chattr(1): sets or clears one flag (FS_IMMUTABLE_FL, FS_APPEND_FL), by any path of the file or directory.
/// False where the file system does not have it.
bool set_flag(const std::filesystem::path& path, int flag, bool on);

/// `size` bytes that look random and are the same for the same seed.
std::string pattern(std::size_t size, unsigned int seed = 1);

}  // namespace okcvm::test
