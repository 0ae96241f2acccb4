#include "tools/daemon/host/keeper_notices.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>

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

}  // namespace

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
