#include "snapshots/pack_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <limits>

#include "policy/fault.h"
#include "snapshots/checksum.h"
#include "snapshots/io.h"

namespace okcvm::snapshots {
namespace {

constexpr std::string_view kWhat = "a pack cannot be written";
constexpr std::size_t kBufferSize = 4 << 20;
constexpr std::size_t kHeaderSize = 12;
constexpr std::uint64_t kMaxSmallOffset = 0x7fffffff;

void append_be32(std::uint32_t value, std::string& out) {
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(value >> shift & 0xff);
}

void append_be64(std::uint64_t value, std::string& out) {
  append_be32(static_cast<std::uint32_t>(value >> 32), out);
  append_be32(static_cast<std::uint32_t>(value), out);
}

std::string header(std::size_t objects) {
  std::string bytes = "PACK";
  append_be32(2, bytes);
  append_be32(static_cast<std::uint32_t>(objects), bytes);
  return bytes;
}

}  // namespace

Result<void> PackWriter::add(const PackEntry& entry) {
  if (buffer_.empty() && flushed_ == 0) buffer_ = header(0);
  if (index_.size() == std::numeric_limits<std::uint32_t>::max()) return fail_errno(EFBIG, kWhat);
  index_.push_back({entry.oid, entry.crc, flushed_ + buffer_.size()});
  buffer_ += entry.bytes;
  return buffer_.size() < kBufferSize ? Result<void>() : flush();
}

Result<void> PackWriter::flush() {
  fault_point("pack.write");
  if (const int injected = fault_error("pack.write")) return fail_errno(injected, kWhat);
  if (!pack_) {
    const std::string file = name_ + ".pack";
    pack_ = FileDescriptor(
        ::openat(folder_, file.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0400));
    if (!pack_) return fail_errno(errno, kWhat);
  }
  if (auto written = write_all(pack_.get(), buffer_, kWhat); !written) return written;
  flushed_ += buffer_.size();
  buffer_.clear();
  return {};
}

/// The header says how many objects there are, which is known only now, and the checksum covers the header:
/// what has been written is read back for it. A small pack never left memory.
Result<Oid> PackWriter::seal_pack() {
  Checksum checksum;
  const std::string head = header(index_.size());
  if (flushed_ == 0) {
    buffer_.replace(0, kHeaderSize, head);
    checksum.add(buffer_);
  } else {
    if (auto flushed = flush(); !flushed) return fail(flushed.error());
    if (auto written = write_all_at(pack_.get(), head, 0, kWhat); !written) return fail(written.error());
    std::string chunk(kBufferSize, '\0');
    for (std::uint64_t at = 0; at < flushed_;) {
      auto got = read_at(pack_.get(), chunk.data(), chunk.size(), at);
      if (!got) return fail(got.error());
      if (*got == 0) return fail_errno(EIO, kWhat);
      checksum.add({chunk.data(), *got});
      at += *got;
    }
  }
  const Oid oid = checksum.finish();
  buffer_.append(oid.raw());
  if (auto flushed = flush(); !flushed) return fail(flushed.error());
  fault_point("pack.fsync");
  if (const int injected = fault_error("pack.fsync")) return fail_errno(injected, kWhat);
  if (::fsync(pack_.get()) != 0) return fail_errno(errno, kWhat);
  return oid;
}

Result<void> PackWriter::write_index(const Oid& pack_checksum) {
  std::sort(index_.begin(), index_.end(), [](const IndexRow& a, const IndexRow& b) { return a.oid < b.oid; });
  std::string bytes;
  bytes.reserve(1100 + index_.size() * 28);
  bytes += "\377tOc";
  append_be32(2, bytes);
  std::array<std::uint32_t, 256> fanout{};
  for (const auto& row : index_) ++fanout[row.oid.bytes[0]];
  std::uint32_t sum = 0;
  for (const auto count : fanout) append_be32(sum += count, bytes);
  for (const auto& row : index_) bytes.append(row.oid.raw());
  for (const auto& row : index_) append_be32(row.crc, bytes);
  std::string large;
  for (const auto& row : index_) {
    if (row.offset <= kMaxSmallOffset) {
      append_be32(static_cast<std::uint32_t>(row.offset), bytes);
    } else {
      append_be32(static_cast<std::uint32_t>(large.size() / 8) | 0x80000000u, bytes);
      append_be64(row.offset, large);
    }
  }
  bytes += large;
  bytes.append(pack_checksum.raw());
  Checksum checksum;
  checksum.add(bytes);
  bytes.append(checksum.finish().raw());

  fault_point("pack.index");
  if (const int injected = fault_error("pack.index")) return fail_errno(injected, kWhat);
  const std::string file = name_ + ".idx";
  const FileDescriptor index(
      ::openat(folder_, file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0400));
  if (!index) return fail_errno(errno, kWhat);
  if (auto written = write_all(index.get(), bytes, kWhat); !written) return written;
  fault_point("pack.index.fsync");
  if (::fsync(index.get()) != 0) return fail_errno(errno, kWhat);
  return {};
}

Result<Oid> PackWriter::finish() {
  auto checksum = seal_pack();
  if (!checksum) return checksum;
  if (auto written = write_index(*checksum); !written) return fail(written.error());
  return checksum;
}

}  // namespace okcvm::snapshots
