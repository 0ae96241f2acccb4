#include "tools/daemon/http/uri.h"

#include <algorithm>
#include <charconv>
#include <limits>

namespace okcvm::daemon {
namespace {

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

/// One that is too large counts as the largest.
std::optional<std::uint64_t> to_number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || end != text.data() + text.size()) return std::nullopt;
  return error == std::errc() ? value : std::numeric_limits<std::uint64_t>::max();
}

/// A "+" is a space in queries, as HTML forms and every client library write it.
Result<std::string> decoded_field(std::string_view text) {
  std::string spaced(text);
  std::replace(spaced.begin(), spaced.end(), '+', ' ');
  return percent_decoded(spaced);
}

}  // namespace

Result<std::string> percent_decoded(std::string_view text) {
  std::string decoded;
  decoded.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      const int high = i + 2 < text.size() ? hex_value(text[i + 1]) : -1;
      const int low = i + 2 < text.size() ? hex_value(text[i + 2]) : -1;
      if (high < 0 || low < 0) return fail(Code::kInvalidRequest, "the address has a broken percent escape");
      c = static_cast<char>(high * 16 + low);
      i += 2;
    }
    if (c == '\0') return fail(Code::kInvalidRequest, "the address contains a NUL byte");
    decoded.push_back(c);
  }
  return decoded;
}

Result<std::map<std::string, std::string, std::less<>>> parse_query(std::string_view text) {
  std::map<std::string, std::string, std::less<>> query;
  while (!text.empty()) {
    const auto field = text.substr(0, text.find('&'));
    text.remove_prefix(std::min(field.size() + 1, text.size()));
    if (field.empty()) continue;
    const auto equals = field.find('=');
    auto name = decoded_field(field.substr(0, equals));
    auto value = decoded_field(equals == field.npos ? std::string_view() : field.substr(equals + 1));
    if (!name) return fail(name.error());
    if (!value) return fail(value.error());
    if (!query.emplace(*name, std::move(*value)).second)
      return fail(Code::kInvalidRequest, "the query names " + *name + " twice");
  }
  return query;
}

Result<std::optional<ByteRange>> parse_range(std::string_view header, std::uint64_t size) {
  constexpr std::string_view kUnit = "bytes=";
  if (!header.starts_with(kUnit)) return std::nullopt;
  header.remove_prefix(kUnit.size());
  const auto dash = header.find('-');
  if (dash == header.npos || header.find(',') != header.npos) return std::nullopt;
  const auto first_text = header.substr(0, dash);
  const auto last_text = header.substr(dash + 1);
  const auto first = to_number(first_text);
  const auto last = to_number(last_text);
  if ((!first && !first_text.empty()) || (!last && !last_text.empty()) || (!first && !last))
    return std::nullopt;

  const auto outside = [&] {
    return fail(Code::kInvalidRequest,
                "the range lies outside of the file's " + std::to_string(size) + " bytes");
  };
  if (!first) {  // the last so many bytes
    if (*last == 0 || size == 0) return outside();
    const auto length = std::min(*last, size);
    return ByteRange{size - length, length};
  }
  if (last && *last < *first) return std::nullopt;
  if (*first >= size) return outside();
  const auto end = last ? std::min(*last, size - 1) : size - 1;
  return ByteRange{*first, end - *first + 1};
}

}  // namespace okcvm::daemon
