#include "tools/cli/client.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "policy/file_descriptor.h"
#include "policy/proc_path.h"

namespace okcvm::cli {

namespace {

namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;

constexpr std::size_t kPiece = std::size_t{256} << 10;
constexpr std::size_t kLargestAnswer = std::size_t{256} << 20;  // held in memory: JSON only

error_code system_error_code(int errno_value) {
  return {errno_value, boost::system::system_category()};
}

/// A connected Unix socket as Beast wants to see it, with a limit to each wait.
class Stream {
 public:
  Stream(FileDescriptor socket, std::chrono::milliseconds timeout)
      : socket_(std::move(socket)), timeout_(timeout) {}

  template <typename Buffers>
  std::size_t read_some(const Buffers& buffers, error_code& error) {
    const boost::asio::mutable_buffer buffer = *boost::asio::buffer_sequence_begin(buffers);
    for (;;) {
      if (!wait(POLLIN, error)) return 0;
      const ssize_t count = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
      if (count > 0) return succeed(count, error);
      if (count == 0) error = boost::asio::error::eof;
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) error = system_error_code(errno);
      return 0;
    }
  }

  template <typename Buffers>
  std::size_t write_some(const Buffers& buffers, error_code& error) {
    const boost::asio::const_buffer buffer = *boost::asio::buffer_sequence_begin(buffers);
    return write_bytes(buffer.data(), buffer.size(), error);
  }

  // Beast's stream concepts ask for these two as well; the calls here always pass an error_code.
  template <typename Buffers>
  std::size_t read_some(const Buffers& buffers) {
    error_code error;
    const std::size_t count = read_some(buffers, error);
    if (error) throw boost::system::system_error(error);
    return count;
  }
  template <typename Buffers>
  std::size_t write_some(const Buffers& buffers) {
    error_code error;
    const std::size_t count = write_some(buffers, error);
    if (error) throw boost::system::system_error(error);
    return count;
  }

  std::size_t write_bytes(const void* data, std::size_t size, error_code& error) {
    for (;;) {
      if (!wait(POLLOUT, error)) return 0;
      const ssize_t count = ::send(socket_.get(), data, size, MSG_NOSIGNAL);
      if (count >= 0) return succeed(count, error);
      if (errno == EINTR) continue;
      error = system_error_code(errno);
      return 0;
    }
  }

  void write_all(std::string_view bytes, error_code& error) {
    error = {};
    while (!bytes.empty() && !error) bytes.remove_prefix(write_bytes(bytes.data(), bytes.size(), error));
  }

  /// Whether the daemon has said something already (an early refusal) or hung up.
  bool has_answer() const {
    pollfd state{socket_.get(), POLLIN, 0};
    return ::poll(&state, 1, 0) > 0;
  }

 private:
  static std::size_t succeed(ssize_t count, error_code& error) {
    error = {};
    return static_cast<std::size_t>(count);
  }

  bool wait(short what, error_code& error) const {
    if (timeout_.count() == 0) return true;
    pollfd state{socket_.get(), what, 0};
    int ready = 0;
    do ready = ::poll(&state, 1, static_cast<int>(timeout_.count()));
    while (ready < 0 && errno == EINTR);
    if (ready == 0) error = system_error_code(ETIMEDOUT);
    if (ready < 0) error = system_error_code(errno);
    return ready > 0;
  }

  FileDescriptor socket_;
  std::chrono::milliseconds timeout_;
};

tl::unexpected<Failure> cannot_connect(int errno_value, const std::string& path) {
  const std::string elsewhere = ", or name its socket with --socket or OKCVM_SOCKET";
  if (errno_value == ENOENT)
    return refuse("not_found", "there is no socket " + path +
                                   ": is okcvmd running? start it (systemctl start okcvmd)" + elsewhere);
  if (errno_value == ECONNREFUSED)
    return refuse("not_found", "no daemon listens on " + path +
                                   ": okcvmd has ended or died; start it (systemctl start okcvmd)" +
                                   elsewhere);
  if (errno_value == EACCES || errno_value == EPERM)
    return refuse("forbidden",
                  "the socket " + path + " may not be opened: run as root or join the group okcvm");
  if (errno_value == EAGAIN)
    return refuse("busy", "the daemon at " + path + " takes no more connections: try again later");
  return refuse("internal", "cannot connect to " + path + ": " + std::strerror(errno_value));
}

/// Connects, also to paths longer than a sockaddr_un holds.
Outcome<FileDescriptor> connect_to(const std::string& path) {
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return system_failure(errno, "a socket");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  FileDescriptor folder;
  std::string name = path;
  if (name.size() >= sizeof address.sun_path) {
    const std::filesystem::path whole(path);
    folder = FileDescriptor(::open(whole.parent_path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!folder) return cannot_connect(errno, path);
    name = std::string(ProcPath(folder.get()).c_str()) + "/" + whole.filename().string();
    if (name.size() >= sizeof address.sun_path) return cannot_connect(ENAMETOOLONG, path);
  }
  std::memcpy(address.sun_path, name.data(), name.size());
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return cannot_connect(errno, path);
  return socket;
}

http::request<http::empty_body> header_of(const Request& request) {
  http::request<http::empty_body> header;
  header.version(11);
  header.method_string(request.method);
  header.target(request.target);
  header.set(http::field::host, "okcvm");
  header.set(http::field::user_agent, "okcvm/" OKCVM_VERSION);
  header.set(http::field::connection, "close");
  for (const auto& [name, value] : request.headers) header.set(name, value);
  const bool has_body = request.source >= 0 || !request.body.empty();
  if (has_body) header.set(http::field::content_type, request.content_type);
  if (request.source >= 0 && !request.source_size)
    header.set(http::field::transfer_encoding, "chunked");
  else if (has_body || request.method != "GET")
    header.content_length(request.source >= 0 ? *request.source_size : request.body.size());
  return header;
}

/// Sends what the source gives. Ends early, without an error, when the daemon answers before it has
/// everything.
Outcome<void> send_source(const Request& request, Stream& stream, error_code& error) {
  std::vector<char> piece(kPiece);
  std::uint64_t total = 0;
  const bool chunked = !request.source_size;
  while (chunked || total < *request.source_size) {
    std::size_t wanted = piece.size();
    if (!chunked)
      wanted = static_cast<std::size_t>(std::min<std::uint64_t>(wanted, *request.source_size - total));
    ssize_t count = 0;
    do count = ::read(request.source, piece.data(), wanted);
    while (count < 0 && errno == EINTR);
    if (count < 0) return system_failure(errno, request.source_name);
    if (count == 0 && !chunked)
      return refuse("invalid_request",
                    request.source_name + " became shorter while it was sent: send it again");
    if (stream.has_answer()) return {};
    std::array<char, 24> size{};
    if (chunked) {
      std::snprintf(size.data(), size.size(), "%zx\r\n", static_cast<std::size_t>(count));
      stream.write_all(size.data(), error);
    }
    if (!error) stream.write_all({piece.data(), static_cast<std::size_t>(count)}, error);
    if (!error && chunked) stream.write_all("\r\n", error);
    if (error || count == 0) return {};
    total += static_cast<std::uint64_t>(count);
    if (request.sent) request.sent(total);
  }
  return {};
}

class Exchange {
 public:
  Exchange(const Request& request, const Sink* sink, Stream stream)
      : request_(request), sink_(sink), stream_(std::move(stream)) {
    parser_.body_limit(std::numeric_limits<std::uint64_t>::max());
    parser_.header_limit(64 << 10);
  }

  Outcome<Response> run() {
    for (const auto& [name, value] : request_.headers)
      if (value.find_first_of(std::string_view("\r\n\0", 3)) != std::string::npos)
        return refuse("invalid_request", "what goes into the field " + name + " has more than one line");
    error_code error;
    const auto header = header_of(request_);
    http::request_serializer<http::empty_body> serializer(header);
    http::write_header(stream_, serializer, error);
    if (!error && request_.source >= 0) {
      if (auto sent = send_source(request_, stream_, error); !sent) return tl::unexpected(sent.error());
    } else if (!error) {
      stream_.write_all(request_.body, error);
    }
    // A daemon that refuses early closes its end: the reason can still be read after a failed write.
    const bool gone = error == system_error_code(EPIPE) || error == system_error_code(ECONNRESET);
    if (error && !gone) return broken(error);
    return receive();
  }

 private:
  Outcome<Response> receive() {
    error_code error;
    http::read_header(stream_, buffer_, parser_, error);
    if (error) return broken(error);
    Response response;
    response.status = static_cast<int>(parser_.get().result_int());
    for (const auto& field : parser_.get()) {
      std::string name(field.name_string());
      for (auto& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      response.headers[name] = std::string(field.value());
    }
    const bool good = response.status < 400;
    if (good && request_.on_header)
      if (auto wanted = request_.on_header(response); !wanted) return tl::unexpected(wanted.error());
    std::vector<char> piece(kPiece);
    while (!parser_.is_done()) {
      parser_.get().body().data = piece.data();
      parser_.get().body().size = piece.size();
      http::read_some(stream_, buffer_, parser_, error);
      if (error == http::error::need_buffer) error = {};
      if (error) return broken(error);
      const std::string_view got(piece.data(), piece.size() - parser_.get().body().size);
      if (auto taken = take(got, good, response); !taken) return tl::unexpected(taken.error());
    }
    if (!good) return tl::unexpected(refusal_in(response.body, response.status));
    return response;
  }

  Outcome<void> take(std::string_view piece, bool good, Response& response) const {
    if (good && sink_ != nullptr) return piece.empty() ? Outcome<void>() : (*sink_)(piece);
    if (response.body.size() + piece.size() > kLargestAnswer)
      return refuse("invalid_request",
                    "the answer is larger than 256 MiB: ask for less (--limit), or for text, not --json");
    response.body.append(piece);
    return {};
  }

  static tl::unexpected<Failure> broken(const error_code& error) {
    if (error == system_error_code(ETIMEDOUT)) return refuse("busy", "the daemon does not answer");
    if (error == http::error::end_of_stream || error == http::error::partial_message ||
        error == system_error_code(ECONNRESET) || error == system_error_code(EPIPE))
      return refuse("internal",
                    "the daemon closed the connection before its answer was complete: see its log "
                    "(journalctl -u okcvmd) and look at the session before trying again");
    return refuse("internal",
                  "the answer cannot be understood (" + error.message() + "): is that socket okcvmd's?");
  }

  const Request& request_;
  const Sink* sink_;
  Stream stream_;
  beast::flat_buffer buffer_;
  http::response_parser<http::buffer_body> parser_;
};

Outcome<Response> exchange(const std::string& path, const Request& request, const Sink* sink) {
  auto socket = connect_to(path);
  if (!socket) return tl::unexpected(socket.error());
  return Exchange(request, sink, Stream(std::move(*socket), request.timeout)).run();
}

}  // namespace

Failure refusal_in(const std::string& text_of_body, int status) {
  const auto body = nlohmann::json::parse(text_of_body, nullptr, false);
  if (!body.is_object() || !body.contains("error") || !body["error"].is_object())
    return {"internal", "the answer has status " + std::to_string(status) +
                            " and no error that okcvm understands: is that socket okcvmd's?"};
  const auto& error = body["error"];
  const auto text = [&](const char* key) {
    return error.contains(key) && error[key].is_string() ? error[key].get<std::string>() : std::string();
  };
  Failure failure{text("code"), text("message")};
  if (failure.code.empty()) failure.code = "internal";
  if (const auto path = text("path"); !path.empty() && failure.message.find(path) == std::string::npos)
    failure.message += " (" + path + ")";
  return failure;
}

tl::unexpected<Failure> system_failure(int errno_value, const std::string& what) {
  std::string code = "internal";
  if (errno_value == ENOENT || errno_value == ENOTDIR) code = "not_found";
  if (errno_value == EACCES || errno_value == EPERM) code = "forbidden";
  if (errno_value == EEXIST) code = "already_exists";
  if (errno_value == ENOSPC) code = "no_space";
  if (errno_value == EDQUOT) code = "quota_exceeded";
  if (errno_value == EROFS) code = "read_only";
  if (errno_value == EISDIR || errno_value == EINVAL || errno_value == ENAMETOOLONG) code = "invalid_request";
  return refuse(code, what + ": " + std::strerror(errno_value));
}

std::string Response::header(const std::string& lower_case_name) const {
  const auto found = headers.find(lower_case_name);
  return found == headers.end() ? std::string() : found->second;
}

Outcome<Response> Client::send(const Request& request) const {
  return exchange(socket_path_, request, nullptr);
}

Outcome<Response> Client::send(const Request& request, const Sink& sink) const {
  return exchange(socket_path_, request, &sink);
}

}  // namespace okcvm::cli
