#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "policy/file_descriptor.h"

namespace okcvm::test {

struct HttpAnswer {
  int status = 0;                              // 0: the connection ended before an answer
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // without chunking

  nlohmann::json json() const { return nlohmann::json::parse(body, nullptr, false); }
  std::string code() const;  // of the error, if it is one
};

/// One connection to a control socket. Sends bytes as they are given, so that it can misbehave.
class HttpClient {
 public:
  explicit HttpClient(const std::string& socket);

  bool is_connected() const { return static_cast<bool>(socket_); }
  void send(std::string_view bytes);
  /// The same along with a descriptor (unix(7), SCM_RIGHTS); as sendmsg(2).
  ssize_t send_with_descriptor(std::string bytes);
  void end_sending();
  /// The next answer on the connection; waits up to 30 seconds.
  HttpAnswer receive(bool to_head = false);
  /// Bytes until `end` was seen or the connection ended.
  std::string receive_until(std::string_view end);
  /// How many bytes came, `most` or fewer; they are dropped. 0 at the end.
  std::size_t receive_some(std::size_t most);
  /// Whether nothing comes for so long.
  bool is_silent_for(std::chrono::milliseconds time);
  /// Whether the other side has closed; waits for it up to `seconds`.
  bool is_closed_within(int seconds);

  HttpAnswer ask(const std::string& method, const std::string& target, const std::string& body = {},
                 const std::map<std::string, std::string>& headers = {});

 private:
  bool fill();
  FileDescriptor socket_;
  std::string received_;
};

}  // namespace okcvm::test
