#include "tests/support/file_io.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <memory>
#include <random>

namespace okcvm::test {
namespace {

void report(std::string_view what, const std::filesystem::path& path) {
  const int error = errno;
  ADD_FAILURE() << what << " " << path << ": " << std::strerror(error);
}

}  // namespace

FileDescriptor open_file(const std::filesystem::path& path, int flags, mode_t mode) {
  FileDescriptor file(::open(path.c_str(), flags | O_CLOEXEC, mode));
  if (!file) report("open", path);
  return file;
}

std::string read(const FileDescriptor& file) {
  std::string bytes;
  std::vector<char> buffer(1 << 16);
  for (;;) {
    const auto got = ::pread(file.get(), buffer.data(), buffer.size(), static_cast<off_t>(bytes.size()));
    if (got < 0) report("pread", "(descriptor)");
    if (got <= 0) return bytes;
    bytes.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

std::string read(const std::filesystem::path& path) {
  const auto file = open_file(path, O_RDONLY);
  return file ? read(file) : std::string();
}

void write_all(const FileDescriptor& file, std::string_view bytes) {
  while (!bytes.empty()) {
    const auto put = ::write(file.get(), bytes.data(), bytes.size());
    if (put <= 0) return report("write", "(descriptor)");
    bytes.remove_prefix(static_cast<std::size_t>(put));
  }
}

void write(const std::filesystem::path& path, std::string_view bytes, mode_t mode) {
  const auto file = open_file(path, O_WRONLY | O_CREAT | O_TRUNC, mode);
  if (file) write_all(file, bytes);
}

void append(const std::filesystem::path& path, std::string_view bytes) {
  const auto file = open_file(path, O_WRONLY | O_APPEND);
  if (file) write_all(file, bytes);
}

struct stat stat_of(const std::filesystem::path& path) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) report("lstat", path);
  return found;
}

struct stat stat_of(const FileDescriptor& file) {
  struct stat found {};
  if (::fstat(file.get(), &found) != 0) report("fstat", "(descriptor)");
  return found;
}

mode_t mode_of(const std::filesystem::path& path) {
  return stat_of(path).st_mode & 07777;
}

std::vector<std::string> list(const std::filesystem::path& directory) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(directory.c_str()), ::closedir);
  if (!stream) {
    report("opendir", directory);
    return names;
  }
  errno = 0;
  while (const dirent* entry = ::readdir(stream.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  if (errno != 0) report("readdir", directory);
  std::sort(names.begin(), names.end());
  return names;
}

bool there_is(const std::filesystem::path& path) {
  struct stat found {};
  return ::lstat(path.c_str(), &found) == 0;
}

std::string link_text(const std::filesystem::path& path) {
  std::array<char, PATH_MAX> text;
  const auto size = ::readlink(path.c_str(), text.data(), text.size());
  if (size >= 0) return {text.data(), static_cast<std::size_t>(size)};
  report("readlink", path);
  return {};
}

bool set_flag(const std::filesystem::path& path, int flag, bool on) {
  const auto file = open_file(path, O_RDONLY);
  int flags = 0;
  if (::ioctl(file.get(), FS_IOC_GETFLAGS, &flags) != 0) return false;
  flags = on ? flags | flag : flags & ~flag;
  return ::ioctl(file.get(), FS_IOC_SETFLAGS, &flags) == 0;
}

std::string pattern(std::size_t size, unsigned int seed) {
  std::mt19937 random(seed);
  std::string bytes(size, '\0');
  for (auto& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

}  // namespace okcvm::test
