#include "policy/utf8.h"

#include <boost/locale/utf.hpp>

namespace okcvm {

std::optional<Utf8Character> utf8_character(std::string_view bytes) {
  namespace utf = boost::locale::utf;
  const char* at = bytes.data();
  const auto point = utf::utf_traits<char>::decode(at, bytes.data() + bytes.size());
  if (!utf::is_valid_codepoint(point)) return std::nullopt;
  return Utf8Character{point, static_cast<std::size_t>(at - bytes.data())};
}

bool is_utf8(std::string_view bytes) {
  while (!bytes.empty()) {
    const auto character = utf8_character(bytes);
    if (!character) return false;
    bytes.remove_prefix(character->size);
  }
  return true;
}

std::string_view truncated_utf8(std::string_view text, std::size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0) == 0x80) --most;
  return text.substr(0, most);
}

}  // namespace okcvm
