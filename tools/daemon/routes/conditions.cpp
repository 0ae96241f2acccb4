#include "tools/daemon/routes/conditions.h"

#include <time.h>

#include <algorithm>
#include <cerrno>

#include "policy/iso_time.h"
#include "tools/daemon/routes/views.h"

namespace okcvm::daemon::routes {
namespace {

constexpr const char* kDate = "%a, %d %b %Y %H:%M:%S GMT";

/// In each of the forms that RFC 9110 knows.
std::optional<time_t> parse_http_date(std::string_view text) {
  const std::string copy(text.substr(0, 64));
  for (const char* form : {kDate, "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y"}) {
    tm parts{};
    const char* rest = ::strptime(copy.c_str(), form, &parts);
    if (rest && *rest == '\0') return ::timegm(&parts);
  }
  return std::nullopt;
}

/// Whether a list of entity tags, or "*", names this one. Compared strongly, a weak tag ("W/" before it)
/// names none (RFC 9110, 8.8.3.2).
bool names_tag(std::string_view list, std::string_view tag, bool strongly) {
  if (list == "*") return true;
  for (auto at = list.find(tag); at != list.npos; at = list.find(tag, at + 1))
    if (!strongly || !list.substr(0, at).ends_with("W/")) return true;
  return false;
}

bool names_one(std::string_view list, std::initializer_list<const fusefs::FileInfo*> there, bool strongly) {
  return std::any_of(there.begin(), there.end(),
                     [&](const auto* info) { return info && names_tag(list, etag_of(*info), strongly); });
}

Unexpected not_met(Error error) {
  error.errno_value = ECANCELED;
  return fail(std::move(error));
}

Unexpected is_another() {
  return not_met(Error::of(Code::kBusy, "the file is not the one that was asked for: read it again"));
}

}  // namespace

std::string http_date(const timespec& time) {
  const tm parts = utc_of(time.tv_sec);
  char text[64];
  std::strftime(text, sizeof text, kDate, &parts);
  return text;
}

Conditions::Conditions(const Request& request)
    : match_(request.header("if-match")),
      none_match_(request.header("if-none-match")),
      unmodified_since_(parse_http_date(request.header("if-unmodified-since"))),
      modified_since_(parse_http_date(request.header("if-modified-since"))) {}

Result<void> Conditions::check(std::initializer_list<const fusefs::FileInfo*> there) const {
  const bool is_newer = std::any_of(there.begin(), there.end(), [&](const auto* info) {
    return info && unmodified_since_ && info->modified.tv_sec > *unmodified_since_;
  });
  if (match_.empty() ? !is_newer : names_one(match_, there, true)) return {};
  return is_another();
}

Result<void> Conditions::check_change(std::initializer_list<const fusefs::FileInfo*> there) const {
  if (auto met = check(there); !met) return met;
  if (none_match_.empty() || !names_one(none_match_, there, false)) return {};
  if (none_match_ != "*") return is_another();
  return not_met(Error::of(Code::kAlreadyExists, "there is a file at this path already"));
}

bool Conditions::is_known(const fusefs::FileInfo& file) const {
  if (!none_match_.empty()) return names_one(none_match_, {&file}, false);
  return modified_since_ && file.modified.tv_sec <= *modified_since_;
}

}  // namespace okcvm::daemon::routes
