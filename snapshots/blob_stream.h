#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "policy/error.h"
#include "snapshots/oid.h"

namespace okcvm::snapshots {

/// A blob of known size on its way to its name, piece by piece, so that memory stays flat. Not thread-safe.
class BlobStream final {
 public:
  /// Only finds the name.
  static Result<BlobStream> hash_only(std::uint64_t size);
  /// Also writes a loose object (zlib: "blob SIZE", NUL, bytes) to a new file in `folder`, on disk (fsync)
  /// when finish() returns. Without `compress` its bytes stand in it as they are.
  static Result<BlobStream> store(int folder, const std::string& name, std::uint64_t size, bool compress);
  BlobStream(BlobStream&&) noexcept;
  ~BlobStream();

  Result<void> write(std::string_view piece);
  /// After exactly `size` bytes.
  Result<Oid> finish();

 private:
  struct State;
  explicit BlobStream(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace okcvm::snapshots
