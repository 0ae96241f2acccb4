#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "tests/support/mounted_session.h"
#include "tests/support/process.h"

namespace okcvm::test {
namespace {

/// A session whose workdir/ is a directory that the host uses, too.
class Workdir : public MountedSession {
 protected:
  void SetUp() override {
    MountedSession::SetUp();
    if (IsSkipped()) return;
    start_with(bind_);
  }
  void hand_over() { session().hand_over(bind_); }

  std::filesystem::path host() const { return host_.path(); }
  std::filesystem::path workdir() const { return mount() / "workdir"; }

 private:
  ScratchDirectory host_{"workdir"};
  const Session::Adjust bind_ = [this](fusefs::MountConfig& config) {
    config.workdir = open_file(host_.path(), O_RDONLY | O_DIRECTORY);
  };
};

TEST_F(Workdir, WhatIsAppendedComesAfterWhatTheHostAppended) {
  write(host() / "log", "");
  const auto ours = open_file(workdir() / "log", O_WRONLY | O_APPEND);
  const auto hosts = open_file(host() / "log", O_WRONLY | O_APPEND);
  std::string all;
  for (int i = 0; i < 20; ++i) {
    const std::string line = "host " + std::to_string(i) + "\n",
                      answer = "session " + std::to_string(i) + "\n";
    write_all(hosts, line);
    write_all(ours, answer);
    all += line + answer;
  }
  EXPECT_EQ(read(host() / "log"), all);
  const auto seen = open_file(workdir() / "log", O_RDONLY);
  EXPECT_EQ(read(seen), all);
}

/// chattr(1). False where the file system does not have that.
bool set_flags(const std::filesystem::path& path, int flags) {
  const auto file = open_file(path, O_RDONLY);
  return ::ioctl(file.get(), FS_IOC_SETFLAGS, &flags) == 0;
}

TEST_F(Workdir, FilesThatTheHostLetsNobodyChangeStayAsTheyAre) {
  for (const char* name : {"log", "fixed"}) write(host() / name, "host\n");
  if (!set_flags(host() / "log", FS_APPEND_FL) || !set_flags(host() / "fixed", FS_IMMUTABLE_FL))
    GTEST_SKIP() << "the file system has no append-only and immutable files";
  const auto reader = open_file(workdir() / "log", O_RDONLY);
  const auto open = [this](const char* name, int flags) {
    return ERRNO_OF(FileDescriptor(::open((workdir() / name).c_str(), flags | O_CLOEXEC)).get());
  };
  for (const int flags : {O_WRONLY, O_RDWR, O_WRONLY | O_TRUNC}) EXPECT_EQ(open("log", flags), EPERM);
  for (const int flags : {O_WRONLY, O_RDWR, O_WRONLY | O_APPEND}) EXPECT_EQ(open("fixed", flags), EPERM);
  EXPECT_EQ(open("fixed", O_RDONLY), 0);
  {
    const auto log = open_file(workdir() / "log", O_RDWR | O_APPEND);
    EXPECT_EQ(::pwrite(log.get(), "more\n", 5, 0), 5);
    EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, log.get(), 0), MAP_FAILED);
    EXPECT_EQ(ERRNO_OF(::ftruncate(log.get(), 0)), EPERM);
    EXPECT_EQ(read(log), "host\nmore\n");
  }
  EXPECT_EQ(read(host() / "log"), "host\nmore\n");
  EXPECT_EQ(read(reader), "host\nmore\n");
  for (const char* name : {"log", "fixed"}) EXPECT_TRUE(set_flags(host() / name, 0));
  EXPECT_EQ(open("fixed", O_RDWR), 0);
}

TEST_F(Workdir, AWriteKeepsTheGroupBitOfWhatNobodyRuns) {
  write(host() / "f", "x");
  ASSERT_OK(::chown((host() / "f").c_str(), 65534, 65534));
  ASSERT_OK(::chmod((host() / "f").c_str(), 02767));
  write_all(open_file(workdir() / "f", O_WRONLY), "y");
  EXPECT_EQ(stat_of(workdir() / "f").st_mode & 07777, 02767u);
  EXPECT_EQ(stat_of(host() / "f").st_mode & 07777, 02767u);
}

TEST_F(Workdir, AListingIsNewThoughTheHostSetTheTimeBack) {
  const auto ours = workdir() / "d";
  const auto hosts = host() / "d";
  std::filesystem::create_directory(hosts);
  write(hosts / "a", "");
  EXPECT_EQ(list(ours), std::vector<std::string>{"a"});
  const auto before = stat_of(hosts);
  write(hosts / "b", "");
  std::filesystem::remove(hosts / "a");
  const timespec times[] = {before.st_atim, before.st_mtim};
  EXPECT_OK(::utimensat(AT_FDCWD, hosts.c_str(), times, 0));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (list(ours) != std::vector<std::string>{"b"} && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();  // attributes are believed for a second
  EXPECT_EQ(list(ours), std::vector<std::string>{"b"});
}

/// Where its directory is looked up anew, and where another daemon has listed it.
TEST_F(Workdir, AListingOfLongAgoIsNewThoughTheHostSetTheTimeBack) {
  constexpr std::chrono::milliseconds kLongAgo{1100};  // attributes and names are believed for a second
  const auto ours = workdir() / "d";
  const auto hosts = host() / "d";
  std::filesystem::create_directory(hosts);
  write(hosts / "0", "");
  EXPECT_EQ(list(ours), std::vector<std::string>{"0"});
  for (const bool is_taken_over : {false, true}) {
    const std::string name = is_taken_over ? "2" : "1";
    const auto before = stat_of(hosts);
    for (const auto& old : list(hosts)) std::filesystem::remove(hosts / old);
    write(hosts / name, "");
    const timespec times[] = {before.st_atim, before.st_mtim};
    EXPECT_OK(::utimensat(AT_FDCWD, hosts.c_str(), times, 0));
    if (is_taken_over) hand_over();
    std::this_thread::sleep_for(kLongAgo);
    EXPECT_EQ(list(ours), std::vector<std::string>{name});
  }
}

TEST_F(Workdir, AProgramThatTheHostRunsIsBusy) {
  std::filesystem::copy_file("/bin/sleep", host() / "program");
  ChildProcess running([&](ChildProcess&) {
    ::execl((host() / "program").c_str(), "program", "1000", nullptr);
    return 1;
  });
  const auto exe = "/proc/" + std::to_string(running.pid()) + "/exe";
  while (std::filesystem::read_symlink(exe) != host() / "program") std::this_thread::yield();
  for (const int flags : {O_WRONLY, O_RDWR, O_WRONLY | O_NONBLOCK}) {
    EXPECT_ERRNO(ETXTBSY, FileDescriptor(::open((workdir() / "program").c_str(), flags | O_CLOEXEC)).get());
  }
  running.kill(SIGKILL);
  running.join();
  EXPECT_OK(FileDescriptor(::open((workdir() / "program").c_str(), O_RDWR | O_CLOEXEC)).get());
}

TEST_F(Workdir, AWriteTakesAwaySetIdBitsThatTheHostGaveMeanwhile) {
  write(host() / "f", "host", 0666);
  ChildProcess writer([&](ChildProcess& self) {
    if (!become(kBob)) return 1;
    const auto file = open_file(workdir() / "f", O_WRONLY);
    self.send("open");
    self.receive();
    return ::pwrite(file.get(), "X", 1, 0) == 1 ? 0 : 2;
  });
  EXPECT_EQ(writer.receive(), "open");
  EXPECT_OK(::chmod((host() / "f").c_str(), 06777));
  writer.send("write");
  EXPECT_EQ(writer.join(), 0);
  EXPECT_EQ(stat_of(host() / "f").st_mode & 07777, 0777u);
}

}  // namespace
}  // namespace okcvm::test
