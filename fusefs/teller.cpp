#include "fusefs/teller.h"

#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace okcvm::fusefs {
namespace {

int teller = -1;  // the socket to it; open as long as this process lives

std::pair<FileDescriptor, FileDescriptor> socket_pair() {
  int ends[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return {};
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

/// A message with a descriptor. False with errno if it could not be sent.
bool send_with(int socket, std::span<const std::byte> bytes, int descriptor) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> room{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = room.data();
  message.msg_controllen = room.size();
  cmsghdr* rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
  ssize_t sent = 0;
  do sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(bytes.size());
}

/// The next message and what came with it; an empty one at the end.
std::pair<std::size_t, FileDescriptor> receive_with(int socket, std::span<std::byte> into) {
  iovec part{into.data(), into.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> room{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = room.data();
  message.msg_controllen = room.size();
  ssize_t got = 0;
  do got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  while (got < 0 && errno == EINTR);
  int descriptor = -1;
  if (const cmsghdr* rights = got > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
      rights && rights->cmsg_type == SCM_RIGHTS)
    std::memcpy(&descriptor, CMSG_DATA(rights), sizeof descriptor);
  return {got > 0 ? static_cast<std::size_t>(got) : 0, FileDescriptor(descriptor)};
}

void serve_line(const FileDescriptor& line) {
  std::vector<std::byte> bytes(Teller::kMost);
  for (;;) {
    const auto [size, device] = receive_with(line.get(), bytes);
    if (size == 0 || !device) return;
    write_notices(device.get(), std::span(bytes).first(size));
    constexpr char kDone = 1;
    if (::send(line.get(), &kDone, 1, MSG_NOSIGNAL) != 1) return;
  }
}

/// Keeps nothing but its socket, so that nobody waits for what is open here, and ends with the daemon alone.
[[noreturn]] void serve(FileDescriptor socket) {
  ::prctl(PR_SET_NAME, "okcvmd-teller");
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  constexpr int kSocket = 3;
  const int nothing = ::open("/dev/null", O_RDWR);
  for (int standard = 0; standard < kSocket; ++standard) ::dup2(nothing, standard);
  if (socket.get() != kSocket) ::dup2(socket.release(), kSocket);
  ::syscall(SYS_close_range, kSocket + 1, ~0u, 0);
  if (::chdir("/") != 0) ::_exit(1);
  rlimit descriptors{};  // two for each line
  if (::getrlimit(RLIMIT_NOFILE, &descriptors) == 0) {
    descriptors.rlim_cur = descriptors.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &descriptors);
  }
  std::array<std::byte, 1> byte;
  for (;;) {
    auto [size, line] = receive_with(kSocket, byte);
    if (size == 0) ::_exit(0);
    if (!line) continue;
    try {
      std::thread([held = std::move(line)] { serve_line(held); }).detach();
    } catch (const std::system_error&) {
      // No thread can be had: the line ends here, and who opened it writes by himself.
    }
  }
}

}  // namespace

void write_notices(int device, std::span<const std::byte> notices) {
  fuse_out_header header;
  while (notices.size() >= sizeof header) {
    std::memcpy(&header, notices.data(), sizeof header);
    if (header.len < sizeof header || header.len > notices.size()) return;
    [[maybe_unused]] const auto written = ::write(device, notices.data(), header.len);
    notices = notices.subspan(header.len);
  }
}

Result<void> Teller::start() {
  auto [here, there] = socket_pair();
  if (!here) return fail_errno(errno, "no sockets can be had");
  const pid_t child = ::fork();
  if (child < 0) return fail_errno(errno, "no process can be started");
  if (child == 0) serve(std::move(there));
  teller = here.release();
  return {};
}

std::shared_ptr<Teller::Line> Teller::Line::open() {
  auto [here, there] = teller < 0 ? std::pair<FileDescriptor, FileDescriptor>() : socket_pair();
  constexpr std::array kByte{std::byte{1}};
  if (here && !send_with(teller, kByte, there.get())) here.reset();
  return std::shared_ptr<Line>(new Line(std::move(here)));
}

void Teller::Line::tell(int device, std::span<const std::byte> notices) const {
  ssize_t answered = 0;
  if (socket_ && send_with(socket_.get(), notices, device)) {
    char done = 0;
    do answered = ::recv(socket_.get(), &done, 1, 0);
    while (answered < 0 && errno == EINTR);
  }
  // Told twice does no harm.
  if (answered != 1 && !is_cut_) write_notices(device, notices);
}

void Teller::Line::cut() {
  is_cut_ = true;
  if (socket_) ::shutdown(socket_.get(), SHUT_RDWR);
}

}  // namespace okcvm::fusefs
