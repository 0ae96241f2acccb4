#include "policy/session_id.h"

#include <algorithm>
#include <cstdio>

namespace okcvm {
namespace {

bool is_alphanumeric(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

}  // namespace

Result<SessionId> SessionId::parse(std::string_view text) {
  const auto allowed = [](char c) { return is_alphanumeric(c) || c == '.' || c == '_' || c == '-'; };
  if (text.empty() || text.size() > 64 || !is_alphanumeric(text.front()) ||
      !std::all_of(text.begin(), text.end(), allowed))
    return fail(
        Code::kInvalidRequest,
        "a session id is 1 to 64 of letters, digits, '.', '_' and '-', and starts with a letter or digit");
  return SessionId(std::string(text));
}

SessionId SessionId::from_random(unsigned int bits) {
  char text[9];
  std::snprintf(text, sizeof text, "%08x", bits);
  return SessionId(text);
}

}  // namespace okcvm
