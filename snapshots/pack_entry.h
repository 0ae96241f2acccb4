#pragma once

#include <cstdint>
#include <optional>
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

/// An object that is told by what makes it of another one in the same pack.
Result<PackEntry> make_delta_entry(const Oid& oid, const Oid& base, std::string_view delta);

/// What stands first in an entry.
struct PackEntryHead {
  std::optional<ObjectKind> kind;  // none: a delta, or what we do not write
  std::optional<Oid> base;         // of a delta that names it
  std::uint64_t size = 0;          // of what is deflated, in bytes
  std::size_t length = 0;          // of the head itself
};
/// None of bytes that are too few.
std::optional<PackEntryHead> head_of(std::string_view entry);
/// The first `size` bytes of what is deflated in an entry, or `corrupt`.
Result<std::string> inflate_entry(std::string_view entry, const PackEntryHead& head, std::uint64_t size);

/// Whether deflating is worth its time, by a sample of this size from the middle: one with a flat
/// distribution of bytes is compressed or encrypted already.
bool looks_compressible(std::string_view sample);
inline constexpr std::size_t kSampleSize = 64 << 10;

/// The compression used for large and small blobs alike: fast first, as a snapshot is taken between two steps
/// of an agent; an operator's `git gc` may pack tighter.
inline constexpr int kCompressionLevel = 1;

}  // namespace okcvm::snapshots
