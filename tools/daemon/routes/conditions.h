#pragma once

#include <initializer_list>
#include <optional>
#include <string>

#include "fusefs/files.h"
#include "policy/error.h"
#include "tools/daemon/http/message.h"

namespace okcvm::daemon::routes {

/// HTTP's own date form (RFC 9110, 5.6.7), which counts seconds.
std::string http_date(const timespec& time);

/// What a request asks for of what is there, by the tags and times that are told of it (RFC 9110, 13.1). A
/// time is asked for only where no tag is, and a date that is none asks for nothing.
class Conditions final {
 public:
  explicit Conditions(const Request& request);

  bool are_none() const { return match_.empty() && none_match_.empty() && !unmodified_since_; }
  /// If-Match and If-Unmodified-Since, of what is there: nothing, or a file, or a link and what it leads to.
  /// Null for what is not there. errno ECANCELED: answered as 412.
  Result<void> check(std::initializer_list<const fusefs::FileInfo*> there) const;
  /// The same, and If-None-Match, as a change has to meet it.
  Result<void> check_change(std::initializer_list<const fusefs::FileInfo*> there) const;
  /// Whether a reader has it already: answered as 304.
  bool is_known(const fusefs::FileInfo& file) const;

 private:
  const std::string match_, none_match_;
  const std::optional<time_t> unmodified_since_, modified_since_;
};

}  // namespace okcvm::daemon::routes
