#include "tests/tools/http_client.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cstring>

namespace okcvm::test {
namespace {

constexpr int kTimeoutMilliseconds = 240'000;  // sanitizers are slow

}  // namespace

std::string HttpAnswer::code() const {
  const auto value = json();
  if (!value.is_object() || !value.contains("error")) return {};
  return value["error"].value("code", "");
}

HttpClient::HttpClient(const std::string& path) {
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0)
    socket_ = std::move(socket);
}

void HttpClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const auto sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

ssize_t HttpClient::send_with_descriptor(std::string bytes) {
  const int descriptor = socket_.get();
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof descriptor)> space{};
  iovec part{bytes.data(), bytes.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = space.data();
  header.msg_controllen = space.size();
  cmsghdr* item = CMSG_FIRSTHDR(&header);
  item->cmsg_level = SOL_SOCKET;
  item->cmsg_type = SCM_RIGHTS;
  item->cmsg_len = CMSG_LEN(sizeof descriptor);
  std::memcpy(CMSG_DATA(item), &descriptor, sizeof descriptor);
  return ::sendmsg(socket_.get(), &header, MSG_NOSIGNAL);
}

void HttpClient::end_sending() {
  ::shutdown(socket_.get(), SHUT_WR);
}

bool HttpClient::fill() {
  if (!socket_) return false;
  pollfd waiting{socket_.get(), POLLIN, 0};
  if (::poll(&waiting, 1, kTimeoutMilliseconds) <= 0) return false;
  std::array<char, 65536> bytes{};
  const auto size = ::recv(socket_.get(), bytes.data(), bytes.size(), 0);
  if (size <= 0) return false;
  received_.append(bytes.data(), static_cast<std::size_t>(size));
  return true;
}

std::string HttpClient::receive_until(std::string_view end) {
  while (received_.find(end) == std::string::npos)
    if (!fill()) return std::exchange(received_, {});
  const auto size = received_.find(end) + end.size();
  auto bytes = received_.substr(0, size);
  received_.erase(0, size);
  return bytes;
}

std::size_t HttpClient::receive_some(std::size_t most) {
  std::string bytes(most, '\0');
  const auto got = ::recv(socket_.get(), bytes.data(), bytes.size(), 0);
  return got > 0 ? static_cast<std::size_t>(got) : 0;
}

bool HttpClient::is_silent_for(std::chrono::milliseconds time) {
  pollfd waiting{socket_.get(), POLLIN, 0};
  return received_.empty() && ::poll(&waiting, 1, static_cast<int>(time.count())) == 0;
}

bool HttpClient::is_closed_within(int seconds) {
  pollfd waiting{socket_.get(), POLLIN, 0};
  char byte = 0;
  return ::poll(&waiting, 1, seconds * 1000) > 0 && ::recv(socket_.get(), &byte, 1, MSG_PEEK) <= 0;
}

HttpAnswer HttpClient::receive(bool to_head) {
  HttpAnswer answer;
  const auto head = receive_until("\r\n\r\n");
  if (!head.starts_with("HTTP/1.1 ") || head.size() < 12) return answer;
  answer.status = std::stoi(head.substr(9, 3));
  for (std::size_t at = head.find("\r\n") + 2; at < head.size();) {
    const auto end = head.find("\r\n", at);
    const auto line = head.substr(at, end - at);
    at = end + 2;
    const auto colon = line.find(": ");
    if (colon == line.npos) continue;
    auto name = line.substr(0, colon);
    for (auto& c : name) c = static_cast<char>(std::tolower(c));
    answer.headers[name] = line.substr(colon + 2);
  }
  if (to_head) return answer;
  if (answer.headers["transfer-encoding"] == "chunked") {
    for (;;) {
      const auto size = std::stoul(receive_until("\r\n"), nullptr, 16);
      while (received_.size() < size + 2)
        if (!fill()) return answer;
      answer.body += received_.substr(0, size);
      received_.erase(0, size + 2);
      if (size == 0) return answer;
    }
  }
  const auto length = answer.headers.find("content-length");
  const auto size = length == answer.headers.end() ? 0 : std::stoul(length->second);
  while (received_.size() < size)
    if (!fill()) break;
  answer.body = received_.substr(0, size);
  received_.erase(0, answer.body.size());
  return answer;
}

HttpAnswer HttpClient::ask(const std::string& method, const std::string& target, const std::string& body,
                           const std::map<std::string, std::string>& headers) {
  std::string request = method + " " + target + " HTTP/1.1\r\nHost: okcvm\r\n";
  for (const auto& [name, value] : headers) request += name + ": " + value + "\r\n";
  if (!body.empty() || method == "POST" || method == "PUT")
    request += "Content-Length: " + std::to_string(body.size()) + "\r\n";
  send(request + "\r\n" + body);
  return receive(method == "HEAD");
}

}  // namespace okcvm::test
