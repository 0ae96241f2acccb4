#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "policy/file_descriptor.h"

namespace okcvm::cli::test {

/// A request as it arrived, chunks put together.
struct SeenRequest {
  std::string method;
  std::string target;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
};

/// Answers on a Unix socket what a test tells it to, one connection after the other.
class FakeDaemon final {
 public:
  /// Raw bytes to send for a request.
  using Answer = std::function<std::string(const SeenRequest&)>;

  FakeDaemon(std::filesystem::path socket, Answer answer);
  ~FakeDaemon();
  FakeDaemon(const FakeDaemon&) = delete;
  FakeDaemon& operator=(const FakeDaemon&) = delete;

  /// Answers to the header alone, before the body is read, and hangs up.
  void refuse_early(bool early) { early_ = early; }
  std::vector<SeenRequest> seen() const;
  /// The last request; an empty one if there was none.
  SeenRequest last() const;

 private:
  void serve();
  void serve_one(int connection);

  std::filesystem::path path_;
  Answer answer_;
  std::atomic<bool> early_ = false;
  FileDescriptor listener_;
  mutable std::mutex mutex_;
  std::vector<SeenRequest> seen_;
  std::thread thread_;
};

/// A whole HTTP answer with this JSON (or other) body.
std::string reply(int status, const std::string& body,
                  const std::string& headers = "Content-Type: application/json\r\n");
/// The same, sent as chunks of these sizes in turn.
std::string chunked_reply(const std::vector<std::string>& chunks, const std::string& content_type);
/// {"error": {"code": ..., "message": ...}} with that status.
std::string refusal(int status, const std::string& code, const std::string& message);

}  // namespace okcvm::cli::test
