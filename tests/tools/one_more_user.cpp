#include "tests/tools/one_more_user.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>

#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>

namespace okcvm::test {
namespace {

constexpr const char* kUsers = "/etc/passwd";

}  // namespace

OneMoreUser::OneMoreUser(uid_t uid, const std::filesystem::path& home, const std::filesystem::path& folder)
    : mounts_before_(::open("/proc/thread-self/ns/mnt", O_RDONLY | O_CLOEXEC)),
      directory_before_(std::filesystem::current_path()) {
  const auto users = folder / "passwd";
  const auto number = std::to_string(uid);
  std::filesystem::copy_file(kUsers, users);
  std::ofstream(users, std::ios::app)
      << "okcvm-test:x:" << number << ":" << number << "::" << home.string() << ":/bin/false\n";
  if (!mounts_before_ || ::unshare(CLONE_NEWNS) != 0)
    throw std::runtime_error("this thread cannot have mounts of its own");
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) == 0 &&
      ::mount(users.c_str(), kUsers, nullptr, MS_BIND, nullptr) == 0)
    return;
  ::setns(mounts_before_.get(), CLONE_NEWNS);
  throw std::runtime_error("no file can be mounted on /etc/passwd");
}

OneMoreUser::~OneMoreUser() {
  if (::setns(mounts_before_.get(), CLONE_NEWNS) != 0) std::abort();
  std::filesystem::current_path(directory_before_);  // it is the root now
}

}  // namespace okcvm::test
