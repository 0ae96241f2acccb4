#include "snapshots/loose_reader.h"

#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <utility>

namespace okcvm::snapshots {
namespace {

constexpr std::size_t kInput = 256 << 10;
constexpr std::size_t kOutput = 1 << 20;
constexpr std::string_view kBlob = "blob ";
constexpr std::size_t kLongestHead = 32;  // "blob ", 20 digits and a NUL byte

}  // namespace

LooseReader::LooseReader(FileDescriptor file) : file_(std::move(file)) {
  ready_ = inflateInit(&stream_) == Z_OK;
}

LooseReader::~LooseReader() {
  if (ready_) inflateEnd(&stream_);
}

/// Adds what can be had to `piece_`, which is never empty afterwards unless the stream has ended.
bool LooseReader::inflate_more() {
  output_.assign(piece_);
  const std::size_t kept = output_.size();
  output_.resize(kept + kOutput);
  stream_.next_out = reinterpret_cast<Bytef*>(output_.data() + kept);
  stream_.avail_out = kOutput;
  while (!ended_ && stream_.avail_out == kOutput) {
    if (stream_.avail_in == 0) {
      input_.resize(kInput);
      ssize_t got = 0;
      do got = ::read(file_.get(), input_.data(), input_.size());
      while (got < 0 && errno == EINTR);
      if (got <= 0) return false;
      stream_.next_in = reinterpret_cast<Bytef*>(input_.data());
      stream_.avail_in = static_cast<uInt>(got);
    }
    const int status = inflate(&stream_, Z_NO_FLUSH);
    if (status != Z_OK && status != Z_STREAM_END) return false;
    ended_ = status == Z_STREAM_END;
  }
  output_.resize(kept + kOutput - stream_.avail_out);
  piece_ = output_;
  return true;
}

std::optional<std::uint64_t> LooseReader::begin() {
  if (!ready_) return std::nullopt;
  while (piece_.find('\0') == piece_.npos) {
    if (ended_ || piece_.size() >= kLongestHead || !inflate_more()) return std::nullopt;
  }
  const auto end = piece_.find('\0');
  const auto [stop, error] = std::from_chars(piece_.data() + kBlob.size(), piece_.data() + end, left_);
  if (!piece_.starts_with(kBlob) || error != std::errc() || stop != piece_.data() + end) return std::nullopt;
  piece_.remove_prefix(end + 1);
  return left_;
}

std::optional<std::string_view> LooseReader::next() {
  if (piece_.empty() && !ended_ && !inflate_more()) return std::nullopt;
  const std::string_view piece = std::exchange(piece_, {});
  const bool is_last = piece.empty() && ended_;
  if (piece.size() > left_ || (is_last && left_ > 0)) return std::nullopt;
  left_ -= piece.size();
  return piece;
}

}  // namespace okcvm::snapshots
