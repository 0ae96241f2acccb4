#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace okcvm::snapshots {

/// The SHA-1 name of a git object. All zero: no object.
struct Oid {
  static constexpr std::size_t kSize = 20;
  static constexpr std::size_t kHexSize = 40;

  std::array<unsigned char, kSize> bytes{};

  bool is_none() const { return *this == Oid{}; }
  std::string_view raw() const { return {reinterpret_cast<const char*>(bytes.data()), kSize}; }
  static Oid from_raw(const char* raw) {
    Oid oid;
    std::memcpy(oid.bytes.data(), raw, kSize);
    return oid;
  }
  /// 40 lower-case hex digits.
  std::string hex() const;
  static std::optional<Oid> parse(std::string_view hex);

  friend bool operator==(const Oid&, const Oid&) = default;
  friend auto operator<=>(const Oid&, const Oid&) = default;  // NOLINT(modernize-use-nullptr)
};

struct OidHash {
  std::size_t operator()(const Oid& oid) const {
    std::size_t value;
    std::memcpy(&value, oid.bytes.data(), sizeof value);
    return value;
  }
};

}  // namespace okcvm::snapshots
