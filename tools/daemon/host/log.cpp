#include "tools/daemon/host/log.h"

#include <limits.h>
#include <poll.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "policy/utf8.h"

namespace okcvm::daemon {
namespace {

bool is_json = false;

/// %J: the message as a JSON string, or as fields of its own when it is an object already (log_request).
class JsonMessage final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    using nlohmann::json;
    const std::string_view text(message.payload.data(), message.payload.size());
    if (text.starts_with("{\"request\":")) {
      out.append(text.data() + 1, text.data() + text.size() - 1);
      return;
    }
    const auto line = "\"message\":" + json(text).dump(-1, ' ', false, json::error_handler_t::replace);
    out.append(line.data(), line.data() + line.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return spdlog::details::make_unique<JsonMessage>();
  }
};

/// %Q: the message as one line of UTF-8 without control characters (C0, DEL, C1): a name in it must not forge
/// lines, nor speak to the terminal that shows them.
class OneLine final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    std::string_view rest(message.payload.data(), message.payload.size());
    while (!rest.empty()) {
      const auto character = utf8_character(rest);
      const char32_t point = character ? character->code_point : 0;
      const bool is_shown = point >= 0x20 && (point < 0x7f || point >= 0xa0);
      const std::string_view shown = is_shown ? rest.substr(0, character->size) : "?";
      out.append(shown.data(), shown.data() + shown.size());
      rest.remove_prefix(is_shown ? shown.size() : 1);
    }
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return spdlog::details::make_unique<OneLine>();
  }
};

/// Standard error, but nothing waits for who does not read it: lines that find no room within a moment are
/// left out, and counted.
class StandardError final : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (left_out_ > 0) {
      const auto text = fmt::format("{} lines were left out, for nobody read the log", left_out_);
      if (write_line({message.logger_name, spdlog::level::warn, text})) left_out_ = 0;
    }
    if (left_out_ > 0 || !write_line(message)) ++left_out_;
  }
  void flush_() override {}

 private:
  static constexpr int kMoment = 100;  // milliseconds

  bool write_line(const spdlog::details::log_msg& message) {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    return write({line.data(), line.size()});
  }
  /// In pieces that a pipe takes without waiting once it says that there is room (pipe(7)).
  bool write(std::string_view text) const {
    while (!text.empty()) {
      pollfd room{STDERR_FILENO, POLLOUT, 0};
      if (::poll(&room, 1, left_out_ > 0 ? 0 : kMoment) != 1) return false;
      const ssize_t written =
          ::write(STDERR_FILENO, text.data(), std::min(text.size(), std::size_t{PIPE_BUF}));
      if (written <= 0) return false;
      text.remove_prefix(static_cast<std::size_t>(written));
    }
    return true;
  }

  std::uint64_t left_out_ = 0;
};

}  // namespace

void set_up_log(const std::string& level, const std::string& format) {
  is_json = format == "json";
  auto logger = std::make_shared<spdlog::logger>("okcvmd", std::make_shared<StandardError>());
  auto formatter = std::make_unique<spdlog::pattern_formatter>(spdlog::pattern_time_type::utc);
  formatter->add_flag<JsonMessage>('J').add_flag<OneLine>('Q');
  formatter->set_pattern(is_json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l",%J})"
                                 : "%Y-%m-%dT%H:%M:%S.%eZ %l %Q");
  logger->set_formatter(std::move(formatter));
  logger->set_level(spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
}

void log_request(const RequestLine& line) {
  const auto level = line.status >= 500 ? spdlog::level::err : spdlog::level::info;
  if (!is_json) {
    spdlog::log(level, "request={} session={} uid={} {} {} {} {:.1f}ms", line.request,
                line.session.empty() ? "-" : line.session, line.uid, line.method, line.route, line.status,
                line.milliseconds);
    return;
  }
  nlohmann::ordered_json fields;
  fields["request"] = line.request;
  if (!line.session.empty()) fields["session"] = line.session;
  fields["uid"] = line.uid;
  fields["method"] = line.method;
  fields["route"] = line.route;
  fields["status"] = line.status;
  fields["milliseconds"] = line.milliseconds;
  spdlog::log(level, fields.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace okcvm::daemon
