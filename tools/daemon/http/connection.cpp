#include "tools/daemon/http/connection.h"

#include <poll.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/http/read.hpp>
#include <limits>

#include "policy/random_bits.h"
#include "tools/daemon/host/log.h"
#include "tools/daemon/http/uri.h"
#include "tools/daemon/http/wire.h"
#include "tools/daemon/http/worker_pool.h"

namespace okcvm::daemon {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;

constexpr std::size_t kPiece = 256 * 1024;
constexpr std::size_t kReadAtOnce = 64 * 1024;
constexpr std::size_t kSmallAnswer = 64 * 1024;
constexpr std::chrono::milliseconds kLastRequestWithin{500};
constexpr std::chrono::seconds kIdleAtStop{2};

/// Runs a route's code, from which no exception may reach the worker that runs it.
template <typename T, typename Work>
Result<T> guarded(const std::string& request, Work&& work) try {
  return work();
} catch (const std::bad_alloc&) {
  return fail(Code::kNoSpace, "out of memory: try again");
} catch (const std::exception& error) {
  log_error("request {}: {}", request, error.what());
  return fail(Code::kInternal, "the request failed: see the daemon's log");
}

Error bad_request(std::string message) {
  return Error::of(Code::kInvalidRequest, std::move(message));
}

/// The client's message is at fault, which may also end too early, and not the socket.
bool is_of_http(const boost::system::error_code& error) {
  return error.category() == http::make_error_code(http::error::bad_method).category();
}

/// So that even all of a user's connections may have such an answer in memory.
bool is_small(const Response& response) {
  const auto* text = std::get_if<std::string>(&response.body);
  return !text || text->size() <= kSmallAnswer;
}

}  // namespace

bool has_hung_up(int socket) {
  pollfd end{socket, 0, 0};
  return ::poll(&end, 1, 0) == 1 && (end.revents & (POLLHUP | POLLERR)) != 0;
}

Connection::Connection(Socket socket, Peer peer, std::shared_ptr<ConnectionContext> context,
                       std::function<void()> ended)
    : stream_(std::move(socket)),
      descriptor_(stream_.socket().native_handle()),
      buffer_(context->limits.header_bytes + kPiece),
      timer_(stream_.get_executor()),
      body_timer_(stream_.get_executor()),
      peer_(std::move(peer)),
      context_(std::move(context)),
      ended_(std::move(ended)) {}

Connection::~Connection() {
  // A sink cleans up on the disk, which is not for this thread. At a stop the workers may be gone before us.
  if (sink_ && !context_->stopping)
    context_->workers.post([sink = std::shared_ptr<BodySink>(std::move(sink_))]() mutable { sink.reset(); });
  // The last reference may have been a worker's; the server's books are kept on the I/O thread.
  asio::post(timer_.get_executor(), ended_);
}

void Connection::refuse(const std::string& message) {
  started_ = std::chrono::steady_clock::now();
  request_.id = random_name();
  handling_.pattern = "-";
  answer_and_close(Error::of(Code::kBusy, message), 503);
}

void Connection::stop() {
  if (is_live_) {
    is_live_ = false;
    live_.reset();
    end_after(kIdleAtStop, [] { return true; });
    return end_stream("");
  }
  if (!in_hand_) return end_after(kLastRequestWithin, [this] { return !in_hand_; });
  if (is_answering_) return limit_sending();
  if (is_receiving_)
    end_after(kIdleAtStop, [this, pieces = pieces_] { return is_receiving_ && pieces_ == pieces; });
}

std::optional<std::chrono::steady_clock::time_point> Connection::idle_since() const {
  if (in_hand_ || !parser_ || parser_->got_some()) return std::nullopt;
  return waits_since_;
}

/// While the daemon stops, once that time is over, if `is_over` then.
void Connection::end_after(std::chrono::milliseconds time, std::function<bool()> is_over) {
  timer_.expires_after(time);
  timer_.async_wait([weak = weak_from_this(), is_over = std::move(is_over)](ErrorCode error) {
    const auto self = weak.lock();
    if (!error && self && is_over()) self->end();
  });
}

void Connection::limit_sending() {
  end_after(context_->limits.sending_at_stop, [] { return true; });
}

/// How long a client may keep us waiting for more of its request, or take nothing of its answer.
std::chrono::seconds Connection::idle_limit() const {
  return context_->stopping ? kIdleAtStop : context_->limits.idle;
}

void Connection::end() {
  is_gone_ = true;
  is_live_ = false;
  live_.reset();
  timer_.cancel();
  stream_.close();
}

// -- Reading

void Connection::read_header() {
  in_hand_ = is_answering_ = false;
  waits_since_ = std::chrono::steady_clock::now();
  parser_.emplace();
  parser_->header_limit(static_cast<std::uint32_t>(context_->limits.header_bytes));
  // Held against our own limits, by route. (Beast 1.74 takes boost::none for a limit of nothing.)
  parser_->body_limit(std::numeric_limits<std::uint64_t>::max());
  // One limit for the header as a whole: a client that sends it drop by drop is idle, too.
  stream_.expires_after(context_->limits.idle);
  header_bytes_ = 0;
  buffer_.shrink_to_fit();  // it may wait for long
  read_header_piece();
}

/// The parser holds no more than what it is given at once against its limit, so that many short fields would
/// pass.
void Connection::read_header_piece() {
  http::async_read_some(stream_, buffer_, *parser_,
                        [self = shared_from_this()](ErrorCode error, std::size_t size) {
                          self->header_bytes_ += size;
                          if (!error && self->header_bytes_ > self->context_->limits.header_bytes)
                            error = http::error::header_limit;
                          if (!error && !self->parser_->is_header_done()) return self->read_header_piece();
                          self->on_header(error);
                        });
}

void Connection::on_header(ErrorCode error) {
  if (!parser_->got_some() && error) return;
  started_ = std::chrono::steady_clock::now();
  request_ = Request();
  request_.id = random_name();
  request_.peer = peer_;
  handling_ = Handling();
  handling_.pattern = "-";
  if (error == http::error::header_limit || error == http::error::buffer_overflow)
    return answer_and_close(bad_request("the request's header is larger than " +
                                        std::to_string(context_->limits.header_bytes) + " bytes"),
                            431);
  if (is_of_http(error))
    return answer_and_close(bad_request("this is not an HTTP/1.1 request: " + error.message()), 400);
  if (error) return;

  in_hand_ = true;
  if (auto refused = take_request()) {
    keep_alive_ = keep_alive_ && parser_->is_done();
    return answer(std::move(*refused));
  }
  if (handling_.open) return open_sink();  // which may refuse: nothing of the body is asked for before
  continue_then(&Connection::read_whole_body);
}

/// Turns the header into a Request and routes it. An answer if it goes no further.
std::optional<Response> Connection::take_request() {
  const auto& message = parser_->get();
  is_http_1_0_ = message.version() < 11;
  keep_alive_ = message.keep_alive() && !context_->stopping;
  const auto refuse = [&](std::string text, int status) {
    return error_response(bad_request(std::move(text)), request_, status);
  };
  request_.method = method_of(message.method());
  request_.is_head = message.method() == http::verb::head;

  // RFC 9112, 3.2. A request that names none is let pass: there is but one.
  if (message.count(http::field::host) > 1) {
    keep_alive_ = false;
    return refuse("the request names its host twice", 400);
  }
  const auto target = path_and_query_of({message.target().data(), message.target().size()});
  if (target.empty()) return refuse("the address must start with a slash", 400);
  if (target.find('#') != target.npos) return refuse("a # in an address is written %23", 400);
  const auto question = std::min(target.find('?'), target.size());
  request_.path = target.substr(0, question);
  auto query = parse_query(target.substr(std::min(question + 1, target.size())));
  if (!query) return error_response(query.error(), request_);
  request_.query = std::move(*query);
  for (const auto& field : message) {
    const std::string_view value(field.value().data(), field.value().size());
    auto& known = request_.headers[lower_case({field.name_string().data(), field.name_string().size()})];
    known.append(known.empty() ? "" : ", ").append(value);
  }
  // A body that is not chunked in the end would end with the connection: half of it would be taken for the
  // whole.
  if (const auto coding = request_.header("transfer-encoding");
      !coding.empty() && lower_case(coding) != "chunked") {
    keep_alive_ = false;  // nobody knows where the body ends: it must not be read as the next request
    return refuse("chunked is the only transfer coding that is taken", 501);
  }
  if (const auto length = parser_->content_length()) request_.body_size = *length;
  request_.progress = [this](std::string_view, std::uint64_t, std::uint64_t) { return is_waited_for(); };

  auto routed = context_->router(request_);
  if (auto* response = std::get_if<Response>(&routed)) return std::move(*response);
  handling_ = std::move(std::get<Handling>(routed));
  if (!handling_.open && request_.body_size.value_or(0) > context_->limits.body_bytes)
    return refuse("the body is larger than " + std::to_string(context_->limits.body_bytes) + " bytes", 413);
  return std::nullopt;
}

/// Whether there is somebody for whom a worker works: the client is there, and the daemon has not to end.
bool Connection::is_waited_for() {
  if (!is_gone_ && has_hung_up(descriptor_)) is_gone_ = true;
  return !is_gone_ && !context_->gives_up;
}

/// Lets the client send its body, if it waits for that.
void Connection::continue_then(void (Connection::*next)()) {
  const bool is_waiting = lower_case(request_.header("expect")) == "100-continue" && !is_http_1_0_;
  if (!is_waiting || parser_->is_done()) return (this->*next)();
  write_all("HTTP/1.1 100 Continue\r\n\r\n", [this, next] { (this->*next)(); });
}

/// Reads what is there of the body, at most `room` bytes, into piece_. It may be none, where only the framing
/// went on; that has a limit of its own, since nothing else would end it (trailers are kept by the parser).
void Connection::read_some(std::size_t room, std::function<void(std::size_t)> then) {
  piece_.resize(room);
  parser_->get().body().data = piece_.data();
  parser_->get().body().size = piece_.size();
  parser_->get().body().more = true;
  is_receiving_ = true;
  buffer_.reserve(kReadAtOnce);  // Beast reads no more at once than it finds room for
  http::async_read_some(
      stream_, buffer_, *parser_,
      [self = shared_from_this(), then = std::move(then)](ErrorCode error, std::size_t taken) {
        self->is_receiving_ = false;
        ++self->pieces_;
        if (error == http::error::need_buffer) error = {};
        if (self->is_late_)
          return self->answer_and_close(
              bad_request("the body did not arrive within " + std::to_string(self->idle_limit().count()) +
                          " s (of a file: its next piece)"),
              408);
        if (is_of_http(error))
          return self->answer_and_close(bad_request("the body is malformed: " + error.message()), 400);
        if (error) return;
        const auto size = self->piece_.size() - self->parser_->get().body().size;
        self->framing_bytes_ = size > 0 ? 0 : self->framing_bytes_ + taken;
        if (self->framing_bytes_ > self->context_->limits.header_bytes)
          return self->answer_and_close(bad_request("the body's chunk headers and trailers are too large"),
                                        431);
        then(size);
      });
}

/// A body, or its next piece, has to come from now on within the limit. The stream's own limit would close
/// the socket, so that nobody could be told.
void Connection::expect_body() {
  stream_.expires_never();
  is_late_ = false;
  body_timer_.expires_after(idle_limit());
  body_timer_.async_wait([weak = weak_from_this()](ErrorCode error) {
    const auto self = weak.lock();
    if (error || !self || !self->is_receiving_) return;
    self->is_late_ = true;
    self->stream_.cancel();
  });
}

void Connection::read_whole_body() {
  framing_bytes_ = 0;
  expect_body();  // the whole of it
  read_rest_of_body();
}

void Connection::read_rest_of_body() {
  if (parser_->is_done()) return dispatch();
  read_some(64 * 1024, [this](std::size_t size) {
    if (request_.body.size() + size > context_->limits.body_bytes)
      return answer_and_close(
          bad_request("the body is larger than " + std::to_string(context_->limits.body_bytes) + " bytes"),
          413);
    request_.body.append(piece_.data(), size);
    read_rest_of_body();
  });
}

// -- Work

/// Runs `work` on a worker and answers with what it returns.
void Connection::on_worker(std::function<Result<Response>()> work) {
  context_->workers.post([self = shared_from_this(), work = std::move(work)]() mutable noexcept {
    auto done = guarded<Response>(self->request_.id, work);
    auto response =
        std::make_shared<Response>(done ? std::move(*done) : error_response(done.error(), self->request_));
    work = nullptr;
    if (is_small(*response)) self->request_.turn.reset();
    asio::post(self->stream_.get_executor(), [self, response] { self->answer(std::move(*response)); });
  });
}

void Connection::dispatch() {
  stream_.expires_never();
  const bool wants_lines = handling_.shows_progress &&
                           request_.header("accept").find("application/x-ndjson") != std::string_view::npos;
  if (wants_lines && !request_.is_head) {
    start_stream("application/x-ndjson");
    auto last = std::make_shared<std::atomic<std::int64_t>>(0);
    request_.progress = [this, last](std::string_view phase, std::uint64_t done, std::uint64_t total) {
      const auto now = std::chrono::steady_clock::now().time_since_epoch();
      const auto tenths = std::chrono::duration_cast<std::chrono::milliseconds>(now).count() / 100;
      if (last->exchange(tenths) != tenths)
        queue_line("{\"progress\":{\"phase\":\"" + std::string(phase) +
                   "\",\"done\":" + std::to_string(done) + ",\"total\":" + std::to_string(total) + "}}\n");
      return is_waited_for();
    };
  }
  on_worker([this]() -> Result<Response> { return handling_.respond(request_); });
}

void Connection::open_sink() {
  stream_.expires_never();
  context_->workers.post([self = shared_from_this()]() noexcept {
    auto opened = std::make_shared<Result<std::unique_ptr<BodySink>>>(guarded<std::unique_ptr<BodySink>>(
        self->request_.id, [&] { return self->handling_.open(self->request_); }));
    asio::post(self->stream_.get_executor(), [self, opened] {
      if (!*opened) {
        self->keep_alive_ = self->keep_alive_ && self->parser_->is_done();
        return self->answer(error_response(opened->error(), self->request_));
      }
      self->sink_ = std::move(**opened);
      self->framing_bytes_ = 0;
      self->continue_then(&Connection::read_piece);
    });
  });
}

void Connection::read_piece() {
  expect_body();  // the next bytes of the file
  read_rest_of_piece();
}

void Connection::read_rest_of_piece() {
  if (parser_->is_done()) return finish_sink();
  read_some(kPiece, [this](std::size_t size) {
    if (size == 0) return read_rest_of_piece();
    stream_.expires_never();
    context_->workers.post([self = shared_from_this(), size]() noexcept {
      auto written = guarded<void>(self->request_.id, [&] {
        return self->sink_->write({self->piece_.data(), size});
      });
      asio::post(self->stream_.get_executor(), [self, written] {
        if (written) return self->read_piece();
        self->answer_and_close(written.error(), 0);
      });
    });
  });
}

void Connection::finish_sink() {
  stream_.expires_never();
  on_worker([this] {
    auto finished = sink_->finish();
    sink_.reset();
    return finished;
  });
}

}  // namespace okcvm::daemon
