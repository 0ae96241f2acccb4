#include "snapshots/pack_entry.h"

#include <zlib.h>

#include <array>

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

void append_header(ObjectKind kind, std::uint64_t size, std::string& out) {
  auto byte = static_cast<unsigned char>(static_cast<unsigned>(kind) << 4 | (size & 15));
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
  thread_local Deflater fast(kCompressionLevel);
  thread_local Deflater plain(0);
  PackEntry entry;
  entry.oid = oid;
  append_header(kind, bytes.size(), entry.bytes);
  if (!(is_to_be_compressed(kind, bytes) ? fast : plain).append(bytes, entry.bytes))
    return fail_errno(ENOMEM, "an object cannot be compressed");
  entry.crc = static_cast<std::uint32_t>(
      crc32(0, reinterpret_cast<const Bytef*>(entry.bytes.data()), static_cast<uInt>(entry.bytes.size())));
  return entry;
}

}  // namespace okcvm::snapshots
