#include "tests/differential/side.h"

#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <system_error>

#include "tests/differential/calls.h"
#include "tests/support/process.h"

namespace okcvm::differential {
namespace {

/// Real and effective ids of this thread; the saved ones stay root's, so that it can come back.
class ActingAs final {
 public:
  explicit ActingAs(int who) : changed_(who != 0) {
    if (!changed_) return;
    const auto& user = user_of(who);
    if (::syscall(SYS_setgroups, user.groups.size(), user.groups.data()) != 0 ||
        ::syscall(SYS_setresgid, user.gid, user.gid, 0) != 0 ||
        ::syscall(SYS_setresuid, user.uid, user.uid, 0) != 0)
      throw std::system_error(errno, std::generic_category(), "acting as another user");
  }
  ~ActingAs() {
    if (!changed_) return;
    ::syscall(SYS_setresuid, 0, 0, 0);
    ::syscall(SYS_setresgid, 0, 0, 0);
    ::syscall(SYS_setgroups, 0, nullptr);
  }
  ActingAs(const ActingAs&) = delete;
  ActingAs& operator=(const ActingAs&) = delete;

 private:
  bool changed_;
};

}  // namespace

std::string describe(const Outcome& outcome) {
  std::ostringstream line;
  if (outcome.error)
    line << ::strerrorname_np(outcome.error);
  else
    line << outcome.result;
  if (!outcome.data.empty())
    line << " " << printable(outcome.data.substr(0, 300)) << (outcome.data.size() > 300 ? "..." : "");
  return line.str();
}

std::string describe_status(const struct stat& found) {
  std::ostringstream line;
  line << "mode=0" << std::oct << found.st_mode << std::dec << " uid=" << found.st_uid
       << " gid=" << found.st_gid << " links=" << found.st_nlink;
  if (!S_ISDIR(found.st_mode)) line << " size=" << found.st_size;
  return line.str();
}

Side::Side(const std::filesystem::path& directory)
    : root_(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (!root_) throw std::system_error(errno, std::generic_category(), "open " + directory.string());
}

Outcome Side::perform(const Operation& operation) {
  const ActingAs actor(operation.who);
  auto outcome = call_of(operation.kind)(*this, operation);
  for (auto& mapping : mappings_)
    if (mapping.is_there() && (mapping.status().st_mode & (S_ISUID | S_ISGID))) mapping.unmap();
  return outcome;
}

bool Side::holes_are_unsure(int slot_index) {
  struct stat found {};
  return ::fstat(slot(slot_index).get(), &found) == 0 && unsure_holes_.contains(found.st_ino);
}

void Side::unlock(int slot_index) {
  struct flock everything {};
  everything.l_type = F_UNLCK;
  const int file = slot(slot_index).get();
  if (file < 0) return;
  ::fcntl(file, F_OFD_SETLK, &everything);
  ::flock(file, LOCK_UN);
}

off_t Side::mappable(int slot_index) {
  constexpr off_t kLargest = 1 << 20;
  struct stat found {};
  if (::fstat(slot(slot_index).get(), &found) != 0 || !S_ISREG(found.st_mode)) return 0;
  note_unsure_holes(found.st_ino);
  return std::min(found.st_size, kLargest);
}

}  // namespace okcvm::differential
