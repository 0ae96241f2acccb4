// A workdir whose file system answers nothing for a while holds up neither snapshots nor the rest of its
// session.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/mount/daemon_process.h"
#include "tests/support/mounted_session.h"
#include "tests/support/process.h"

namespace okcvm::test {
namespace {

namespace fs = std::filesystem;

/// A session whose workdir/ is a directory of a file system that can be made to answer nothing.
class HungWorkdir : public MountedSession {
 protected:
  void SetUp() override {
    MountedSession::SetUp();
    if (IsSkipped()) return;
    ASSERT_TRUE(server_.mount()) << server_.why();
    for (const char* name : {"file", "other"}) write(place_.outputs() / name, name);
    start_with([&](fusefs::MountConfig& config) {
      config.workdir = open_file(place_.outputs(), O_RDONLY | O_DIRECTORY);
    });
    write(outputs() / "file", "bytes");
  }
  void TearDown() override {
    ::kill(server_.pid(), SIGCONT);
    MountedSession::TearDown();
  }

  fs::path workdir() const { return mount() / "workdir"; }

  /// So many programs ask for what the workdir's file system does not answer until others have gone on.
  void expect_no_wait_for(int count, const std::function<bool(int)>& call, long waits_for) {
    hang();
    std::vector<std::unique_ptr<ChildProcess>> programs;
    for (int i = 0; i < count; ++i)
      programs.push_back(
          std::make_unique<ChildProcess>([&call, i](ChildProcess&) { return call(i) ? 0 : 1; }));
    wait_for_driver_within(waits_for, count);
    expect_others_go_on();
    for (auto& program : programs) EXPECT_EQ(program->join(), 0);
  }

  void answer_again() { EXPECT_OK(::kill(server_.pid(), SIGCONT)); }
  void hang() {
    for (const char* known : {"", "file", "other"}) stat_of(place_.outputs() / known);
    EXPECT_OK(::kill(server_.pid(), SIGSTOP));
    EXPECT_EQ(::waitpid(server_.pid(), nullptr, WUNTRACED), server_.pid());
  }
  void expect_others_go_on() {
    auto others = std::async(std::launch::async, [&] {
      session().driver().retire_changes(session().driver().cut_changes());
      session().driver().hold()->invalidate({});
      EXPECT_OK(::mkdir((outputs() / "d").c_str(), 0755));
      EXPECT_OK(::rename((outputs() / "d").c_str(), (outputs() / "e").c_str()));
      EXPECT_OK(::rename((outputs() / "file").c_str(), (outputs() / "moved").c_str()));
      EXPECT_THAT(list(mount()), ::testing::Contains("workdir"));
      EXPECT_ERRNO(ENOENT, ::access((skills() / "none").c_str(), F_OK));
      const auto made = session().files().create({}, value_of(RelPath::parse("outputs/by-path")), {},
                                                 fusefs::IfExists::kReplace);
      EXPECT_TRUE(made && (*made)->publish());
    });
    const bool went_on = others.wait_for(kTimeout) == std::future_status::ready;
    answer_again();
    EXPECT_TRUE(went_on);
    others.get();
  }

  /// Nothing of a thread that has ended.
  static std::string first_line(const fs::path& path) {
    std::string line;
    std::getline(std::ifstream(path) >> std::ws, line);
    return line;
  }
  /// Until so many threads of the driver, in this process, wait for a system call of this number.
  static void wait_for_driver_within(long number, int count) {
    const auto end = std::chrono::steady_clock::now() + kTimeout;
    for (int seen = 0; seen < count; std::this_thread::yield()) {
      ASSERT_LT(std::chrono::steady_clock::now(), end) << "only " << seen << " wait";
      seen = 0;
      for (const auto& thread : fs::directory_iterator("/proc/self/task"))
        if (first_line(thread.path() / "syscall").starts_with(std::to_string(number) + " 0x") &&
            first_line(thread.path() / "wchan").starts_with("request_wait_answer"))
          ++seen;
    }
  }

 private:
  static constexpr std::chrono::seconds kTimeout{20};
  SessionPlace place_{"56ef78ab"};
  DaemonProcess server_{place_};
};

TEST_F(HungWorkdir, HoldsUpTheUnmountForALimitedTimeAndLeavesTheNextMountItsState) {
  hang();
  ChildProcess program([&](ChildProcess& self) {
    const FileDescriptor file(::open((workdir() / "file").c_str(), O_RDONLY));
    self.signal();
    self.wait();
    return file ? 0 : 1;
  });
  wait_for_driver_within(SYS_open_by_handle_at, 1);
  const auto& driver = session().driver();
  const auto refused = session().driver().unmount(true);
  EXPECT_EQ(refused.error().code, Code::kBusy);
  EXPECT_TRUE(driver.is_held_up());
  EXPECT_FALSE(driver.is_mounted());
  EXPECT_FALSE(driver.is_in_place());
  answer_again();
  program.wait();
  value_of(session().driver().unmount(true));
  session().remount();  // and then the former object goes
  session().hand_over();
  EXPECT_EQ(read(outputs() / "file"), "bytes");
  program.signal();
  EXPECT_EQ(program.join(), 0);
}

TEST_F(HungWorkdir, LooksANameUp) {
  expect_no_wait_for(
      1, [&](int) { return !there_is(workdir() / "new"); }, SYS_openat2);
}

TEST_F(HungWorkdir, LooksManyNamesUp) {
  expect_no_wait_for(
      50, [&](int i) { return !there_is(workdir() / std::to_string(i)); }, SYS_openat2);
}

TEST_F(HungWorkdir, IsAskedByPath) {
  const auto path = value_of(RelPath::parse("workdir/file"));
  const auto below = value_of(RelPath::parse("workdir/d/e"));
  auto& files = session().files();
  const std::vector<std::function<bool()>> requests{
      [&] { return files.stat({}, path, true).has_value(); },
      [&] { return files.open({}, path).has_value(); },
      [&] { return files.make_directories({}, below, 0755).has_value(); },
      [&] { return files.create({}, path, {}, fusefs::IfExists::kReplace).has_value(); },
      [&] { return files.remove({}, path, false).has_value(); }};
  for (const auto& request : requests) {
    hang();
    auto asked = std::async(std::launch::async, request);
    wait_for_driver_within(SYS_fstatfs, 1);
    expect_others_go_on();
    EXPECT_TRUE(asked.get());
    for (const char* left : {"e", "moved"}) fs::remove(outputs() / left);
    write(outputs() / "file", "bytes");
  }
}

TEST_F(HungWorkdir, MovesAName) {
  expect_no_wait_for(
      1, [&](int) { return ::rename((workdir() / "file").c_str(), (workdir() / "other").c_str()) == 0; },
      SYS_renameat);
}

}  // namespace
}  // namespace okcvm::test
