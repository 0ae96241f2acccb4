#include "policy/percent_encoding.h"

namespace okcvm {
namespace {

std::string encoded_but(std::string_view bytes, std::string_view kept) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string encoded;
  for (const char c : bytes) {
    const bool is_alphanumeric = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (is_alphanumeric || kept.find(c) != kept.npos) {
      encoded.push_back(c);
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    encoded.append({'%', kHex[byte >> 4], kHex[byte & 15]});
  }
  return encoded;
}

}  // namespace

std::string percent_encoded(std::string_view component) {
  return encoded_but(component, "-._~");
}

std::string percent_encoded_path(std::string_view path) {
  return encoded_but(path, "-._~/");
}

}  // namespace okcvm
