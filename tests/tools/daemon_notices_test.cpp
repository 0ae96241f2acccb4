#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <future>
#include <optional>
#include <thread>
#include <vector>

#include "policy/file_descriptor.h"
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
    return failed_.exchange(0);
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

TEST_F(DaemonNotices, AreToldThoughWhoTellsThemWasStopped) {
  start({"--keeper"});
  make_session();
  const auto from = outputs() / "b/a", to = outputs() / "a";
  std::filesystem::create_directory(from);
  // What is kept of it must go before the directory may stand where it could lead out.
  std::filesystem::create_symlink("../file", from / "link");
  EXPECT_EQ(std::filesystem::read_symlink(from / "link"), "../file");
  const auto teller = teller_of(serving_pid());
  ASSERT_TRUE(teller);
  ASSERT_EQ(::kill(*teller, SIGSTOP), 0);
  auto renamed = std::async(std::launch::async, [&] { return ::rename(from.c_str(), to.c_str()); });
  EXPECT_EQ(renamed.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  ::kill(*teller, SIGCONT);
  EXPECT_EQ(renamed.get(), 0);
}

TEST_F(DaemonNotices, AreToldByTheNextDaemonWhereNobodyTellsThemAnyMore) {
  start({"--keeper"});
  make_session();
  std::ofstream file(outputs() / "file");
  start_programs();
  for (int round = 0; round < 4; ++round) {
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

/// A program that keeps a directory locked, as long as it lives: it lists it into memory whose first use is
/// for it to answer (userfaultfd(2)).
class SlowReader {
 public:
  explicit SlowReader(const std::filesystem::path& directory)
      : faults_(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC))),
        page_(::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    uffdio_api api{UFFD_API, 0, 0};
    uffdio_register watched{
        {reinterpret_cast<std::uintptr_t>(page_), kSize}, UFFDIO_REGISTER_MODE_MISSING, 0};
    if (::ioctl(faults_.get(), UFFDIO_API, &api) != 0 ||
        ::ioctl(faults_.get(), UFFDIO_REGISTER, &watched) != 0)
      return;
    FileDescriptor open(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    reader_ =
        std::jthread([this, open = std::move(open)] { ::syscall(SYS_getdents64, open.get(), page_, kSize); });
    pollfd fault{faults_.get(), POLLIN, 0};
    is_holding_ = ::poll(&fault, 1, 10'000) == 1;
  }
  ~SlowReader() {
    uffdio_zeropage answer{{reinterpret_cast<std::uintptr_t>(page_), kSize}, 0, 0};
    if (is_holding_) ::ioctl(faults_.get(), UFFDIO_ZEROPAGE, &answer);
    if (reader_.joinable()) reader_.join();
    ::munmap(page_, kSize);
  }
  bool is_holding() const { return is_holding_; }

 private:
  static constexpr std::size_t kSize = 4096;
  FileDescriptor faults_;
  void* page_;
  bool is_holding_ = false;
  std::jthread reader_;
};

TEST_F(DaemonNotices, ThatAProgramHoldsUpHoldNobodyElseUp) {
  start({"--keeper"});
  make_session();
  create({{"id", "s2"}});
  write(outputs() / "b/f", "before");
  // A listing that the kernel keeps is read with its pages locked, a new one with the directory.
  for (int i = 0; i < 2; ++i)
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(mount("s1"))) continue;
  const SlowReader root_reader(mount("s1"));
  const SlowReader reader(outputs() / "b");
  if (!reader.is_holding() || !root_reader.is_holding()) GTEST_SKIP() << "there is no userfaultfd(2)";
  EXPECT_EQ(ask("PUT", "/v1/sessions/s1/files/outputs/b/f", "after").status, 200);
  const pid_t before = serving_pid();
  kill_daemon();
  EXPECT_TRUE(another_serves(before));
  write(mount("s2") / "outputs/f", "bytes");
  EXPECT_EQ(ask("PUT", "/v1/sessions/s1/files/outputs/b/f", "again").status, 200);
  EXPECT_EQ(read(mount("s2") / "outputs/f"), "bytes");
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/unmount", R"({"force":true})").status, 200);
  EXPECT_EQ(ask("DELETE", "/v1/sessions/s1").status, 200);
  EXPECT_EQ(read(mount("s2") / "outputs/f"), "bytes");
}

TEST_F(DaemonNotices, AreMissedByNobodyThoughTheKernelHoldsUpWhoToldThem) {
  start({"--keeper"});
  make_session();
  create({{"id", "s2"}});
  write(outputs() / "b/f", "before");
  write(mount("s2") / "outputs/f", "before");
  const SlowReader reader(outputs() / "b");
  if (!reader.is_holding()) GTEST_SKIP() << "there is no userfaultfd(2)";
  EXPECT_EQ(ask("PUT", "/v1/sessions/s1/files/outputs/b/f", "after").status, 200);
  const pid_t before = serving_pid();
  const auto teller = teller_of(before);
  ASSERT_TRUE(teller);
  ASSERT_EQ(::kill(*teller, SIGKILL), 0);
  EXPECT_EQ(ask("PUT", "/v1/sessions/s2/files/outputs/f", "after").status, 200);
  EXPECT_TRUE(another_serves(before));
  EXPECT_EQ(read(mount("s2") / "outputs/f"), "after");
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
