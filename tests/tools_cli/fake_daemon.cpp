#include "tests/tools_cli/fake_daemon.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

namespace okcvm::cli::test {

namespace {

/// Reads until `buffer` holds a blank line, or the peer hangs up.
bool read_header(int connection, std::string& buffer) {
  while (buffer.find("\r\n\r\n") == std::string::npos) {
    std::array<char, 65536> piece{};
    const ssize_t count = ::recv(connection, piece.data(), piece.size(), 0);
    if (count <= 0) return false;
    buffer.append(piece.data(), static_cast<std::size_t>(count));
  }
  return true;
}

std::string read_exactly(int connection, std::string& buffer, std::size_t size) {
  while (buffer.size() < size) {
    std::array<char, 65536> piece{};
    const ssize_t count = ::recv(connection, piece.data(), piece.size(), 0);
    if (count <= 0) break;
    buffer.append(piece.data(), static_cast<std::size_t>(count));
  }
  std::string taken = buffer.substr(0, size);
  buffer.erase(0, size);
  return taken;
}

std::string read_line(int connection, std::string& buffer) {
  while (buffer.find("\r\n") == std::string::npos) {
    std::array<char, 65536> piece{};
    const ssize_t count = ::recv(connection, piece.data(), piece.size(), 0);
    if (count <= 0) return {};
    buffer.append(piece.data(), static_cast<std::size_t>(count));
  }
  const auto end = buffer.find("\r\n");
  std::string line = buffer.substr(0, end);
  buffer.erase(0, end + 2);
  return line;
}

SeenRequest parse_header(const std::string& header) {
  SeenRequest request;
  std::istringstream lines(header);
  std::string line;
  std::getline(lines, line);
  std::istringstream first(line);
  first >> request.method >> request.target;
  while (std::getline(lines, line) && line != "\r") {
    const auto colon = line.find(": ");
    if (colon == std::string::npos) continue;
    std::string name = line.substr(0, colon);
    for (auto& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    request.headers[name] = line.substr(colon + 2, line.size() - colon - 3);
  }
  return request;
}

void send_all(int connection, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(connection, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count <= 0) return;
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

}  // namespace

FakeDaemon::FakeDaemon(std::filesystem::path socket, Answer answer)
    : path_(std::move(socket)), answer_(std::move(answer)) {
  listener_ = FileDescriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
  if (::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener_.get(), 16) != 0)
    throw std::runtime_error("cannot listen on " + path_.string());
  thread_ = std::thread([this] { serve(); });
}

FakeDaemon::~FakeDaemon() {
  ::shutdown(listener_.get(), SHUT_RDWR);
  thread_.join();
  ::unlink(path_.c_str());
}

void FakeDaemon::serve() {
  for (;;) {
    const FileDescriptor connection(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!connection) return;
    serve_one(connection.get());
  }
}

void FakeDaemon::serve_one(int connection) {
  std::string buffer;
  if (!read_header(connection, buffer)) return;
  const auto end = buffer.find("\r\n\r\n") + 4;
  SeenRequest request = parse_header(buffer.substr(0, end));
  buffer.erase(0, end);
  if (early_) {
  } else if (request.headers.contains("content-length")) {
    request.body = read_exactly(connection, buffer, std::stoull(request.headers["content-length"]));
  } else if (request.headers.contains("transfer-encoding")) {
    for (;;) {
      const auto size = std::strtoull(read_line(connection, buffer).c_str(), nullptr, 16);
      request.body += read_exactly(connection, buffer, size);
      read_line(connection, buffer);
      if (size == 0) break;
    }
  }
  {
    const std::lock_guard lock(mutex_);
    seen_.push_back(request);
  }
  send_all(connection, answer_(request));
}

std::vector<SeenRequest> FakeDaemon::seen() const {
  const std::lock_guard lock(mutex_);
  return seen_;
}

SeenRequest FakeDaemon::last() const {
  const std::lock_guard lock(mutex_);
  return seen_.empty() ? SeenRequest{} : seen_.back();
}

std::string reply(int status, const std::string& body, const std::string& headers) {
  return "HTTP/1.1 " + std::to_string(status) + " Status\r\n" + headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

std::string chunked_reply(const std::vector<std::string>& chunks, const std::string& content_type) {
  std::string bytes =
      "HTTP/1.1 200 OK\r\nContent-Type: " + content_type + "\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const auto& chunk : chunks) {
    std::array<char, 24> size{};
    std::snprintf(size.data(), size.size(), "%zx\r\n", chunk.size());
    bytes += size.data() + chunk + "\r\n";
  }
  return bytes + "0\r\n\r\n";
}

std::string refusal(int status, const std::string& code, const std::string& message) {
  return reply(status, nlohmann::json{{"error", {{"code", code}, {"message", message}}}}.dump());
}

}  // namespace okcvm::cli::test
