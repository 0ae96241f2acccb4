#pragma once

#include <zlib.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "policy/file_descriptor.h"

namespace okcvm::snapshots {

/// Inflates the blob in a loose object file piece by piece. (libgit2's own stream maps the whole file, so
/// that memory would grow with it.) Not thread-safe.
class LooseReader final {
 public:
  /// `file` is open for reading, at its start.
  explicit LooseReader(FileDescriptor file);
  ~LooseReader();
  LooseReader(const LooseReader&) = delete;
  LooseReader& operator=(const LooseReader&) = delete;

  /// The size that the object's head tells; nothing if it is damaged or no blob. Called first.
  std::optional<std::uint64_t> begin();
  /// The next piece, valid until the next call; empty after the last. Nothing if the object is damaged or
  /// longer or shorter than its head says.
  std::optional<std::string_view> next();

 private:
  bool inflate_more();

  FileDescriptor file_;
  z_stream stream_{};
  bool ready_ = false, ended_ = false;
  std::string input_, output_;
  std::string_view piece_;  // what is inflated and not given out
  std::uint64_t left_ = 0;
};

}  // namespace okcvm::snapshots
