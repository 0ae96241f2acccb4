// Answers that are sent line by line: progress, and events.

#include <boost/asio/post.hpp>

#include "tools/daemon/http/connection.h"
#include "tools/daemon/http/wire.h"

namespace okcvm::daemon {

namespace asio = boost::asio;

void Connection::start_stream(std::string content_type) {
  is_streaming_ = true;
  is_last_queued_ = false;
  queued_ = 0;
  Response response;
  response.content_type = std::move(content_type);
  response.headers.emplace_back("Cache-Control", "no-store");
  if (is_http_1_0_) keep_alive_ = false;
  is_writing_ = true;
  const auto framing = is_http_1_0_ ? Framing::kNone : Framing::kChunked;
  write_all(head_of(response, request_.id, framing, 0, keep_alive_), [this] {
    is_writing_ = false;
    write_queued();
  });
}

/// From any thread. False: too much is waiting already.
bool Connection::queue_line(std::string text) {
  constexpr std::size_t kMostQueued = 256 << 10;  // bytes
  const std::size_t size = text.size();
  if (queued_.fetch_add(size) >= kMostQueued) {
    queued_.fetch_sub(size);
    return false;
  }
  asio::post(stream_.get_executor(), [self = shared_from_this(), text = std::move(text)]() mutable {
    self->queue_.push_back(std::move(text));
    self->write_queued();
  });
  return true;
}

void Connection::write_queued() {
  if (is_writing_ || (queue_.empty() && !is_last_queued_)) return;
  std::string text;
  for (const auto& line : queue_) text += line;
  queued_.fetch_sub(text.size());
  queue_.clear();
  const bool is_last = is_last_queued_;
  std::string bytes = text.empty() || is_http_1_0_ ? std::move(text) : chunk_of(text);
  if (is_last && !is_http_1_0_) bytes += kLastChunk;
  is_writing_ = true;
  write_all(std::move(bytes), [this, is_last] {
    is_writing_ = false;
    if (!is_last) return write_queued();
    is_streaming_ = false;
    finish_exchange();
  });
}

void Connection::end_stream(std::string last) {
  queued_.fetch_add(last.size());
  queue_.push_back(std::move(last));
  is_last_queued_ = true;
  write_queued();
}

void Connection::start_live(LiveBody body) {
  is_live_ = true;
  live_keep_alive_ = std::move(body.keep_alive);
  // The sender must not keep a connection alive whose client is gone.
  live_ = body.start([weak = weak_from_this()](std::string text) {
    const auto self = weak.lock();
    return self && self->queue_line(std::move(text));
  });
  end_with_client();
  keep_alive_later();
}

/// Nothing is read meanwhile: only this tells at once that the client is gone.
void Connection::end_with_client() {
  stream_.socket().async_wait(Socket::wait_error, [weak = weak_from_this()](ErrorCode error) {
    const auto self = weak.lock();
    // Urgent data is told in the same way.
    if (!error && self && self->is_live_ && !self->is_waited_for()) self->end();
  });
}

/// A live body has no other operation that would own the connection, so this timer does.
void Connection::keep_alive_later() {
  timer_.expires_after(std::chrono::seconds(15));
  timer_.async_wait([self = shared_from_this()](ErrorCode error) {
    if (error || !self->stream_.socket().is_open()) return;
    if (!self->is_writing_) self->queue_line(self->live_keep_alive_());
    self->keep_alive_later();
  });
}

}  // namespace okcvm::daemon
