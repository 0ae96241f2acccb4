// How answers are sent, whole and as files.

#include <unistd.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>

#include "policy/session_id.h"
#include "tools/daemon/host/log.h"
#include "tools/daemon/http/connection.h"
#include "tools/daemon/http/wire.h"
#include "tools/daemon/http/worker_pool.h"

namespace okcvm::daemon {
namespace {

namespace asio = boost::asio;

constexpr std::size_t kPieceOfFile = 256 * 1024;
constexpr std::chrono::seconds kDrainTime{2};
constexpr std::chrono::milliseconds kLooksAtTurnEach{500};

}  // namespace

void Connection::answer_and_close(const Error& error, int status) {
  keep_alive_ = false;
  answer(error_response(error, request_, status));
}

void Connection::answer(Response response) {
  is_answering_ = true;
  if (context_->stopping) {
    keep_alive_ = false;
    limit_sending();
  } else if (request_.turn) {
    watch_turn();
  }
  note_answer(response.status);
  auto* text = std::get_if<std::string>(&response.body);
  // The operator has to learn why, too.
  if (text && response.status == 500)
    log_error("request {}: {}", request_.id, std::string_view(*text).substr(0, text->find('\n')));
  if (is_streaming_) {
    if (!text) return end_stream("{\"error\":{\"code\":\"internal\",\"message\":\"no such answer\"}}\n");
    if (response.status >= 400) return end_stream(std::move(*text));
    if (text->ends_with('\n')) text->pop_back();
    return end_stream("{\"result\":" + *text + "}\n");
  }
  if (auto* live = std::get_if<LiveBody>(&response.body); live && !request_.is_head) {
    if (context_->stopping) return end();  // it would not end by itself
    start_stream(response.content_type);
    return start_live(std::move(*live));
  }
  const auto* file = std::get_if<FileBody>(&response.body);
  const auto size = text ? text->size() : file ? file->size : 0;
  const bool has_body = response.status != 304 && response.status != 204;
  auto bytes =
      head_of(response, request_.id, has_body ? Framing::kLength : Framing::kNone, size, keep_alive_);
  if (request_.is_head || !has_body) return write_all(std::move(bytes), [this] { finish_exchange(); });
  if (text) return write_all(std::move(bytes.append(*text)), [this] { finish_exchange(); });
  auto body = std::make_shared<FileBody>(std::move(std::get<FileBody>(response.body)));
  write_all(std::move(bytes), [this, body] { pump_file(body); });
}

/// A client that takes something now and then is not idle, however long all of it takes.
void Connection::write_all(std::string bytes, std::function<void()> then) {
  write_from(std::make_shared<const std::string>(std::move(bytes)), 0, std::move(then));
}

void Connection::write_from(std::shared_ptr<const std::string> bytes, std::size_t from,
                            std::function<void()> then) {
  if (from == bytes->size()) return then();
  waits_since_ = std::chrono::steady_clock::now();
  stream_.expires_after(idle_limit());
  const auto rest = asio::buffer(*bytes) + from;
  stream_.async_write_some(rest, [self = shared_from_this(), bytes, from, then = std::move(then)](
                                     ErrorCode error, std::size_t size) mutable {
    if (error) return self->end();
    self->write_from(std::move(bytes), from + size, std::move(then));
  });
}

/// A client that takes nothing of its answer is given less patience while others of its user wait for its
/// turn.
void Connection::watch_turn() {
  timer_.expires_after(kLooksAtTurnEach);
  timer_.async_wait([weak = weak_from_this()](ErrorCode error) {
    const auto self = weak.lock();
    if (error || !self || !self->is_answering_ || !self->request_.turn || self->context_->stopping) return;
    const auto idle = std::chrono::steady_clock::now() - self->waits_since_;
    if (idle >= self->context_->limits.idle_with_turn && self->request_.turn->is_wanted()) return self->end();
    self->watch_turn();
  });
}

/// Sends the next piece of a file; a worker reads it, since a disk may be slow.
void Connection::pump_file(const std::shared_ptr<FileBody>& body) {
  if (body->size == 0) return finish_exchange();
  context_->workers.post([self = shared_from_this(), body]() noexcept {
    std::string piece(std::min<std::uint64_t>(kPieceOfFile, body->size), '\0');
    const auto got = ::pread(body->file.get(), piece.data(), piece.size(), static_cast<off_t>(body->offset));
    // A file that became shorter cannot be told any more than by ending early.
    if (got <= 0) return asio::post(self->stream_.get_executor(), [self] { self->stream_.close(); });
    piece.resize(static_cast<std::size_t>(got));
    body->offset += piece.size();
    body->size -= piece.size();
    asio::post(self->stream_.get_executor(), [self, body, piece = std::move(piece)]() mutable {
      self->write_all(std::move(piece), [raw = self.get(), body] { raw->pump_file(body); });
    });
  });
}

void Connection::finish_exchange() {
  request_ = Request();
  handling_ = Handling();
  if (keep_alive_ && !context_->stopping) return read_header();
  ErrorCode ignored;
  stream_.socket().shutdown(Socket::shutdown_send, ignored);
  stream_.expires_after(kDrainTime);
  drain();
}

/// Takes what the client still sends, so that the answer is not lost to a reset.
void Connection::drain() {
  piece_.resize(64 * 1024);
  stream_.async_read_some(asio::buffer(piece_), [self = shared_from_this()](ErrorCode error, std::size_t) {
    if (!error) self->drain();
  });
}

void Connection::note_answer(int status) const {
  const auto taken = std::chrono::steady_clock::now() - started_;
  context_->answered(handling_.pattern, status, taken);
  const auto captured = request_.captures.find("id");
  // Before the session was found it may be any bytes.
  const auto session = SessionId::parse(captured == request_.captures.end() ? "" : captured->second);
  log_request({request_.id, session ? session->text() : std::string(),
               parser_ ? std::string(parser_->get().method_string()) : "-", std::string(handling_.pattern),
               status, static_cast<long>(peer_.uid),
               std::chrono::duration<double, std::milli>(taken).count()});
}

}  // namespace okcvm::daemon
