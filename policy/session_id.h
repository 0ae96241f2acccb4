#pragma once

#include <string>
#include <string_view>

#include "policy/error.h"

namespace okcvm {

/// A session's name: `[A-Za-z0-9][A-Za-z0-9._-]{0,63}` (DESIGN section 2), valid by construction.
class SessionId {
 public:
  static Result<SessionId> parse(std::string_view text);
  /// Eight lower-case hex digits made of 32 random bits.
  static SessionId from_random(unsigned int bits);

  const std::string& text() const { return text_; }
  friend bool operator==(const SessionId&, const SessionId&) = default;
  friend auto operator<=>(const SessionId&, const SessionId&) = default;  // NOLINT(modernize-use-nullptr)

 private:
  explicit SessionId(std::string text) : text_(std::move(text)) {}
  std::string text_;
};

}  // namespace okcvm
