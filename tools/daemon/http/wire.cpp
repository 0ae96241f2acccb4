#include "tools/daemon/http/wire.h"

#include <algorithm>
#include <boost/beast/http/status.hpp>
#include <cstdio>

namespace okcvm::daemon {

namespace http = boost::beast::http;

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (auto& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return lower;
}

Method method_of(http::verb verb) {
  switch (verb) {
    case http::verb::get:
    case http::verb::head:
      return Method::kGet;
    case http::verb::post:
      return Method::kPost;
    case http::verb::put:
      return Method::kPut;
    case http::verb::delete_:
      return Method::kDelete;
    default:
      return Method::kOther;
  }
}

std::string_view path_and_query_of(std::string_view target) {
  constexpr std::string_view kScheme = "http://";
  if (lower_case(target.substr(0, kScheme.size())) == kScheme)
    target.remove_prefix(std::min(target.find_first_of("/?", kScheme.size()), target.size()));
  return target.starts_with('/') ? target : std::string_view();
}

std::string head_of(const Response& response, const std::string& request_id, Framing framing,
                    std::uint64_t size, bool keep_alive) {
  const auto reason = http::obsolete_reason(static_cast<http::status>(response.status));
  std::string head = "HTTP/1.1 " + std::to_string(response.status) + " ";
  head.append(reason.data(), reason.size());
  head += "\r\nServer: okcvmd\r\nX-Request-Id: " + request_id;
  if (!response.content_type.empty()) head += "\r\nContent-Type: " + response.content_type;
  for (const auto& [name, value] : response.headers)
    head.append("\r\n").append(name).append(": ").append(value);
  if (framing == Framing::kLength) head += "\r\nContent-Length: " + std::to_string(size);
  if (framing == Framing::kChunked) head += "\r\nTransfer-Encoding: chunked";
  head += keep_alive ? "\r\nConnection: keep-alive\r\n\r\n" : "\r\nConnection: close\r\n\r\n";
  return head;
}

std::string chunk_of(std::string_view text) {
  char size[32];
  std::snprintf(size, sizeof size, "%zx\r\n", text.size());
  return std::string(size).append(text).append("\r\n");
}

}  // namespace okcvm::daemon
