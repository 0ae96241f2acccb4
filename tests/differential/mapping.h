#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "policy/file_descriptor.h"

namespace okcvm::differential {

/// A shared mapping of a file. What lies behind the end of the file, in its last page, is not touched:
/// whether it is kept there is left to the file system (mmap(2)).
class Mapping final {
 public:
  Mapping() = default;
  /// Of the first `size` bytes; is_there() tells whether it could be had, else errno why not.
  Mapping(int file, std::size_t size);
  ~Mapping() { unmap(); }
  Mapping(Mapping&& other) noexcept { *this = std::move(other); }
  Mapping& operator=(Mapping&& other) noexcept;

  bool is_there() const { return memory_ != nullptr; }
  std::size_t size() const { return size_; }
  /// How many bytes were stored, and written to the file; or -1 with an errno.
  long store(std::size_t at, std::string_view bytes);
  std::string load() const;
  /// fstat(2) of the file.
  struct stat status() const;
  void unmap();

 private:
  /// How much of it the file still has.
  std::size_t usable() const;

  FileDescriptor file_;  // O_PATH: it does not count as open
  std::byte* memory_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace okcvm::differential
