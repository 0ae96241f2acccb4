#include "tools/daemon/host/keeper_notices.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "policy/proc_path.h"

namespace okcvm::daemon {
namespace {

constexpr std::size_t kMostPerMessage = 16;
constexpr std::size_t kMostText = 4096;

using Fields = std::map<std::string, std::string, std::less<>>;

Fields fields_of(std::string_view message) {
  Fields fields;
  while (!message.empty()) {
    const auto line = message.substr(0, message.find('\n'));
    message.remove_prefix(std::min(line.size() + 1, message.size()));
    if (const auto equals = line.find('='); equals != line.npos)
      fields[std::string(line.substr(0, equals))] = line.substr(equals + 1);
  }
  return fields;
}

/// What can stand in LISTEN_FDNAMES (sd_pid_notify_with_fds(3)).
bool is_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 &&
         std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c < 0x7f && c != ':'; });
}

bool is_mine_alone(int folder) {
  struct stat status {};
  return ::fstat(folder, &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == ::geteuid() &&
         (status.st_mode & 077) == 0;
}

/// The path is one of the folder's descriptor, for a socket's has at most 107 bytes (unix(7)).
bool bind_in(int folder, const char* name, int socket) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = std::string(ProcPath(folder).c_str()) + "/" + name;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return ::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

std::optional<NoticeSocket> make_notice_socket_in(const std::filesystem::path& place) {
  constexpr const char* kName = "notices";
  constexpr int kOn = 1;
  std::string path = place / "okcvmd-keeper-XXXXXX";
  if (!::mkdtemp(path.data())) return std::nullopt;
  const FileDescriptor folder(::open(path.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  NoticeSocket made;
  made.socket = FileDescriptor(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (folder && made.socket && is_mine_alone(folder.get()) &&
      bind_in(folder.get(), kName, made.socket.get())) {
    made.way = FileDescriptor(::openat(folder.get(), kName, O_PATH | O_NOFOLLOW | O_CLOEXEC));
    ::unlinkat(folder.get(), kName, 0);
  }
  ::rmdir(path.c_str());
  if (!made.way || ::setsockopt(made.socket.get(), SOL_SOCKET, SO_PASSCRED, &kOn, sizeof kOn) != 0)
    return std::nullopt;
  return made;
}

}  // namespace

std::optional<NoticeSocket> make_notice_socket(const std::filesystem::path& run_dir) {
  // The daemon has yet to make the run directory when it is started for the first time.
  const std::array<std::filesystem::path, 4> places{run_dir, run_dir.parent_path(), "/run", "/tmp"};
  for (const auto& place : places)
    if (auto made = make_notice_socket_in(place)) return made;
  return std::nullopt;
}

std::optional<Notice> receive_notice(int socket) {
  std::array<char, kMostText> text{};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMostPerMessage) + CMSG_SPACE(sizeof(ucred))>
      space{};
  iovec part{text.data(), text.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = space.data();
  header.msg_controllen = space.size();
  const auto size = ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (size < 0) return std::nullopt;
  Notice notice;
  notice.text.assign(text.data(), static_cast<std::size_t>(size));
  for (cmsghdr* item = CMSG_FIRSTHDR(&header); item; item = CMSG_NXTHDR(&header, item)) {
    if (item->cmsg_level != SOL_SOCKET) continue;
    if (item->cmsg_type == SCM_CREDENTIALS) {
      ucred credentials{};
      std::memcpy(&credentials, CMSG_DATA(item), sizeof credentials);
      notice.sender = credentials.pid;
    }
    if (item->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t at = 0; at + sizeof(int) <= item->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(item) + at, sizeof descriptor);
      notice.descriptors.emplace_back(descriptor);
    }
  }
  return notice;
}

void KeptDescriptors::carry_out(Notice notice) {
  const auto fields = fields_of(notice.text);
  const auto value = [&](std::string_view field) {
    const auto found = fields.find(field);
    return found == fields.end() ? std::string_view() : std::string_view(found->second);
  };
  if (value("READY") == "1") is_ready_ = true;
  const std::string name(value("FDNAME"));
  if (!is_name(name)) return;
  if (value("FDSTOREREMOVE") == "1") kept_.erase(name);
  if (value("FDSTORE") == "1" && notice.descriptors.size() == 1 &&
      (kept_.contains(name) || kept_.size() < kMost))
    kept_[name] = std::move(notice.descriptors.front());
}

bool KeptDescriptors::has_mounts() const {
  return kept_.size() > (kept_.contains("control") ? 1 : 0);
}

}  // namespace okcvm::daemon
