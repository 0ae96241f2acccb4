#include "tools/daemon/http/message.h"

#include <cerrno>
#include <nlohmann/json.hpp>

namespace okcvm::daemon {

std::string_view Request::header(std::string_view name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? std::string_view() : std::string_view(found->second);
}

namespace {

/// Where an errno tells more than its code's status: a condition that did not hold, a body that is too large.
int status_of(const Error& error) {
  switch (error.errno_value) {
    case ECANCELED:
      return 412;
    case EFBIG:
      return 413;
    default:
      return text_of(error.code).http_status;
  }
}

}  // namespace

Response error_response(const Error& error, const Request& request, int status) {
  using nlohmann::ordered_json;
  ordered_json details;
  details["code"] = text_of(error.code).name;
  details["message"] = error.message;
  if (!error.path.empty()) details["path"] = error.path;
  details["request_id"] = request.id;
  ordered_json body{{"error", details}};
  if (request.path.starts_with(kOlderRoutes)) body["detail"] = error.message;
  Response response;
  response.status = status ? status : status_of(error);
  response.body = body.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
  return response;
}

}  // namespace okcvm::daemon
