#include "tools/daemon/http/server.h"

#include <sys/socket.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <map>
#include <set>

#include "tools/daemon/host/log.h"
#include "tools/daemon/http/connection.h"

#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59
#endif
#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83  // since Linux 6.16
#endif

namespace okcvm::daemon {
namespace {

namespace asio = boost::asio;

/// Connections of one user beyond the limit (of root, when as many wait already) that are told so, and stay
/// until they have heard it. More are closed without a word, so that no user takes the places of the others.
constexpr std::size_t kMostRefusals = 8;

constexpr std::chrono::seconds kForLastAnswers{2};

/// A connection that has asked nothing for so long makes room for one that waits.
constexpr std::chrono::seconds kIdleEnough{1};
constexpr std::chrono::milliseconds kLooksForRoomEach{100};

/// Nobody is to send descriptors (EPERM): the kernel would close them in the thread that reads what came
/// along, which for some files takes as long as their owner likes. Without effect on kernels that cannot.
void refuse_descriptors(int socket) {
  constexpr int kOff = 0;
  ::setsockopt(socket, SOL_SOCKET, SO_PASSRIGHTS, &kOff, sizeof kOff);
}

Result<Peer> peer_of(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0)
    return fail_errno(errno, "a client's identity is not known");
  Peer peer{credentials.pid, credentials.uid, credentials.gid, std::vector<gid_t>(64)};
  size = static_cast<socklen_t>(peer.groups.size() * sizeof(gid_t));
  int got = ::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, peer.groups.data(), &size);
  if (got != 0 && errno == ERANGE) {
    peer.groups.resize(size / sizeof(gid_t));
    got = ::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, peer.groups.data(), &size);
  }
  peer.groups.resize(got == 0 ? size / sizeof(gid_t) : 0);
  return peer;
}

}  // namespace

class Server::Impl : public std::enable_shared_from_this<Server::Impl> {
 public:
  Impl(asio::io_context& io, WorkerPool& workers, ServerLimits limits, Router router, AnswerObserver answered)
      : context_(new ConnectionContext{workers, limits, std::move(router), std::move(answered)}),
        acceptor_(io),
        retry_(io),
        room_(io),
        timeout_(io) {}

  std::size_t connections() const { return count_.load(std::memory_order_relaxed); }

  Result<void> serve(FileDescriptor listening) {
    refuse_descriptors(listening.get());  // connections have it from here, but for those that wait already
    boost::system::error_code error;
    acceptor_.assign(asio::local::stream_protocol(), listening.get(), error);
    if (error) return fail_errno(error.value(), "the control socket cannot be served");
    listening.release();
    accept();
    return {};
  }

  void stop(std::chrono::seconds timeout, std::function<void()> stopped) {
    if (context_->stopping) return wait_no_longer_than(timeout);
    context_->stopping = true;
    stopped_ = std::move(stopped);
    boost::system::error_code ignored;
    acceptor_.close(ignored);
    retry_.cancel();
    room_.cancel();
    for (const auto& weak : std::set<std::weak_ptr<Connection>, std::owner_less<>>(live_))
      if (const auto connection = weak.lock()) connection->stop();
    for (; !waiting_.empty(); waiting_.pop_front())
      admit(std::move(waiting_.front().socket), std::move(waiting_.front().peer));
    if (count_ == 0) return finish_stop();
    timeout_.expires_after(timeout);
    wait_for_last();
  }

 private:
  void wait_no_longer_than(std::chrono::seconds timeout) {
    const auto until = std::chrono::steady_clock::now() + timeout;
    if (timeout_.expiry() <= until) return;
    timeout_.expires_at(until);
    wait_for_last();
  }

  /// What is given up then is to be answered still.
  void wait_for_last() {
    timeout_.async_wait([self = shared_from_this()](boost::system::error_code error) {
      if (error) return;
      if (self->context_->gives_up.exchange(true)) return self->finish_stop();
      self->timeout_.expires_after(kForLastAnswers);
      self->wait_for_last();
    });
  }

  void accept() {
    if (context_->stopping || accepting_) return;
    accepting_ = true;
    acceptor_.async_accept(
        [self = shared_from_this()](boost::system::error_code error, Connection::Socket socket) {
          self->accepting_ = false;
          if (error) return self->accept_later(error.message());
          self->take(std::move(socket));
          self->accept();
        });
  }

  /// Out of descriptors, most likely: some connection will end.
  void accept_later(const std::string& reason) {
    if (context_->stopping) return;
    log_warning("a connection could not be accepted: {}", reason);
    retry_.expires_after(std::chrono::milliseconds(200));
    retry_.async_wait([self = shared_from_this()](boost::system::error_code error) {
      if (!error) self->accept();
    });
  }

  void take(Connection::Socket socket) {
    refuse_descriptors(socket.native_handle());
    auto peer = peer_of(socket.native_handle());
    if (!peer) return;
    if (peer->uid == 0 && !has_room_for_root()) return let_wait(std::move(socket), std::move(*peer));
    admit(std::move(socket), std::move(*peer));
  }

  /// What has gone while it waited keeps no place there.
  void let_wait(Connection::Socket socket, Peer peer) {
    const auto most = context_->limits.connections;
    if (waiting_.size() >= most)
      std::erase_if(waiting_, [](auto& waiting) { return has_hung_up(waiting.socket.native_handle()); });
    if (waiting_.size() >= most) return refuse_root(std::move(socket), std::move(peer));
    waiting_.push_back({std::move(socket), std::move(peer)});
    make_room();
  }

  void refuse_root(Connection::Socket socket, Peer peer) {
    if (count_ - of_others_ >= context_->limits.connections + kMostRefusals) return;
    open(std::move(socket), std::move(peer))->refuse("root has too many connections: close some");
  }

  /// What others than root have open keeps root from nothing.
  bool has_room_for_root() const { return count_ - of_others_ < context_->limits.connections; }

  /// While somebody waits, the one of root's connections that has been idle for longest is closed.
  void make_room() {
    std::shared_ptr<Connection> idlest;
    for (const auto& weak : live_) {
      auto connection = weak.lock();
      if (!connection || connection->uid() != 0 || !connection->idle_since()) continue;
      if (!idlest || *connection->idle_since() < *idlest->idle_since()) idlest = std::move(connection);
    }
    if (idlest && std::chrono::steady_clock::now() - *idlest->idle_since() >= kIdleEnough)
      return idlest->end();
    room_.expires_after(kLooksForRoomEach);
    room_.async_wait([self = shared_from_this()](boost::system::error_code error) {
      if (!error && !self->waiting_.empty()) self->make_room();
    });
  }

  void admit(Connection::Socket socket, Peer peer) {
    const uid_t uid = peer.uid;
    const auto most = context_->limits.connections_per_user;
    const auto known = by_user_.find(uid);
    if (uid != 0 && known != by_user_.end() && known->second >= most + kMostRefusals) return;
    if (uid != 0 && of_others_ >= context_->limits.connections + kMostRefusals) return;
    const bool is_full = uid != 0 && of_others_ >= context_->limits.connections;
    const auto connection = open(std::move(socket), std::move(peer));
    if (uid != 0 && by_user_[uid] > most)
      return connection->refuse("you have too many connections: close some");
    if (is_full) return connection->refuse("all users together have too many connections: try again");
    connection->start();
    if (context_->stopping) connection->stop();
  }

  std::shared_ptr<Connection> open(Connection::Socket socket, Peer peer) {
    const uid_t uid = peer.uid;
    ++count_;
    of_others_ += uid != 0;
    ++by_user_[uid];
    auto connection = std::make_shared<Connection>(std::move(socket), std::move(peer), context_,
                                                   [self = shared_from_this(), uid] { self->ended(uid); });
    live_.insert(connection);
    return connection;
  }

  void ended(uid_t uid) {
    --count_;
    of_others_ -= uid != 0;
    if (--by_user_[uid] == 0) by_user_.erase(uid);
    std::erase_if(live_, [](const auto& weak) { return weak.expired(); });
    if (context_->stopping && count_ == 0) finish_stop();
    if (!waiting_.empty() && has_room_for_root()) {
      admit(std::move(waiting_.front().socket), std::move(waiting_.front().peer));
      waiting_.pop_front();
      if (!waiting_.empty()) make_room();
    }
    accept();
  }

  void finish_stop() {
    timeout_.cancel();
    if (auto stopped = std::exchange(stopped_, nullptr)) stopped();
  }

  const std::shared_ptr<ConnectionContext> context_;
  asio::local::stream_protocol::acceptor acceptor_;
  asio::steady_timer retry_;
  asio::steady_timer room_;
  asio::steady_timer timeout_;
  std::atomic<std::size_t> count_{0};  // changed on the I/O thread
  std::size_t of_others_ = 0;          // than root
  bool accepting_ = false;
  std::map<uid_t, std::size_t> by_user_;
  std::set<std::weak_ptr<Connection>, std::owner_less<>> live_;
  struct Waiting {
    Connection::Socket socket;
    Peer peer;
  };
  std::deque<Waiting> waiting_;  // root's beyond the limit
  std::function<void()> stopped_;
};

Server::Server(asio::io_context& io, WorkerPool& workers, ServerLimits limits, Router router,
               AnswerObserver answered)
    : impl_(std::make_shared<Impl>(io, workers, limits, std::move(router), std::move(answered))) {}
Server::~Server() = default;

std::size_t Server::connections() const {
  return impl_->connections();
}

Result<void> Server::serve(FileDescriptor listening) {
  return impl_->serve(std::move(listening));
}
void Server::stop(std::chrono::seconds timeout, std::function<void()> stopped) {
  impl_->stop(timeout, std::move(stopped));
}

}  // namespace okcvm::daemon
