#include "fusefs/teller.h"

#include <fcntl.h>
#include <linux/fuse.h>
#include <linux/openat2.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <exception>
#include <fstream>
#include <list>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "fusefs/short_child.h"

namespace okcvm::fusefs {
namespace {

using Told = Teller::Line::Told;
static_assert(sizeof(Told) == 1);  // as it is sent

int teller = -1;  // the socket to it; open as long as this process lives
pid_t teller_pid = -1;
bool (*mounts_are_kept)() = nullptr;

// In place of a notice's code: it is look_up_message()'s, and not for the kernel.
constexpr std::int32_t kLookUp = -1;

template <typename Call>
ssize_t again(Call call) {  // and again, while signals come between
  ssize_t result = 0;
  do result = call();
  while (result < 0 && errno == EINTR);
  return result;
}

std::pair<FileDescriptor, FileDescriptor> socket_pair() {
  int ends[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return {};
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

/// A message of bytes and one descriptor (unix(7), SCM_RIGHTS), to be sent or to be received.
class Message {
 public:
  explicit Message(std::span<std::byte> bytes) : part_{bytes.data(), bytes.size()} {
    head_.msg_iov = &part_;
    head_.msg_iovlen = 1;
    head_.msg_control = room_.data();
    head_.msg_controllen = room_.size();
  }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;

  bool send(int socket, int descriptor) {
    cmsghdr* rights = CMSG_FIRSTHDR(&head_);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
    return again([&] { return ::sendmsg(socket, &head_, MSG_NOSIGNAL); }) ==
           static_cast<ssize_t>(part_.iov_len);
  }
  /// How many bytes came, none at the end, and the descriptor if there was room for it.
  std::pair<std::size_t, FileDescriptor> receive(int socket) {
    const ssize_t got = again([&] { return ::recvmsg(socket, &head_, MSG_CMSG_CLOEXEC); });
    if (got <= 0) return {};
    int descriptor = -1;
    if (const cmsghdr* rights = CMSG_FIRSTHDR(&head_); rights && rights->cmsg_type == SCM_RIGHTS)
      std::memcpy(&descriptor, CMSG_DATA(rights), sizeof descriptor);
    return {static_cast<std::size_t>(got), FileDescriptor(descriptor)};
  }

 private:
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> room_{};
  iovec part_;
  msghdr head_{};
};

/// The other end of a Line.
struct ServedLine {
  FileDescriptor socket;
  std::string mount_point;
  std::atomic<bool> is_telling = false;

  void serve() try {
    std::vector<std::byte> bytes(Teller::kMost);
    for (;;) {
      const auto [size, device] = Message(bytes).receive(socket.get());
      if (size == 0 || !device) return;
      is_telling = true;
      const Told told = write_notices(device.get(), std::span(bytes).first(size));
      is_telling = false;
      if (::send(socket.get(), &told, 1, MSG_NOSIGNAL) != 1) return;
    }
  } catch (const std::bad_alloc&) {  // it ends as if there were no thread for it
  }

  /// Of a mount without a daemon: the notice that is waiting keeps its device open, and whoever it waits for
  /// waits for an answer. The mount stays, as those do of which nobody tells, and answers ENOTCONN.
  void end_mount() const {
    const FileDescriptor in_use(::open(mount_point.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (in_use) ::umount2(mount_point.c_str(), MNT_FORCE | UMOUNT_NOFOLLOW);
  }
};

/// Keeps nothing but its socket, so that nobody waits for what is open here, and ends with the daemon alone.
[[noreturn]] void serve(FileDescriptor socket, bool is_kept) {
  ::prctl(PR_SET_NAME, "okcvmd-teller");
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  constexpr int kSocket = 3;
  const int moved = ::fcntl(socket.get(), F_DUPFD_CLOEXEC, kSocket);
  const int nothing = ::open("/dev/null", O_RDWR);
  for (int standard = 0; standard < kSocket; ++standard) ::dup2(nothing, standard);
  if (moved != kSocket) ::dup2(moved, kSocket);
  socket.release();
  ::syscall(SYS_close_range, kSocket + 1, ~0u, 0);
  if (::chdir("/") != 0) ::_exit(1);
  rlimit descriptors{};  // two for each line
  if (::getrlimit(RLIMIT_NOFILE, &descriptors) == 0) {
    descriptors.rlim_cur = descriptors.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &descriptors);
  }
  std::array<std::byte, PATH_MAX> path;
  std::list<std::weak_ptr<ServedLine>> lines;
  for (;;) {
    auto [size, end] = Message(path).receive(kSocket);
    if (size == 0) break;
    if (!end) continue;
    try {
      auto line = std::make_shared<ServedLine>();
      line->socket = std::move(end);
      line->mount_point.assign(reinterpret_cast<const char*>(path.data()), size);
      lines.remove_if([](const auto& other) { return other.expired(); });
      lines.push_back(line);
      std::thread([line = std::move(line)] { line->serve(); }).detach();
    } catch (const std::exception&) {
      // No thread or memory can be had: the line ends here, and who opened it writes by himself.
    }
  }
  if (!is_kept)
    for (const auto& line : lines)
      if (const auto there = line.lock(); there && there->is_telling) there->end_mount();
  ::_exit(0);
}

/// Whether this inode is there. Nothing is followed that a user may have put there: no link, no mount of his.
bool look_up(const char* mount_point, const char* path, std::uint64_t inode) {
  const FileDescriptor top(::open(mount_point, O_PATH | O_DIRECTORY | O_CLOEXEC));
  open_how how{};
  how.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV;
  // ESTALE: somebody else renamed just then, and the kernel could not give what it found this name
  // (d_splice_alias()).
  constexpr int kTries = 100;
  constexpr useconds_t kPause = 500;
  int opened = -1;
  for (int i = 0; i < kTries; ++i) {
    opened = static_cast<int>(::syscall(SYS_openat2, top.get(), path, &how, sizeof how));
    if (opened >= 0 || errno != ESTALE) break;
    ::usleep(kPause);
  }
  const FileDescriptor found(opened);
  struct statx status {};
  constexpr int kFlags = AT_EMPTY_PATH | AT_STATX_DONT_SYNC;
  return found && ::statx(found.get(), "", kFlags, STATX_INO, &status) == 0 && status.stx_ino == inode;
}

/// Of the notice that begins here.
bool is_of_attributes_alone(std::span<const std::byte> notice) {
  struct {
    fuse_out_header header;
    fuse_notify_inval_inode_out body;
  } inode;
  if (notice.size() < sizeof inode) return false;
  std::memcpy(&inode, notice.data(), sizeof inode);
  return inode.header.error == FUSE_NOTIFY_INVAL_INODE && inode.body.off == kAttributesAlone;
}

/// It never says anything here. Its end closes a line a moment sooner than this.
bool has_ended() {
  constexpr int kMomentMilliseconds = 200;
  pollfd end{teller, POLLIN, 0};
  return again([&] { return ::poll(&end, 1, kMomentMilliseconds); }) > 0;
}

}  // namespace

std::vector<std::byte> look_up_message(const std::string& mount_point, const std::string& path,
                                       std::uint64_t inode) {
  fuse_out_header header{};
  header.error = kLookUp;
  header.unique = inode;
  header.len = static_cast<std::uint32_t>(sizeof header + mount_point.size() + 1 + path.size() + 1);
  std::vector<std::byte> bytes(header.len);  // each text ends with a NUL
  std::memcpy(bytes.data(), &header, sizeof header);
  std::memcpy(bytes.data() + sizeof header, mount_point.data(), mount_point.size());
  std::memcpy(bytes.data() + sizeof header + mount_point.size() + 1, path.data(), path.size());
  return bytes;
}

Told write_notices(int device, std::span<const std::byte> notices) {
  auto told = Told::kYes;
  fuse_out_header header;
  while (notices.size() >= sizeof header) {
    std::memcpy(&header, notices.data(), sizeof header);
    if (header.len < sizeof header || header.len > notices.size()) break;
    told = Told::kYes;
    if (header.error == kLookUp) {
      const auto* mount_point = reinterpret_cast<const char*>(notices.data() + sizeof header);
      if (!look_up(mount_point, mount_point + std::strlen(mount_point) + 1, header.unique))
        told = Told::kNotFound;
    } else {
      const auto written = ::write(device, notices.data(), header.len);
      if (written < 0 && errno == ENOENT && is_of_attributes_alone(notices)) told = Told::kNotFound;
    }
    notices = notices.subspan(header.len);
  }
  return told;
}

Result<void> Teller::start(bool (*are_kept)()) {
  mounts_are_kept = are_kept;
  const bool is_kept = are_kept();
  auto [here, there] = socket_pair();
  if (!here) return fail_errno(errno, "the process that tells the kernel what to forget gets no sockets");
  const pid_t child = ::fork();
  if (child < 0)
    return fail_errno(errno, "the process that tells the kernel what to forget cannot be started");
  if (child == 0) serve(std::move(there), is_kept);
  teller = here.release();
  teller_pid = child;
  return {};
}

int Teller::ending() {
  return teller;
}

void Teller::look_after() {
  if (teller < 0) return;
  std::ifstream process("/proc/" + std::to_string(teller_pid) + "/stat");
  std::string status;
  std::getline(process, status);
  const auto name_end = status.rfind(") ");  // proc(5): the state comes after the name
  if (name_end == status.npos || status[name_end + 2] == 'Z')
    ::shutdown(teller, SHUT_RDWR);
  else if (status[name_end + 2] == 'T')
    ::kill(teller_pid, SIGCONT);  // somebody stopped it, and programs wait for what it tells
}

std::shared_ptr<Teller::Line> Teller::Line::open(const std::string& mount_point) {
  auto [here, there] = teller < 0 ? std::pair<FileDescriptor, FileDescriptor>() : socket_pair();
  std::vector<std::byte> path(mount_point.size());
  std::memcpy(path.data(), mount_point.data(), path.size());
  if (here && !Message(path).send(teller, there.get())) here.reset();
  return std::shared_ptr<Line>(new Line(std::move(here)));
}

Told Teller::Line::tell(int device, std::span<std::byte> notices, std::chrono::milliseconds timeout) const {
  return socket_ && Message(notices).send(socket_.get(), device) ? wait(device, notices, timeout)
                                                                 : tell_alone(device, notices, timeout);
}

Told Teller::Line::wait(int device, std::span<std::byte> notices, std::chrono::milliseconds timeout) const {
  pollfd answer{socket_.get(), POLLIN, 0};
  if (again([&] { return ::poll(&answer, 1, static_cast<int>(timeout.count())); }) == 0) return Told::kLate;
  auto told = Told::kYes;
  return again([&] { return ::recv(socket_.get(), &told, 1, 0); }) == 1
             ? told
             : tell_alone(device, notices, timeout);
}

Told Teller::Line::tell_alone(int device, std::span<std::byte> notices,
                              std::chrono::milliseconds timeout) const {
  if (is_cut_) return Told::kYes;
  const bool may_wait = !mounts_are_kept || !mounts_are_kept() || !has_ended();
  if (may_wait) return write_notices(device, notices);  // told twice does no harm
  ShortChild child(device, [&] { return static_cast<int>(write_notices(device, notices)); });
  const auto told = child ? child.status_within(timeout) : std::nullopt;
  return told && *told >= 0 ? static_cast<Told>(*told) : Told::kByNobody;
}

bool Teller::Line::is_done() const {
  char done = 0;
  return again([&] { return ::recv(socket_.get(), &done, 1, MSG_DONTWAIT); }) == 1;
}

void Teller::Line::cut() {
  is_cut_ = true;
  if (socket_) ::shutdown(socket_.get(), SHUT_RDWR);
}

}  // namespace okcvm::fusefs
