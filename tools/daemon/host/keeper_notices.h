#pragma once

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "policy/file_descriptor.h"

namespace okcvm::daemon {

/// Where a keeper hears its child.
struct NoticeSocket {
  FileDescriptor socket;  // of datagrams, with SO_PASSCRED
  /// An O_PATH descriptor of the socket's inode: who has it sends to /proc/self/fd/<number>. There is no
  /// other way, for what a stranger sends may be a descriptor whose close takes as long as he likes.
  FileDescriptor way;
};
/// It has a name only while it is made, in the run directory if that is there.
std::optional<NoticeSocket> make_notice_socket(const std::filesystem::path& run_dir);

/// One datagram of sd_notify(3) with what came along.
struct Notice {
  pid_t sender = -1;  // as the kernel says; -1 if it does not
  std::string text;
  std::vector<FileDescriptor> descriptors;
};
/// The next one on a socket that has SO_PASSCRED; none if there is none now.
std::optional<Notice> receive_notice(int socket);

/// What the keeper holds for its daemon. Not thread-safe.
class KeptDescriptors final {
 public:
  static constexpr std::size_t kMost = 8192;

  /// Carries out FDSTORE, FDSTOREREMOVE and READY. What is not kept is closed, which is also what a BARRIER
  /// waits for; a message that makes no sense does nothing else.
  void carry_out(Notice notice);

  const std::map<std::string, FileDescriptor>& all() const { return kept_; }
  /// Whether there is more than the control socket.
  bool has_mounts() const;
  /// Whether the daemon has said so since it was last forgotten.
  bool is_ready() const { return is_ready_; }
  void forget_ready() { is_ready_ = false; }

 private:
  std::map<std::string, FileDescriptor> kept_;
  bool is_ready_ = false;
};

}  // namespace okcvm::daemon
