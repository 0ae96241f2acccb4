#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "policy/error.h"
#include "snapshots/oid.h"
#include "snapshots/repository.h"

namespace okcvm::snapshots {

/// One object as it stands in a pack: kind and size, then the deflated bytes (gitformat-pack(5)).
struct PackEntry {
  Oid oid;
  std::string bytes;
  std::uint32_t crc = 0;
};

/// Thread-safe; each thread keeps its own deflate state. Trees are stored as they are: half of them is object
/// names, which do not compress, and a snapshot of few changes would spend its time on them. So are blobs
/// that do not look compressible.
Result<PackEntry> make_pack_entry(const Oid& oid, ObjectKind kind, std::string_view bytes);

/// Whether deflating is worth its time, by a sample of this size from the middle: one with a flat
/// distribution of bytes is compressed or encrypted already.
bool looks_compressible(std::string_view sample);
inline constexpr std::size_t kSampleSize = 64 << 10;

/// The compression used for large and small blobs alike: fast first, as a snapshot is taken between two steps
/// of an agent; an operator's `git gc` may pack tighter.
inline constexpr int kCompressionLevel = 1;

}  // namespace okcvm::snapshots
