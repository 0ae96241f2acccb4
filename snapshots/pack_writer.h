#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "policy/error.h"
#include "policy/file_descriptor.h"
#include "snapshots/pack_entry.h"

namespace okcvm::snapshots {

/// Writes one pack and its index (version 2) into a folder, under the names NAME.pack and NAME.idx. A
/// delta's base is to be added, too. Dropped before finish(), it leaves files for the caller to remove. Not
/// thread-safe.
class PackWriter final {
 public:
  /// `folder` is borrowed.
  PackWriter(int folder, std::string name) : folder_(folder), name_(std::move(name)) {}

  Result<void> add(const PackEntry& entry);
  bool empty() const { return index_.empty(); }
  /// Completes both files, on disk (fsync). Answers the pack's checksum, by which git names it.
  Result<Oid> finish();

 private:
  struct IndexRow {
    Oid oid;
    std::uint32_t crc;
    std::uint64_t offset;
  };
  Result<void> flush();
  Result<Oid> seal_pack();
  Result<void> write_index(const Oid& pack_checksum);

  int folder_;
  std::string name_;
  FileDescriptor pack_;
  std::string buffer_;         // what is not in the file yet
  std::uint64_t flushed_ = 0;  // bytes in the file
  std::vector<IndexRow> index_;
};

}  // namespace okcvm::snapshots
