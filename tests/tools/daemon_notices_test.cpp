#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <optional>
#include <thread>
#include <vector>

#include "tests/tools/daemon_fixture.h"

namespace okcvm::test {
namespace {

/// The kernel locks a directory to forget a name in it, and whoever changes names there holds that lock until
/// he has his answer. A daemon that waited for it itself could not be killed, and nobody would give that
/// answer.
class DaemonNotices : public DaemonFixture {
 protected:
  void make_session() {
    create({{"id", "s1"}});
    std::filesystem::create_directories(outputs() / "b");
  }
  std::filesystem::path outputs() const { return mount("s1") / "outputs"; }

  /// Programs that rename folders to deeper places, of which the kernel is told, and others that make and
  /// remove names there meanwhile.
  void start_programs() {
    for (int i = 0; i < 2; ++i) {
      const auto name = std::to_string(i);
      std::filesystem::create_directories(outputs() / name);
      programs_.emplace_back(
          [this, from = outputs() / name, to = outputs() / "b" / name](const std::stop_token& stop) {
            while (!stop.stop_requested())
              failed_ += ::rename(from.c_str(), to.c_str()) != 0 || ::rename(to.c_str(), from.c_str()) != 0;
          });
      programs_.emplace_back([this, made = outputs() / "b" / ("m" + name)](const std::stop_token& stop) {
        while (!stop.stop_requested())
          failed_ += ::mkdir(made.c_str(), 0755) != 0 || ::rmdir(made.c_str()) != 0;
      });
    }
  }
  /// How many of their calls failed.
  int stop_programs() {
    programs_.clear();
    return failed_;
  }

  bool another_serves(pid_t before) {
    return comes_true([&] { return ask("GET", "/v1/sessions/s1").status == 200 && serving_pid() != before; });
  }

  /// The process of the daemon's that tells the kernel.
  static std::optional<pid_t> teller_of(pid_t daemon) {
    const auto process = "/proc/" + std::to_string(daemon);
    std::ifstream children(process + "/task/" + std::to_string(daemon) + "/children");
    for (pid_t child = 0; children >> child;)
      if (read("/proc/" + std::to_string(child) + "/comm") == "okcvmd-teller\n") return child;
    return std::nullopt;
  }

 private:
  std::atomic<int> failed_ = 0;
  std::vector<std::jthread> programs_;
};

TEST_F(DaemonNotices, KeepNoDaemonFromBeingKilledOrReplaced) {
  start({"--keeper"});
  make_session();
  start_programs();
  for (int round = 0; round < 12; ++round) {
    const pid_t before = serving_pid();
    if (round % 2)
      signal(SIGHUP);
    else
      kill_daemon();
    EXPECT_TRUE(another_serves(before));
    EXPECT_EQ(ask("PUT", "/v1/sessions/s1/files/outputs/b/f", "bytes").status / 100, 2);
    EXPECT_EQ(ask("DELETE", "/v1/sessions/s1/files/outputs/b/f").status, 200);
  }
  EXPECT_EQ(stop_programs(), 0);
}

TEST_F(DaemonNotices, AreToldByTheNextDaemonWhereNobodyTellsThemAnyMore) {
  start({"--keeper"});
  make_session();
  std::ofstream file(outputs() / "file");
  start_programs();
  for (int round = 0; round < 6; ++round) {
    const pid_t before = serving_pid();
    const auto teller = teller_of(before);
    ASSERT_TRUE(teller);
    ASSERT_EQ(::kill(*teller, SIGKILL), 0);
    if (round % 2) kill_daemon();
    EXPECT_TRUE(another_serves(before));
    EXPECT_EQ(ask("PUT", "/v1/sessions/s1/files/outputs/b/f", "bytes").status / 100, 2);
    EXPECT_EQ(read(outputs() / "b/f"), "bytes");
    EXPECT_EQ(ask("DELETE", "/v1/sessions/s1/files/outputs/b/f").status, 200);
    EXPECT_FALSE(std::filesystem::exists(outputs() / "b/f"));
  }
  EXPECT_EQ(stop_programs(), 0);
  file << "bytes" << std::flush;
  EXPECT_TRUE(file.good());
  EXPECT_NE(log().find("tells the kernel what to forget has ended"), std::string::npos);
}

TEST_F(DaemonNotices, DoNotKeepTheMountOfADeadDaemonWithoutAKeeper) {
  for (int round = 0; round < 4; ++round) {
    start();
    if (round == 0) make_session();
    start_programs();
    // Until one is on its way: in a mount where much is told, that is soon.
    for (int i = 0; i < 300; ++i) EXPECT_EQ(ask("GET", "/v1/sessions/s1").status, 200);
    kill_daemon();
    EXPECT_GT(stop_programs(), 0);  // every call comes back
    struct statfs space {};
    EXPECT_TRUE(comes_true([&] { return ::statfs(mount("s1").c_str(), &space) != 0 && errno == ENOTCONN; }));
    wait_for_end();
  }
  start();
  EXPECT_TRUE(std::filesystem::is_directory(outputs() / "b"));
}

}  // namespace
}  // namespace okcvm::test
