#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "policy/error.h"

namespace okcvm::daemon {

/// Percent-decoding; "+" stays itself. `invalid_request` for a broken escape or a NUL byte.
Result<std::string> percent_decoded(std::string_view text);

/// "a=1&b=2", decoded. `invalid_request` for a name given twice.
Result<std::map<std::string, std::string, std::less<>>> parse_query(std::string_view text);

struct ByteRange {
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
};
/// A Range header of one range held against a body of `size` bytes (RFC 9110, 14). No range: it is to be
/// ignored (several, another unit, not well-formed). `invalid_request`: it lies outside.
Result<std::optional<ByteRange>> parse_range(std::string_view header, std::uint64_t size);

}  // namespace okcvm::daemon
