#pragma once

#include <atomic>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/basic_stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/daemon/http/server.h"

namespace okcvm::daemon {

/// What connections have in common. Outlives them.
struct ConnectionContext {
  WorkerPool& workers;
  const ServerLimits limits;
  const Router router;
  const AnswerObserver answered;
  std::atomic<bool> stopping{false};  // set by the I/O thread
  std::atomic<bool> gives_up{false};  // and what is in hand by now is given up where that can be
};

/// Whether the other end of a socket was closed: one that has only ended what it sends is still there.
bool has_hung_up(int socket);

/// One client: requests are read, carried out and answered one after the other. Everything here runs on the
/// I/O thread, except what is handed to the workers, during which nothing else happens on the connection. It
/// lives as long as an operation refers to it.
class Connection final : public std::enable_shared_from_this<Connection> {
 public:
  using Socket = boost::asio::local::stream_protocol::socket;
  Connection(Socket socket, Peer peer, std::shared_ptr<ConnectionContext> context,
             std::function<void()> ended);
  ~Connection();

  void start() { read_header(); }
  /// Answers `busy` and ends.
  void refuse(const std::string& message);
  /// Ends after the answer to the request that is in hand, or comes in the next half second: a client that
  /// has connected may have sent it already. A request whose body stalls is not waited for, and a client that
  /// takes its answer slowly not for long.
  void stop();
  /// The client is gone, or has to go.
  void end();

  uid_t uid() const { return peer_.uid; }
  /// Since when it waits for a request of which nothing has come yet; nothing where it does not.
  std::optional<std::chrono::steady_clock::time_point> idle_since() const;

 private:
  using ErrorCode = boost::system::error_code;
  using Parser = boost::beast::http::request_parser<boost::beast::http::buffer_body>;

  void read_header();
  void read_header_piece();
  void on_header(ErrorCode error);
  std::optional<Response> take_request();
  void continue_then(void (Connection::*next)());
  void expect_body();
  void read_whole_body();
  void read_rest_of_body();
  void dispatch();
  void open_sink();
  void read_piece();
  void read_rest_of_piece();
  void finish_sink();
  void on_worker(std::function<Result<Response>()> work);
  void read_some(std::size_t room, std::function<void(std::size_t)> then);
  bool is_waited_for();
  std::chrono::seconds idle_limit() const;

  void answer(Response response);
  void answer_and_close(const Error& error, int status);
  void write_all(std::string bytes, std::function<void()> then);
  void write_from(std::shared_ptr<const std::string> bytes, std::size_t from, std::function<void()> then);
  void pump_file(const std::shared_ptr<FileBody>& body);
  void finish_exchange();
  void end_after(std::chrono::milliseconds time, std::function<bool()> is_over);
  void limit_sending();
  void watch_turn();
  void drain();
  void note_answer(int status) const;

  // Streams: progress lines and live bodies.
  void start_stream(std::string content_type);
  bool queue_line(std::string text);
  void write_queued();
  void end_stream(std::string last);
  void start_live(LiveBody body);
  void end_with_client();
  void keep_alive_later();

  boost::beast::basic_stream<boost::asio::local::stream_protocol> stream_;
  const int descriptor_;  // of the stream, for workers; until it is_gone_
  boost::beast::flat_buffer buffer_;
  boost::asio::steady_timer timer_;
  boost::asio::steady_timer body_timer_;
  const Peer peer_;
  const std::shared_ptr<ConnectionContext> context_;
  const std::function<void()> ended_;

  std::optional<Parser> parser_;
  std::size_t header_bytes_ = 0;
  std::size_t framing_bytes_ = 0;  // of the body, since its last byte
  std::size_t pieces_ = 0;         // of bodies that have come
  Request request_;
  Handling handling_;
  std::chrono::steady_clock::time_point started_{};
  std::chrono::steady_clock::time_point waits_since_{};  // for its client
  std::vector<char> piece_;
  std::unique_ptr<BodySink> sink_;
  std::atomic<bool> is_gone_{false};  // the client
  bool in_hand_ = false;              // a request was read and is not answered yet
  bool is_answering_ = false;         // but its answer is being sent
  bool is_receiving_ = false;         // the next piece of its body is waited for
  bool is_late_ = false;              // and did not come in time
  bool keep_alive_ = false;
  bool is_http_1_0_ = false;

  std::deque<std::string> queue_;
  std::atomic<std::size_t> queued_{0};
  bool is_streaming_ = false;
  bool is_writing_ = false;
  bool is_last_queued_ = false;
  bool is_live_ = false;
  std::shared_ptr<void> live_;
  std::function<std::string()> live_keep_alive_;
};

}  // namespace okcvm::daemon
