#pragma once

#include <spdlog/spdlog.h>

#include <string>

namespace okcvm::daemon {

/// Sets the process's log: standard error, "text" or "json" (one object a line), from a level on ("debug",
/// "info", "warning", "error"). Never holds contents of files.
void set_up_log(const std::string& level, const std::string& format);

template <typename... Arguments>
void log_info(fmt::format_string<Arguments...> text, Arguments&&... arguments) {
  spdlog::info(text, std::forward<Arguments>(arguments)...);
}
template <typename... Arguments>
void log_warning(fmt::format_string<Arguments...> text, Arguments&&... arguments) {
  spdlog::warn(text, std::forward<Arguments>(arguments)...);
}
template <typename... Arguments>
void log_error(fmt::format_string<Arguments...> text, Arguments&&... arguments) {
  spdlog::error(text, std::forward<Arguments>(arguments)...);
}

/// One line for an answered request, with its fields apart in JSON form.
struct RequestLine {
  std::string request;  // id
  std::string session;  // id; empty if none
  std::string method;
  std::string route;  // the pattern, so that no path or query is shown
  int status = 0;
  long uid = 0;
  double milliseconds = 0;
};
void log_request(const RequestLine& line);

}  // namespace okcvm::daemon
