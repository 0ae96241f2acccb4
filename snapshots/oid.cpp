#include "snapshots/oid.h"

namespace okcvm::snapshots {
namespace {

constexpr std::string_view kDigits = "0123456789abcdef";

}  // namespace

std::string Oid::hex() const {
  std::string text;
  text.reserve(kHexSize);
  for (const unsigned char byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::optional<Oid> Oid::parse(std::string_view hex) {
  if (hex.size() != kHexSize) return std::nullopt;
  Oid oid;
  for (std::size_t i = 0; i < kHexSize; ++i) {
    const auto digit = kDigits.find(hex[i]);
    if (digit == kDigits.npos) return std::nullopt;
    auto& byte = oid.bytes[i / 2];
    byte = static_cast<unsigned char>(byte << 4 | digit);
  }
  return oid;
}

}  // namespace okcvm::snapshots
