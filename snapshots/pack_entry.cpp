#include "snapshots/pack_entry.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "snapshots/checksum.h"

namespace okcvm::snapshots {
namespace {

/// A deflate stream that is reset, not rebuilt, between objects. One thread's.
class Deflater final {
 public:
  explicit Deflater(int level) { ready_ = deflateInit(&stream_, level) == Z_OK; }
  ~Deflater() { deflateEnd(&stream_); }
  Deflater(const Deflater&) = delete;
  Deflater& operator=(const Deflater&) = delete;

  /// Appends the deflated bytes.
  bool append(std::string_view bytes, std::string& out) {
    if (!ready_ || deflateReset(&stream_) != Z_OK) return false;
    const std::size_t start = out.size();
    out.resize(start + deflateBound(&stream_, bytes.size()));
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
    stream_.avail_in = static_cast<uInt>(bytes.size());
    stream_.next_out = reinterpret_cast<Bytef*>(out.data() + start);
    stream_.avail_out = static_cast<uInt>(out.size() - start);
    if (deflate(&stream_, Z_FINISH) != Z_STREAM_END) return false;
    out.resize(start + stream_.total_out);
    return true;
  }

 private:
  z_stream stream_{};
  bool ready_ = false;
};

constexpr unsigned kDeltaOfNamed = 7;  // OBJ_REF_DELTA

void append_header(unsigned kind, std::uint64_t size, std::string& out) {
  auto byte = static_cast<unsigned char>(kind << 4 | (size & 15));
  for (size >>= 4; size > 0; size >>= 7) {
    out += static_cast<char>(byte | 0x80);
    byte = size & 0x7f;
  }
  out += static_cast<char>(byte);
}

/// Of a small one it is not worth asking.
bool is_to_be_compressed(ObjectKind kind, std::string_view bytes) {
  if (kind == ObjectKind::kTree) return false;
  return bytes.size() < kSampleSize ||
         looks_compressible(bytes.substr((bytes.size() - kSampleSize) / 2, kSampleSize));
}

Result<PackEntry> finish_entry(const Oid& oid, std::string_view bytes, bool compress, PackEntry entry) {
  thread_local Deflater fast(kCompressionLevel);
  thread_local Deflater plain(0);
  entry.oid = oid;
  if (bytes.size() > std::numeric_limits<uInt>::max())
    return fail(
        Code::kQuotaExceeded,
        "no snapshot was taken: the list of a directory, with its files' extended attributes, is too large");
  if (!(compress ? fast : plain).append(bytes, entry.bytes))
    return fail_errno(ENOMEM, "an object cannot be compressed");
  entry.crc = crc_number(entry.bytes);
  return entry;
}

}  // namespace

/// 256 bins, and the sum of squares of an even spread with some slack.
bool looks_compressible(std::string_view sample) {
  if (sample.size() < 4096) return true;
  std::array<std::uint64_t, 256> counts{};
  for (const char c : sample) ++counts[static_cast<unsigned char>(c)];
  double squares = 0;
  for (const auto count : counts) squares += static_cast<double>(count) * static_cast<double>(count);
  const double even = static_cast<double>(sample.size()) * static_cast<double>(sample.size()) / 256;
  return squares > even * 1.1;
}

Result<PackEntry> make_pack_entry(const Oid& oid, ObjectKind kind, std::string_view bytes) {
  PackEntry entry;
  append_header(static_cast<unsigned>(kind), bytes.size(), entry.bytes);
  return finish_entry(oid, bytes, is_to_be_compressed(kind, bytes), std::move(entry));
}

Result<PackEntry> make_delta_entry(const Oid& oid, const Oid& base, std::string_view delta) {
  PackEntry entry;
  append_header(kDeltaOfNamed, delta.size(), entry.bytes);
  entry.bytes += base.raw();
  return finish_entry(oid, delta, true, std::move(entry));
}

std::optional<PackEntryHead> head_of(std::string_view entry) {
  PackEntryHead head;
  const auto byte = [&entry](std::size_t at) { return static_cast<unsigned char>(entry[at]); };
  if (entry.empty()) return std::nullopt;
  const unsigned kind = byte(0) >> 4 & 7;
  head.size = byte(0) & 15;
  for (int shift = 4; byte(head.length++) & 0x80; shift += 7) {
    if (head.length == entry.size() || shift > 57) return std::nullopt;
    head.size |= static_cast<std::uint64_t>(byte(head.length) & 0x7f) << shift;
  }
  if (kind >= 1 && kind <= 3) head.kind = static_cast<ObjectKind>(kind);
  if (kind == kDeltaOfNamed) {
    if (entry.size() - head.length < Oid::kSize) return std::nullopt;
    head.base = Oid::from_raw(entry.data() + head.length);
    head.length += Oid::kSize;
  }
  return head;
}

Result<std::string> inflate_entry(std::string_view entry, const PackEntryHead& head, std::uint64_t size) {
  const auto deflated = entry.substr(head.length);
  std::string bytes(std::min(size, head.size), '\0');
  uLongf got = bytes.size();
  const int status = uncompress(reinterpret_cast<Bytef*>(bytes.data()), &got,
                                reinterpret_cast<const Bytef*>(deflated.data()), deflated.size());
  // There is more than there was room for, where only a part was wanted.
  const bool is_there = status == Z_OK || (status == Z_BUF_ERROR && bytes.size() < head.size);
  if (!is_there || got != bytes.size()) return fail(Code::kCorrupt, "an object of a pack is damaged");
  return bytes;
}

}  // namespace okcvm::snapshots
