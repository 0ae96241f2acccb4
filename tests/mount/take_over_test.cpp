#include "tests/mount/take_over.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <optional>
#include <thread>

#include "tests/support/loop_disk.h"
#include "tests/support/mounted_session.h"

namespace okcvm::test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST_F(TakeOver, ACallThatWaitsIsAnsweredByTheNextDaemon) {
  write(outputs() / "file", "x");
  daemon().kill();
  ChildProcess waiter([&](ChildProcess& self) {
    self.signal();
    return ::mkdir((outputs() / "made").c_str(), 0755) == 0 ? 0 : errno;
  });
  ASSERT_TRUE(waiter.wait());
  ASSERT_TRUE(daemon().take_over()) << daemon().why();
  EXPECT_EQ(waiter.join(), 0);
  EXPECT_THAT(list(outputs()), ElementsAre("file", "made"));
}

/// The kernel knows nothing of a mount's root until it has asked: not even its mode.
TEST_F(TakeOver, TheFirstLookIntoASessionIsAnsweredByTheNextDaemon) {
  for (int round = 0; round < 10; ++round) {
    SessionPlace place("f1");
    DaemonProcess daemon(place, [](fusefs::MountConfig& config) {
      config.owner_uid = kAlice.uid;
      config.owner_gid = kAlice.gid;
      config.root_mode = 0700;
    });
    ASSERT_TRUE(daemon.mount()) << daemon.why();
    daemon.kill();
    ChildProcess first([&](ChildProcess&) {
      if (!become(kAlice)) return 1;
      return ::open((place.mount() / ".metadata.json").c_str(), O_RDONLY) >= 0 ? 0 : errno;
    });
    wait_until_within(first.pid(), SYS_openat);
    ASSERT_TRUE(daemon.take_over()) << daemon.why();
    EXPECT_EQ(errno_name(first.join()), "ok") << round;
  }
}

TEST_F(TakeOver, OpenFilesOfEveryKindGoOn) {
  const auto bytes = pattern(50'000);
  write(outputs() / "file", bytes);
  const auto reader = open_file(outputs() / "file", O_RDONLY);
  const auto writer = open_file(outputs() / "file", O_RDWR);
  const auto unlinked = open_file(outputs() / "gone", O_CREAT | O_RDWR);
  write_all(unlinked, "nameless");
  EXPECT_OK(::unlink((outputs() / "gone").c_str()));
  const auto append_to = open_file(outputs() / "log", O_CREAT | O_WRONLY | O_APPEND);
  fs::create_directories(outputs() / "d/e");
  const auto directory = open_file(outputs() / "d", O_RDONLY | O_DIRECTORY);
  for (int i = 0; i < 3; ++i) {
    ASSERT_NO_FATAL_FAILURE(replace_daemon());
    EXPECT_TRUE(read(reader) == bytes);
    EXPECT_OK(::pwrite(writer.get(), bytes.data(), 10, 0));
    EXPECT_EQ(read(unlinked), "nameless");
    EXPECT_EQ(stat_of(unlinked).st_nlink, 0u);
    write_all(append_to, std::to_string(i));
    EXPECT_OK(::mkdirat(directory.get(), std::to_string(i).c_str(), 0755));
    const auto again = open_file(outputs() / "file", O_RDWR);
    EXPECT_TRUE(read(again) == bytes);
  }
  EXPECT_EQ(read(outputs() / "log"), "012");
  EXPECT_THAT(list(outputs() / "d"), ElementsAre("0", "1", "2", "e"));
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (daemon().ask("open files") != "4" && std::chrono::steady_clock::now() < until)
    std::this_thread::yield();  // nobody waits for a RELEASE
  EXPECT_EQ(daemon().ask("open files"), "4");
}

TEST_F(TakeOver, AMappingAndPassthroughGoOnWithoutAnyDaemon) {
  if (daemon().ask("passthrough") != "on") GTEST_SKIP() << "without passthrough, data waits for a daemon";
  const auto file = open_file(outputs() / "file", O_CREAT | O_RDWR);
  // A descriptor's first write asks the daemon whether there are capabilities to be cleared; later ones do
  // not.
  write_all(file, pattern(8192));
  auto* const memory =
      static_cast<char*>(::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0));
  ASSERT_NE(memory, MAP_FAILED);
  daemon().kill();
  std::memcpy(memory, "mapped", 6);
  EXPECT_OK(::pwrite(file.get(), "written", 7, 4096));
  char back[6];
  EXPECT_OK(::pread(file.get(), back, 6, 0));
  EXPECT_EQ(std::string_view(back, 6), "mapped");
  ASSERT_TRUE(daemon().take_over()) << daemon().why();
  EXPECT_EQ(read(outputs() / "file").substr(4096, 7), "written");
  EXPECT_EQ(read(place().workspace() / "outputs/file").substr(0, 6), "mapped");
  ::munmap(memory, 8192);
}

TEST_F(TakeOver, AWorkingDirectoryStays) {
  fs::create_directories(outputs() / "a/b");
  ChildProcess worker([&](ChildProcess& self) {
    if (::chdir((outputs() / "a/b").c_str()) != 0) return 1;
    self.signal();
    self.wait();
    if (::mkdir("here", 0755) != 0) return 2;
    if (::access("../../a/b/here", F_OK) != 0) return 3;
    return ::rename("../b", "../c") == 0 && ::access("here", F_OK) == 0 ? 0 : 4;
  });
  ASSERT_TRUE(worker.wait());
  ASSERT_NO_FATAL_FAILURE(replace_daemon());
  worker.signal();
  EXPECT_EQ(worker.join(), 0);
  EXPECT_TRUE(there_is(outputs() / "a/c/here"));
}

TEST_F(TakeOver, LocksAreStillHeld) {
  write(outputs() / "file", std::string(100, '.'));
  const auto one = open_file(outputs() / "file", O_RDWR);
  const auto two = open_file(outputs() / "file", O_RDWR);
  ASSERT_OK(::flock(one.get(), LOCK_EX));
  struct flock range {};
  range.l_type = F_WRLCK;
  range.l_len = 10;
  ASSERT_OK(::fcntl(one.get(), F_OFD_SETLK, &range));
  ASSERT_NO_FATAL_FAILURE(replace_daemon());
  EXPECT_ERRNO(EWOULDBLOCK, ::flock(two.get(), LOCK_EX | LOCK_NB));
  EXPECT_ERRNO(EAGAIN, ::fcntl(two.get(), F_OFD_SETLK, &range));
  EXPECT_OK(::flock(one.get(), LOCK_UN));
  EXPECT_OK(::flock(two.get(), LOCK_EX | LOCK_NB));
  range.l_type = F_UNLCK;
  EXPECT_OK(::fcntl(one.get(), F_OFD_SETLK, &range));
  range.l_type = F_WRLCK;
  EXPECT_OK(::fcntl(two.get(), F_OFD_SETLK, &range));
}

TEST_F(TakeOver, AWaiterForALockGetsItFromTheNextDaemon) {
  write(outputs() / "file", "x");
  const auto mine = open_file(outputs() / "file", O_RDWR);
  ASSERT_OK(::flock(mine.get(), LOCK_EX));
  ChildProcess waiter([&](ChildProcess& self) {
    const auto theirs = open_file(outputs() / "file", O_RDWR);
    self.signal();
    return ::flock(theirs.get(), LOCK_EX) == 0 ? 0 : errno;
  });
  ASSERT_TRUE(waiter.wait());
  ASSERT_NO_FATAL_FAILURE(replace_daemon());
  EXPECT_OK(::flock(mine.get(), LOCK_UN));
  EXPECT_EQ(waiter.join(), 0);
}

TEST_F(TakeOver, NameOperationsAreCarriedOutExactlyOnce) {
  write(outputs() / "seed", "x");
  survives([&](int) {
    const auto at = [&](const char* name) { return (outputs() / name).string(); };
    if (::mkdir(at("d").c_str(), 0755) != 0) return 1;
    if (!FileDescriptor(::open(at("d/f").c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644))) return 2;
    if (::link(at("d/f").c_str(), at("d/g").c_str()) != 0) return 3;
    if (::rename(at("d/g").c_str(), at("d/h").c_str()) != 0) return 4;
    if (::symlink("f", at("d/l").c_str()) != 0) return 5;
    if (::mknod(at("d/n").c_str(), S_IFREG | 0644, 0) != 0) return 6;
    if (::renameat2(AT_FDCWD, at("d/n").c_str(), AT_FDCWD, at("d/f").c_str(), RENAME_EXCHANGE) != 0) return 7;
    if (::renameat2(AT_FDCWD, at("d/n").c_str(), AT_FDCWD, at("d/o").c_str(), RENAME_NOREPLACE) != 0)
      return 8;
    for (const char* name : {"d/f", "d/h", "d/l", "d/o"})
      if (::unlink(at(name).c_str()) != 0) return 9;
    return ::rmdir(at("d").c_str()) == 0 ? 0 : 10;
  });
  EXPECT_THAT(list(outputs()), ElementsAre("seed"));
}

TEST_F(TakeOver, AppendsAreCarriedOutExactlyOnce) {
  write(outputs() / "log", "");
  std::atomic<int>* const written = static_cast<std::atomic<int>*>(
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  survives([&](int round) {
    char line[16];
    std::snprintf(line, sizeof line, "%014d\n", round);
    const FileDescriptor file(::open((outputs() / "log").c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
    if (!file) return 1;
    if (::write(file.get(), line, 15) != 15) return 2;
    *written = round + 1;
    return 0;
  });
  const auto bytes = read(outputs() / "log");
  EXPECT_EQ(bytes.size(), 15u * static_cast<std::size_t>(written->load()));
  for (std::size_t i = 0; i * 15 < bytes.size(); ++i) ASSERT_EQ(std::stoul(bytes.substr(i * 15, 14)), i);
  ::munmap(written, 4096);
}

TEST_F(TakeOver, AttributesReadsAndListingsNeverFail) {
  fs::create_directory(outputs() / "d");
  for (int i = 0; i < 50; ++i) write(outputs() / "d" / std::to_string(i), std::to_string(i));
  survives([&](int round) {
    const auto name = outputs() / "d" / std::to_string(round % 50);
    const FileDescriptor file(::open(name.c_str(), O_RDWR | O_CLOEXEC));
    char bytes[16];
    if (!file) return 1;
    if (::pread(file.get(), bytes, sizeof bytes, 0) !=
        static_cast<ssize_t>(std::to_string(round % 50).size()))
      return 2;
    if (::fchmod(file.get(), 0600 + static_cast<mode_t>(round % 64)) != 0) return 3;
    if (mode_of(name) != 0600u + static_cast<mode_t>(round % 64)) return 4;
    if (list(outputs() / "d").size() != 50) return 5;
    return 0;
  });
}

// A daemon that dies while the kernel copies a request into memory of its that was never used before has the
// request fail (EIO): the kernel will not fetch that memory for a dying process.
TEST_F(TakeOver, RequestsAndRepliesOfManyPagesNeverFail) {
  const auto bytes = pattern(1 << 20);
  const auto name = outputs() / "file";
  std::string back(bytes.size(), '\0');
  survives(
      [&](int) {
        const FileDescriptor file(::open(name.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644));
        if (!file) return 1;
        if (::pwrite(file.get(), bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
          return 2;
        ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);  // so that the data is asked of the daemon
        if (::pread(file.get(), back.data(), back.size(), 0) != static_cast<ssize_t>(back.size())) return 3;
        if (back != bytes) return 4;
        if (::setxattr(name.c_str(), "user.large", bytes.data(), 3'000, 0) != 0) return 5;
        if (::getxattr(name.c_str(), "user.large", back.data(), back.size()) != 3'000) return 6;
        return back == bytes ? 0 : 7;
      },
      200, std::chrono::milliseconds(2));
}

TEST_F(TakeOver, GitWorksThroughKills) {
  ASSERT_EQ(
      run_script("mkdir src && cd src && git init -q . && for i in $(seq 150); do echo $i > f$i; done && "
                 "git add -A && git commit -qm first",
                 place().plain())
          .exit_code,
      0);
  ChildProcess worker([&](ChildProcess& self) {
    for (int i = 0; i < 4; ++i) {
      const auto result =
          run_script("rm -rf c && git clone -q --no-hardlinks " + (place().plain() / "src").string() +
                         " c && cd c && echo more >> f1 && git commit -qam second && git gc -q && "
                         "git fsck --strict && git status --porcelain",
                     outputs());
      if (result.exit_code != 0) {
        self.send(result.output.substr(0, 2000) + "!");
        return 1;
      }
    }
    return 0;
  });
  for (int i = 0; i < 15; ++i) {
    ::usleep(80'000);
    ASSERT_NO_FATAL_FAILURE(replace_daemon());
  }
  EXPECT_EQ(worker.receive(), "");
  EXPECT_EQ(worker.join(), 0);
}

TEST_F(TakeOver, CountersAndChangesSurvive) {
  write(outputs() / "file", "x");
  const auto creates = daemon().ask("count CREATE");
  const auto nodes = daemon().ask("nodes");
  ASSERT_NO_FATAL_FAILURE(replace_daemon());
  EXPECT_EQ(daemon().ask("count CREATE"), creates);
  EXPECT_EQ(daemon().ask("nodes"), nodes);
  EXPECT_EQ(daemon().ask("changed outputs/file"), "yes");
}

TEST_F(TakeOver, AnUpgradeIsNoticedByNobody) {
  const auto file = open_file(outputs() / "file", O_CREAT | O_RDWR);
  for (int i = 0; i < 5; ++i) {
    daemon().abandon();
    ASSERT_TRUE(daemon().take_over()) << daemon().why();
    write_all(file, "x");
    EXPECT_OK(::mkdir((outputs() / std::to_string(i)).c_str(), 0755));
  }
  EXPECT_EQ(read(file), "xxxxx");
}

TEST_F(TakeOver, ForgottenNodesAreForgotten) {
  for (int i = 0; i < 500; ++i) write(outputs() / std::to_string(i), "x");
  ASSERT_NO_FATAL_FAILURE(replace_daemon());
  const auto known = std::stoul(daemon().ask("nodes"));
  EXPECT_GE(known, 500u);
  EXPECT_EQ(run_script("rm -rf -- *", outputs()).exit_code, 0);
  unsigned long left = known;
  for (int i = 0; i < 1000 && left > 50; ++i) {
    ::usleep(1000);
    left = std::stoul(daemon().ask("nodes"));
  }
  EXPECT_LE(left, 50u);
}

/// Of FIFOs and directories that are open the driver knows nothing: once they are removed, nothing leads to
/// them for the next daemon.
TEST_F(TakeOver, WhatWasRemovedWhileOpenCanStillBeLookedAt) {
  ASSERT_OK(::mkfifo((outputs() / "fifo").c_str(), 0640));
  ASSERT_OK(::mkdir((outputs() / "dir").c_str(), 01750));
  write(outputs() / "file", "content");
  ASSERT_OK(::chown((outputs() / "fifo").c_str(), 7, 8));
  const auto fifo = open_file(outputs() / "fifo", O_RDWR);
  const auto directory = open_file(outputs() / "dir", O_RDONLY | O_DIRECTORY);
  const auto file = open_file(outputs() / "file", O_PATH);
  ASSERT_OK(::unlink((outputs() / "fifo").c_str()));
  ASSERT_OK(::rmdir((outputs() / "dir").c_str()));
  ASSERT_OK(::unlink((outputs() / "file").c_str()));
  write(outputs() / "restored", "");
  for (int i = 0; i < 3; ++i) {
    if (i == 2) daemon().ask("begin to take away outputs/restored");
    ASSERT_NO_FATAL_FAILURE(replace_daemon());
    EXPECT_EQ(stat_of(fifo).st_mode, S_IFIFO | 0640u);
    EXPECT_EQ(stat_of(fifo).st_uid, 7u);
    EXPECT_EQ(stat_of(fifo).st_gid, 8u);
    EXPECT_EQ(stat_of(fifo).st_nlink, 0u);
    EXPECT_EQ(stat_of(directory).st_mode, S_IFDIR | 01750u);
    EXPECT_EQ(stat_of(directory).st_nlink, 0u);
    EXPECT_THAT(list("/proc/self/fd/" + std::to_string(directory.get())), IsEmpty());
    EXPECT_EQ(stat_of(file).st_mode, S_IFREG | 0644u);
    EXPECT_EQ(stat_of(file).st_size, 7);
    EXPECT_EQ(stat_of(file).st_nlink, 0u);
    write_all(fifo, "x");
    char byte = 0;
    EXPECT_EQ(::read(fifo.get(), &byte, 1), 1);
  }
}

/// On ext4, which gives a new file the inode number of one that is gone.
class TakeOverOnDisk : public TakeOver {
 protected:
  void before_mount() override { problem_ = disk_->mount_at(place().workspace().parent_path()); }
  void TearDown() override {
    daemon_.reset();
    disk_.reset();  // before the folder that it is mounted in
    TakeOver::TearDown();
  }
  std::string problem_;

 private:
  std::optional<LoopDisk> disk_{std::in_place, "ext4", "16M"};
};

TEST_F(TakeOverOnDisk, AFileThatIsMadeMeanwhileIsNotTakenForWhatARestoreTookAway) {
  if (!problem_.empty()) GTEST_SKIP() << problem_;
  for (int i = 0; i < 5; ++i) {
    ASSERT_OK(::symlink("x", (outputs() / "link").c_str()));
    EXPECT_TRUE(fs::is_symlink(outputs() / "link"));
    daemon().ask("begin to take away outputs/link");
    daemon().kill();
    ChildProcess maker([&](ChildProcess&) {
      const auto name = outputs() / std::to_string(i);
      const FileDescriptor file(::open(name.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600));
      struct stat status {};
      if (!file || ::fstat(file.get(), &status) != 0 || ::ftruncate(file.get(), 7) != 0) return errno;
      return S_ISREG(status.st_mode) ? 0 : 255;
    });
    wait_until_within(maker.pid(), SYS_openat);
    ASSERT_TRUE(daemon().take_over()) << daemon().why();
    EXPECT_EQ(maker.join(), 0);
  }
}

TEST_F(TakeOver, WhatARestoreTookAwayGoesOnForWhoHasItOpen) {
  for (const char* name : {"plain", "privileged", "looked-at", "linked"}) write(outputs() / name, "content");
  ASSERT_OK(::chmod((outputs() / "privileged").c_str(), 04755));  // it is not passed through
  fs::create_hard_link(outputs() / "linked", outputs() / "stays");
  ASSERT_OK(::mkdir((outputs() / "dir").c_str(), 01750));
  const auto plain = open_file(outputs() / "plain", O_RDWR);
  const auto privileged = open_file(outputs() / "privileged", O_RDONLY);
  const auto looked_at = open_file(outputs() / "looked-at", O_PATH);
  const auto linked = open_file(outputs() / "linked", O_RDWR);
  const auto directory = open_file(outputs() / "dir", O_RDONLY | O_DIRECTORY);
  for (const char* name : {"plain", "privileged", "looked-at", "linked", "dir"})
    daemon().ask("take away outputs/" + std::string(name));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(read(plain).substr(1), "ontent");
    EXPECT_EQ(::pwrite(plain.get(), std::to_string(i).c_str(), 1, 0), 1);
    EXPECT_EQ(read(plain), std::to_string(i) + "ontent");
    EXPECT_EQ(read(privileged), "content");
    EXPECT_EQ(read(linked), "content");
    for (const auto* file : {&plain, &privileged, &looked_at, &directory})
      EXPECT_EQ(stat_of(*file).st_nlink, 0u);
    EXPECT_EQ(stat_of(looked_at).st_size, 7);
    EXPECT_EQ(stat_of(linked).st_nlink, 1u);
    EXPECT_EQ(stat_of(directory).st_mode, S_IFDIR | 01750u);
    EXPECT_THAT(list(outputs()), ElementsAre("stays"));
    ASSERT_NO_FATAL_FAILURE(replace_daemon());
  }
}

TEST_F(TakeOver, WhatARestoreTookAwayCanStillBeLookedAtThoughNobodySaidSo) {
  ASSERT_OK(::mkdir((outputs() / "dir").c_str(), 01750));
  ASSERT_OK(::mkfifo((outputs() / "fifo").c_str(), 0640));
  const auto directory = open_file(outputs() / "dir", O_RDONLY | O_DIRECTORY);
  const auto fifo = open_file(outputs() / "fifo", O_PATH);
  const auto before = stat_of(directory);
  for (const char* name : {"dir", "fifo"}) {
    daemon().ask(std::string("begin to take away outputs/") + name);
    for (int i = 0; i < 2; ++i) {
      ASSERT_NO_FATAL_FAILURE(replace_daemon());
      EXPECT_EQ(stat_of(directory).st_nlink, 0u);
      EXPECT_EQ(stat_of(directory).st_mode, S_IFDIR | 01750u);
      EXPECT_EQ(stat_of(directory).st_ino, before.st_ino);
      EXPECT_EQ(stat_of(directory).st_mtim.tv_nsec, before.st_mtim.tv_nsec);
    }
  }
  EXPECT_EQ(stat_of(fifo).st_mode, S_IFIFO | 0640u);
  EXPECT_EQ(stat_of(fifo).st_nlink, 0u);
}

/// The nodes know one name of each inode, and no long ones.
TEST_F(TakeOver, WhatARestoreTookAwayIsGoneThoughNobodySaidSo) {
  const std::string a_long_name(80, 'n');
  for (const std::string& name : {std::string("first"), a_long_name}) write(outputs() / name, "content");
  fs::create_hard_link(outputs() / "first", outputs() / "stays");
  const auto held = open_file(outputs() / a_long_name, O_RDONLY);
  EXPECT_EQ(stat_of(outputs() / "first").st_nlink, 2u);
  for (const std::string& name : {std::string("first"), a_long_name}) {
    daemon().ask("begin to take away outputs/" + name);
    ASSERT_NO_FATAL_FAILURE(replace_daemon());
    EXPECT_FALSE(there_is(outputs() / name));
  }
  EXPECT_EQ(stat_of(outputs() / "stays").st_nlink, 1u);
  EXPECT_EQ(read(held), "content");
}

using TakeOverByOthers = MountedSession;

/// Whoever serves next may have found the workdir again.
TEST_F(TakeOverByOthers, TheWorkdirIsThereAgain) {
  const ScratchDirectory host("workdir");
  write(host.path() / "file", "the host's");
  EXPECT_FALSE(there_is(mount() / "workdir"));
  session().hand_over(
      [&](fusefs::MountConfig& config) { config.workdir = open_file(host.path(), O_RDONLY | O_DIRECTORY); });
  EXPECT_EQ(read(mount() / "workdir/file"), "the host's");
}

/// A daemon may die after it changed the metadata and before it told the kernel.
TEST_F(TakeOverByOthers, TheMetadataOfTheNextDaemonIsShown) {
  const auto reader = open_file(mount() / ".metadata.json", O_RDONLY);
  read(reader);
  const auto size = stat_of(mount() / ".metadata.json").st_size;
  const std::string text(static_cast<std::size_t>(size) + 100, 'x');
  session().hand_over([&](fusefs::MountConfig& config) { config.metadata = text; });
  EXPECT_EQ(stat_of(mount() / ".metadata.json").st_size, size + 100);
  EXPECT_EQ(read(mount() / ".metadata.json"), text);
  EXPECT_EQ(read(reader), text);
}

}  // namespace
}  // namespace okcvm::test
