#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace okcvm {

struct Utf8Character {
  char32_t code_point;
  std::size_t size;  // bytes
};

/// The character at the start of the bytes; nothing where none stands (Unicode 15, table 3-7: overlong forms
/// and surrogates are none).
std::optional<Utf8Character> utf8_character(std::string_view bytes);

/// Whether bytes are UTF-8 text, which alone JSON can tell as it is (RFC 8259, 8.1).
bool is_utf8(std::string_view bytes);

/// The first bytes of a text, at most `most`, and no part of a character at the end.
std::string_view truncated_utf8(std::string_view text, std::size_t most);

}  // namespace okcvm
