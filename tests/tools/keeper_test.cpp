#include "tools/daemon/host/keeper.h"

#include <gmock/gmock.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include "tests/support/expect.h"
#include "tests/support/process.h"
#include "tests/support/scratch.h"
#include "tests/tools/daemon_fixture.h"
#include "tools/daemon/host/keeper_notices.h"
#include "tools/daemon/host/service_manager.h"

namespace okcvm::test {
namespace {

using daemon::make_notice_socket;
using daemon::receive_notice;
using daemon::ServiceManager;

/// The name of a process's socket for datagrams as proc_net(5), "unix", shows it; nothing if it has none.
std::optional<std::string> datagram_socket_of(pid_t process) {
  std::ifstream table("/proc/net/unix");
  std::string line;
  std::getline(table, line);  // the heading
  while (std::getline(table, line)) {
    std::istringstream row(line);
    std::string number, references, protocol, flags, type, state, inode, name;
    row >> number >> references >> protocol >> flags >> type >> state >> inode >> name;
    if (type != "0002") continue;
    std::error_code ignored;
    for (const auto& entry :
         std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/fd", ignored))
      if (std::filesystem::read_symlink(entry.path(), ignored) == "socket:[" + inode + "]") return name;
  }
  return std::nullopt;
}

/// connect(2) to a name as datagram_socket_of() answers it.
int connect_to(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::size_t size = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path, name.data(), size);
  if (name.starts_with('@')) address.sun_path[0] = '\0';
  const FileDescriptor client(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return ::connect(client.get(), reinterpret_cast<const sockaddr*>(&address),
                   static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + size));
}

class TheKeeper : public DaemonFixture {};

// A stranger could send it a descriptor whose close takes hours.
TEST_F(TheKeeper, CannotBeSentAnythingByOthers) {
  start({"--keeper"});
  const auto name = datagram_socket_of(keeper_pid());
  ASSERT_TRUE(name);
  ASSERT_FALSE(name->empty());
  as_user(kAlice, [&] { EXPECT_NE(connect_to(*name), 0) << *name; });
}

TEST_F(TheKeeper, LeavesNothingOfItsSocketInTheRunDirectory) {
  std::filesystem::create_directory(root_ / "run");
  start({"--keeper"});
  for (const auto& folder : {root_, root_ / "run"})
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      EXPECT_THAT(entry.path().filename().string(), ::testing::Not(::testing::HasSubstr("keeper")));
}

TEST(TheNoticeSocket, IsReachedByItsWayWhereverItWasMade) {
  const ScratchDirectory scratch("notices");
  const auto far = scratch / std::string(200, 'd');
  std::filesystem::create_directory(far);
  for (const auto& run_dir : {far, far / "to-be-made"}) {
    const auto made = make_notice_socket(run_dir);
    ASSERT_TRUE(made) << run_dir;
    EXPECT_OK(connect_to("/proc/self/fd/" + std::to_string(made->way.get())));
    EXPECT_TRUE(std::filesystem::is_empty(far));
    EXPECT_FALSE(receive_notice(made->socket.get()));
  }
}

/// The environment that a daemon is started with.
class ADaemonsParent : public ::testing::Test {
 protected:
  void TearDown() override {
    ::unsetenv("NOTIFY_SOCKET");
    ::unsetenv(daemon::kKeeperVariable);
  }
};

TEST_F(ADaemonsParent, IsToldFromTheEnvironment) {
  EXPECT_EQ(ServiceManager().kept_by(), "nobody");
  const ScratchDirectory scratch("notify");
  const auto path = (scratch / "socket").string();
  ::setenv("NOTIFY_SOCKET", path.c_str(), 1);
  EXPECT_EQ(ServiceManager().kept_by(), "nobody") << "nobody listens there";
  const FileDescriptor listening(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{AF_UNIX, {}};
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_OK(::bind(listening.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address));
  EXPECT_EQ(ServiceManager().kept_by(), "systemd");
  ::setenv("NOTIFY_SOCKET", "/proc/self/fd/3", 1);
  ::setenv(daemon::kKeeperVariable, std::to_string(::getppid()).c_str(), 1);
  EXPECT_EQ(ServiceManager().kept_by(), "keeper");
  ::setenv(daemon::kKeeperVariable, std::to_string(::getpid()).c_str(), 1);  // which has died before
  EXPECT_EQ(ServiceManager().kept_by(), "nobody");
}

// It starts the daemons of the package that came after its own.
TEST_F(ADaemonsParent, MayBeAKeeperFromBeforeAnUpgrade) {
  ::setenv("NOTIFY_SOCKET", "@okcvm-keeper-1234-5678", 1);
  EXPECT_EQ(ServiceManager().kept_by(), "keeper");
}

}  // namespace
}  // namespace okcvm::test
