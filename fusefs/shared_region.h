#pragma once

#include <cstddef>
#include <filesystem>

#include "policy/error.h"
#include "policy/file_descriptor.h"

namespace okcvm::fusefs {

/// A file of fixed, sparse size mapped shared: what is stored there outlives the process, instruction by
/// instruction. Pages must be reserved before they are touched, so that a full file system is an error and
/// not a SIGBUS. Not thread-safe; its users lock.
class SharedRegion {
 public:
  /// Opens or makes `path` (0600). `is_new` tells whether it held nothing. ENOSPC and other errnos as they
  /// come.
  static Result<SharedRegion> open(const std::filesystem::path& path, std::size_t size, bool& is_new);

  SharedRegion(SharedRegion&& other) noexcept;
  SharedRegion& operator=(SharedRegion&&) = delete;
  ~SharedRegion();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  /// Makes the first `bytes` safe to touch. Grows by doubling steps, so it is cheap to call often.
  Result<void> reserve(std::size_t bytes);
  /// Makes `bytes` at `offset` safe to touch, wherever reserve() has come to.
  Result<void> reserve_part(std::size_t offset, std::size_t bytes);
  /// Gives back everything past the first `bytes`; it reads as zero afterwards.
  void shrink(std::size_t bytes);
  /// Gives back everything, also what was there when it was opened.
  void clear();

 private:
  SharedRegion(FileDescriptor file, std::byte* data, std::size_t size)
      : file_(std::move(file)), data_(data), size_(size) {}
  void drop(std::size_t keep, std::size_t end);

  FileDescriptor file_;
  std::byte* data_;
  std::size_t size_;
  std::size_t reserved_ = 0;
};

}  // namespace okcvm::fusefs
