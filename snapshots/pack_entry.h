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
/// names, which do not compress, and a snapshot of few changes would spend its time on them.
Result<PackEntry> make_pack_entry(const Oid& oid, ObjectKind kind, std::string_view bytes);

/// The compression used for large and small blobs alike: fast first, as a snapshot is taken between two steps
/// of an agent; an operator's `git gc` may pack tighter.
inline constexpr int kCompressionLevel = 1;

}  // namespace okcvm::snapshots
