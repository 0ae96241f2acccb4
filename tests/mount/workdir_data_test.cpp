#include <fcntl.h>
#include <gmock/gmock.h>
#include <linux/capability.h>
#include <linux/fs.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <future>
#include <map>
#include <thread>

#include "tests/support/loop_disk.h"
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

TEST_F(Workdir, IsChangedByPathThroughALinkToo) {
  auto& files = session().files();
  EXPECT_OK(::symlink("../workdir", (outputs() / "link").c_str()));
  value_of(files.make_directories({}, value_of(RelPath::parse("outputs/link/new/below")), 0755));
  EXPECT_TRUE(std::filesystem::is_directory(host() / "new/below"));
  value_of(files.remove({}, value_of(RelPath::parse("outputs/link/new")), true));
  EXPECT_FALSE(there_is(host() / "new"));
  EXPECT_TRUE(there_is(outputs() / "link"));
}

TEST_F(Workdir, HasWhatWasStoredThroughAMappingWhenItsSessionIsUnmounted) {
  const Session::Adjust bind = [this](fusefs::MountConfig& config) {
    config.workdir = open_file(host(), O_RDONLY | O_DIRECTORY);
    config.passthrough = fusefs::Passthrough::kOff;
  };
  start_with(bind);
  write(host() / "file", "old");
  const auto file = open_file(workdir() / "file", O_RDWR);
  void* const mapped = ::mmap(nullptr, 3, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  std::memcpy(mapped, "new", 3);
  value_of(session().driver().unmount(true));
  EXPECT_EQ(read(host() / "file"), "new");
  ::munmap(mapped, 3);
}

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

TEST_F(Workdir, APipeThatIsOpenIsThereAfterItsLastName) {
  ASSERT_OK(::mkdir((workdir() / "d").c_str(), 0755));
  const auto first = workdir() / "d/pipe", second = workdir() / "pipe";
  ASSERT_OK(::mkfifo(first.c_str(), 0644));
  const auto pipe = open_file(first, O_RDWR);
  ASSERT_OK(::link(first.c_str(), second.c_str()));
  EXPECT_EQ(stat_of(pipe).st_nlink, 2u);
  ASSERT_OK(::unlink(second.c_str()));
  EXPECT_EQ(stat_of(pipe).st_nlink, 1u);
  ASSERT_OK(::unlink(first.c_str()));
  EXPECT_EQ(stat_of(pipe).st_nlink, 0u);
}

TEST_F(Workdir, FilesThatTheHostLetsNobodyChangeStayAsTheyAre) {
  for (const char* name : {"log", "fixed"}) write(host() / name, "host\n");
  if (!set_flag(host() / "log", FS_APPEND_FL, true) || !set_flag(host() / "fixed", FS_IMMUTABLE_FL, true))
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
  EXPECT_TRUE(set_flag(host() / "log", FS_APPEND_FL, false));
  EXPECT_TRUE(set_flag(host() / "fixed", FS_IMMUTABLE_FL, false));
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

/// Has the kernel know `file` as bob's, gives it away on the host, and answers what bob's call does then.
int after_giving_away(const std::filesystem::path& ours, const std::function<void()>& give,
                      const std::function<int(int)>& call) {
  ChildProcess bob([&](ChildProcess& self) {
    if (!become(kBob)) return 255;
    const auto file = open_file(ours, O_RDONLY);
    struct stat status {};
    if (::fstat(file.get(), &status) != 0) return 254;
    self.send("known");
    self.receive();
    return ERRNO_OF(call(file.get()));
  });
  EXPECT_EQ(bob.receive(), "known");
  give();
  bob.send("given");
  return bob.join();
}

TEST_F(Workdir, AFileThatTheHostGaveAwayIsNoLongerItsFormerOwners) {
  const auto mode = [](int file) { return ::fchmod(file, 04755); };
  const auto group = [](int file) { return ::fchown(file, -1, kBob.gid); };
  const auto times = [](int file) {
    const timespec then[2] = {{1, 0}, {1, 0}};
    return ::futimens(file, then);
  };
  const auto acl = [](int file) {
    const std::array<std::uint32_t, 7> all{2, 0x70001, ~0u, 0x70004, ~0u, 0x70020, ~0u};
    return ::fsetxattr(file, "system.posix_acl_access", all.data(), sizeof all, 0);
  };
  const std::map<std::string, std::function<int(int)>> calls{
      {"mode", mode}, {"group", group}, {"times", times}, {"acl", acl}};
  for (const auto& [name, call] : calls) {
    for (const auto& file : {name, name + "-given"}) {
      write(host() / file, "program", 0755);
      ASSERT_OK(::chown((host() / file).c_str(), kBob.uid, kBob.gid));
    }
    EXPECT_EQ(after_giving_away(
                  workdir() / name, [] {}, call),
              0)
        << name;
    const auto given = host() / (name + "-given");
    const auto before = stat_of(given);
    const auto give = [&] { EXPECT_OK(::chown(given.c_str(), 0, 0)); };
    EXPECT_EQ(after_giving_away(workdir() / given.filename(), give, call), EPERM) << name;
    const auto after = stat_of(given);
    EXPECT_EQ(after.st_mode, before.st_mode) << name;
    EXPECT_EQ(after.st_gid, 0u) << name;
    EXPECT_EQ(after.st_mtim.tv_sec, before.st_mtim.tv_sec) << name;
  }
}

TEST_F(Workdir, AFileThatTheHostForbadeIsNoLongerOpenedOrChanged) {
  std::filesystem::path path;
  const auto opens = [&](int flags) {
    return [&, flags](int) { return ::open(path.c_str(), flags) < 0 ? -1 : 0; };
  };
  const std::map<std::string, std::function<int(int)>> calls{
      {"read", opens(O_RDONLY)},
      {"write", opens(O_WRONLY)},
      {"both", opens(O_RDWR)},
      {"empty", opens(O_RDONLY | O_TRUNC)},
      {"truncate", [&](int) { return ::truncate(path.c_str(), 1); }},
      {"touch", [](int file) { return ::futimens(file, nullptr); }},
      {"setxattr", [&](int) { return ::setxattr(path.c_str(), "user.a", "x", 1, 0); }},
      {"removexattr", [&](int) { return ::removexattr(path.c_str(), "user.b"); }}};
  for (const auto& [name, call] : calls)
    for (const bool is_forbidden : {false, true}) {
      const auto file = host() / (name + (is_forbidden ? "-forbidden" : ""));
      write(file, "bytes", 0666);
      ASSERT_OK(::chmod(file.c_str(), 0666));
      ASSERT_OK(::setxattr(file.c_str(), "user.b", "x", 1, 0));
      const auto before = stat_of(file);
      const auto forbid = [&] { EXPECT_OK(::chmod(file.c_str(), is_forbidden ? 0600 : 0666)); };
      path = workdir() / file.filename();
      EXPECT_EQ(errno_name(after_giving_away(path, forbid, call)), is_forbidden ? "EACCES" : "ok") << name;
      if (!is_forbidden) continue;
      EXPECT_EQ(read(file), "bytes") << name;
      EXPECT_EQ(stat_of(file).st_mtim.tv_nsec, before.st_mtim.tv_nsec) << name;
    }
}

TEST_F(Workdir, AProgramThatMayOnlyBeRunIsRun) {
  std::filesystem::copy_file("/bin/true", host() / "program");
  ASSERT_OK(::chmod((host() / "program").c_str(), 0711));
  ChildProcess bob([&](ChildProcess&) {
    if (!become(kBob)) return 255;
    if (::open((workdir() / "program").c_str(), O_RDONLY) >= 0 || errno != EACCES) return 254;
    ::execl((workdir() / "program").c_str(), "program", nullptr);
    return errno;
  });
  EXPECT_EQ(bob.join(), 0);
}

TEST_F(Workdir, AGroupThatTheHostGaveAFileRunsNoProgramOfOthers) {
  write(host() / "f", "program", 0755);
  ASSERT_OK(::chown((host() / "f").c_str(), kBob.uid, kBob.gid));
  const auto give = [&] { EXPECT_OK(::chown((host() / "f").c_str(), -1, 0)); };
  EXPECT_EQ(after_giving_away(workdir() / "f", give, [](int file) { return ::fchmod(file, 02755); }), 0);
  EXPECT_EQ(stat_of(host() / "f").st_mode & 07777, 0755u);
}

TEST_F(Workdir, AGroupThatTheHostTookAFileFromDoesNotGetItBackFromItsOwner) {
  constexpr gid_t kFormer = 500, kLatter = 600;
  write(host() / "f", "bytes");
  ASSERT_OK(::chown((host() / "f").c_str(), kBob.uid, kFormer));
  const auto give = [&] { EXPECT_OK(::chown((host() / "f").c_str(), -1, kLatter)); };
  const auto give_back = [](int file) { return ::fchown(file, -1, kFormer); };
  EXPECT_EQ(errno_name(after_giving_away(workdir() / "f", give, give_back)), "EPERM");
  EXPECT_EQ(stat_of(host() / "f").st_gid, kLatter);
}

/// As programs do that make backups.
TEST_F(Workdir, ACapabilityToReadAllOpensFilesForReadingOnly) {
  write(host() / "f", "bytes", 0600);
  ASSERT_OK(::mkdir((host() / "d").c_str(), 0700));
  ChildProcess bob([&](ChildProcess&) {
    if (::prctl(PR_SET_KEEPCAPS, 1) != 0 || !become(kBob)) return 1;
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct capabilities[2]{};
    capabilities[0].effective = capabilities[0].permitted = 1u << CAP_DAC_READ_SEARCH;
    if (::syscall(SYS_capset, &header, capabilities) != 0) return 2;
    if (!FileDescriptor(::open((workdir() / "f").c_str(), O_RDONLY | O_CLOEXEC))) return 3;
    if (!FileDescriptor(::open((workdir() / "d").c_str(), O_RDONLY | O_CLOEXEC))) return 4;
    if (::open((workdir() / "f").c_str(), O_RDWR | O_CLOEXEC) >= 0 || errno != EACCES) return 5;
    return ::open((workdir() / "d/f").c_str(), O_CREAT | O_RDONLY | O_CLOEXEC, 0600) < 0 ? 0 : 6;
  });
  EXPECT_EQ(bob.join(), 0);
}

TEST_F(Workdir, ADirectoryThatTheHostGaveToAGroupMakesNoProgramsOfItsOwn) {
  ASSERT_OK(::mkdir((host() / "d").c_str(), 0777));
  ASSERT_OK(::chmod((host() / "d").c_str(), 0777));
  const auto give = [&] { EXPECT_OK(::chmod((host() / "d").c_str(), 02777)); };
  const auto make = [&](int) {
    return FileDescriptor(::open((workdir() / "d/f").c_str(), O_CREAT | O_EXCL | O_WRONLY, 02755)).get() < 0;
  };
  EXPECT_EQ(after_giving_away(workdir() / "d", give, make), 0);
  EXPECT_EQ(stat_of(host() / "d/f").st_mode & 07777, 0755u);
  EXPECT_EQ(stat_of(host() / "d/f").st_gid, 0u);
}

/// As rootless containers have it: alice is root there, and bob a user. Whose group a file is does not
/// matter.
TEST_F(Workdir, RootOfAContainerChangesTheModesOfItsUsersFiles) {
  constexpr gid_t kGroupOutside = 77;
  write(host() / "f", "bytes");
  ASSERT_OK(::chown((host() / "f").c_str(), kBob.uid, kGroupOutside));
  ChildProcess root([&](ChildProcess& self) {
    if (!become(kAlice) || ::unshare(CLONE_NEWUSER) != 0) return 255;
    self.send("apart");
    self.receive();
    if (::chmod((workdir() / "f").c_str(), 0640) != 0) return errno;
    const timespec then[2] = {{1, 0}, {1, 0}};
    return ERRNO_OF(::utimensat(AT_FDCWD, (workdir() / "f").c_str(), then, 0));
  });
  if (root.receive() != "apart") GTEST_SKIP() << "no user may make a user namespace here";
  const auto process = std::filesystem::path("/proc") / std::to_string(root.pid());
  write(process / "uid_map",
        "0 " + std::to_string(kAlice.uid) + " 1\n1 " + std::to_string(kBob.uid) + " 1\n");
  write(process / "gid_map",
        "0 " + std::to_string(kAlice.gid) + " 1\n1 " + std::to_string(kBob.gid) + " 1\n");
  root.send("mapped");
  EXPECT_EQ(root.join(), 0);
  EXPECT_EQ(stat_of(host() / "f").st_mode & 07777, 0640u);
  EXPECT_EQ(stat_of(host() / "f").st_mtim.tv_sec, 1);
}

TEST_F(Workdir, NamesInADirectoryThatTheHostGaveAwayAreNoLongerItsFormerOwners) {
  const auto made = [](int file) { return FileDescriptor(file).get() < 0 ? -1 : 0; };
  const std::map<std::string, std::function<int(int)>> calls{
      {"create", [&](int in) { return made(::openat(in, "new", O_CREAT | O_EXCL | O_WRONLY, 0644)); }},
      {"tmpfile", [&](int in) { return made(::openat(in, ".", O_TMPFILE | O_WRONLY, 0644)); }},
      {"mkdir", [](int in) { return ::mkdirat(in, "new", 0755); }},
      {"symlink", [](int in) { return ::symlinkat("file", in, "new"); }},
      {"mkfifo", [](int in) { return ::mkfifoat(in, "new", 0644); }},
      {"link", [](int in) { return ::linkat(in, "file", in, "new", 0); }},
      {"unlink", [](int in) { return ::unlinkat(in, "file", 0); }},
      {"rmdir", [](int in) { return ::unlinkat(in, "empty", AT_REMOVEDIR); }},
      {"rename", [](int in) { return ::renameat(in, "file", in, "new"); }},
      {"replace", [](int in) { return ::renameat(in, "file", in, "other"); }}};
  for (const auto& [name, call] : calls)
    for (const bool is_given : {false, true}) {
      const std::string directory = name + (is_given ? "-given" : "");
      ASSERT_OK(::mkdir((host() / directory).c_str(), 0755));
      ASSERT_OK(::mkdir((host() / directory / "empty").c_str(), 0755));
      for (const char* file : {"file", "other"}) write(host() / directory / file, file);
      for (const char* entry : {"", "file"})
        ASSERT_OK(::chown((host() / directory / entry).c_str(), kBob.uid, kBob.gid));
      const auto before = list(host() / directory);
      const auto give = [&] {
        if (!is_given) return;
        EXPECT_OK(::chown((host() / directory).c_str(), 0, 0));
      };
      EXPECT_EQ(after_giving_away(workdir() / directory, give, call), is_given ? EACCES : 0) << directory;
      EXPECT_EQ(list(host() / directory) == before, is_given || name == "tmpfile") << directory;
    }
}

TEST_F(Workdir, AFileThatTheHostGaveAwayStaysInAStickyDirectory) {
  ASSERT_OK(::mkdir((host() / "d").c_str(), 0777));
  ASSERT_OK(::chmod((host() / "d").c_str(), 01777));
  write(host() / "d/f", "bytes");
  ASSERT_OK(::chown((host() / "d/f").c_str(), kBob.uid, kBob.gid));
  const auto give = [&] { EXPECT_OK(::chown((host() / "d/f").c_str(), 0, 0)); };
  const auto take = [&](int) { return ::unlink((workdir() / "d/f").c_str()); };
  const auto move = [&](int) { return ::rename((workdir() / "d/f").c_str(), (workdir() / "d/g").c_str()); };
  EXPECT_EQ(after_giving_away(workdir() / "d/f", give, take), EPERM);
  ASSERT_OK(::chown((host() / "d/f").c_str(), kBob.uid, kBob.gid));
  EXPECT_EQ(after_giving_away(workdir() / "d/f", give, move), EPERM);
  EXPECT_EQ(read(host() / "d/f"), "bytes");
}

/// rename(2), EACCES: its own ".." would change.
TEST_F(Workdir, ADirectoryThatIsNotOnesOwnStaysWhereItIs) {
  for (const char* name : {"from", "to"}) {
    ASSERT_OK(::mkdir((host() / name).c_str(), 0755));
    ASSERT_OK(::chown((host() / name).c_str(), kBob.uid, kBob.gid));
  }
  for (const char* name : {"from/bobs", "from/roots", "to/bobs"})
    ASSERT_OK(::mkdir((host() / name).c_str(), 0755));
  for (const char* name : {"from/bobs", "to/bobs"})
    ASSERT_OK(::chown((host() / name).c_str(), kBob.uid, kBob.gid));
  const auto from = host() / "from/bobs", roots = host() / "from/roots";
  const auto exchange = [&] {
    EXPECT_OK(::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, roots.c_str(), RENAME_EXCHANGE));
  };
  const auto moved = workdir() / "from/bobs", elsewhere = workdir() / "to/other",
             bobs = workdir() / "to/bobs";
  for (const auto& [target, flags] : {std::pair(elsewhere, 0u), std::pair(bobs, unsigned{RENAME_EXCHANGE})}) {
    const auto move = [&, to = target.c_str(), how = flags](int) {
      return ::renameat2(AT_FDCWD, moved.c_str(), AT_FDCWD, to, how);
    };
    EXPECT_EQ(after_giving_away(moved, exchange, move), EACCES);
    exchange();
    EXPECT_FALSE(there_is(host() / "to/other"));
    EXPECT_EQ(stat_of(host() / "to/bobs").st_uid, kBob.uid);
  }
}

TEST_F(Workdir, ALinkWithNamesInTwoDirectoriesIsOneInode) {
  for (const char* name : {"one", "two"}) ASSERT_OK(::mkdir((workdir() / name).c_str(), 0755));
  const auto first = workdir() / "one/link", second = workdir() / "two/link";
  const auto status = [](const std::filesystem::path& path) {
    struct stat found {};
    EXPECT_OK(::lstat(path.c_str(), &found));
    return found;
  };
  ASSERT_OK(::symlink("file", first.c_str()));
  const auto inode = status(first).st_ino;
  const auto held = open_file(first, O_PATH | O_NOFOLLOW);
  ASSERT_OK(::linkat(AT_FDCWD, first.c_str(), AT_FDCWD, second.c_str(), 0));
  for (const auto& path : {first, second}) {
    EXPECT_EQ(status(path).st_ino, inode);
    EXPECT_EQ(status(path).st_nlink, 2u);
  }
  ASSERT_OK(::lchown(second.c_str(), kBob.uid, kBob.gid));
  EXPECT_EQ(status(first).st_uid, kBob.uid);
  EXPECT_EQ(stat_of(held).st_uid, kBob.uid);
  ASSERT_OK(::unlink(second.c_str()));
  EXPECT_EQ(status(first).st_nlink, 1u);
  EXPECT_EQ(stat_of(held).st_nlink, 1u);
}

std::atomic<bool> is_lease_wanted;

// Somebody on the host who does not give up a lease has who opens the file wait, and nobody else.
TEST_F(Workdir, ALeaseOfTheHostHoldsUpWhoOpensTheFileAlone) {
  write(host() / "f", "bytes");
  const auto before = ::signal(SIGIO, [](int) { is_lease_wanted = true; });
  auto leased = open_file(host() / "f", O_RDWR);
  ASSERT_EQ(::fcntl(leased.get(), F_SETLEASE, F_WRLCK), 0) << ::strerror(errno);
  auto cut =
      std::async(std::launch::async, [&] { return ERRNO_OF(::truncate((workdir() / "f").c_str(), 3)); });
  while (!is_lease_wanted) std::this_thread::yield();
  { const auto hold = session().driver().hold(); }
  std::vector<std::future<std::string>> readers;  // more than there are threads to serve them
  for (int i = 0; i < 40; ++i)
    readers.push_back(std::async(std::launch::async, [&] { return read(workdir() / "f"); }));
  std::vector<std::future<int>> writers;  // more than there are records of changes
  for (int i = 0; i < 100; ++i)
    writers.push_back(std::async(std::launch::async, [&] {
      return ERRNO_OF(FileDescriptor(::open((workdir() / "f").c_str(), O_WRONLY | O_CLOEXEC)).get());
    }));
  write(outputs() / "other", "meanwhile");
  for (int i = 0; i < 500; ++i) EXPECT_ERRNO(ENOENT, ::access((outputs() / std::to_string(i)).c_str(), F_OK));
  EXPECT_EQ(ERRNO_OF(FileDescriptor(::open((workdir() / "f").c_str(), O_RDONLY | O_NONBLOCK)).get()),
            EWOULDBLOCK);
  EXPECT_EQ(cut.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  leased.reset();
  EXPECT_EQ(cut.get(), 0);
  for (auto& writer : writers) EXPECT_EQ(writer.get(), 0);
  // Without passthrough a read that meets the truncation may end where the file ended before.
  const std::string with_zeros("byt\0\0", session().driver().statistics().passthrough ? 3 : 5);
  for (auto& reader : readers) EXPECT_THAT(reader.get(), ::testing::AnyOf("bytes", "byt", with_zeros));
  EXPECT_EQ(read(host() / "f"), "byt");
  ::signal(SIGIO, before);
}

/// On ext4 the number of a removed file is given to the next one.
class WorkdirOnExt4 : public MountedSession {
 protected:
  void SetUp() override {
    MountedSession::SetUp();
    if (IsSkipped()) return;
    if (const auto why_not = disk_.mount_at(host()); !why_not.empty()) GTEST_SKIP() << why_not;
    start_with(
        [this](fusefs::MountConfig& config) { config.workdir = open_file(host(), O_RDONLY | O_DIRECTORY); });
  }
  std::filesystem::path host() const { return host_.path(); }
  std::filesystem::path workdir() const { return mount() / "workdir"; }

  /// What stands at the name gives way to a file of root's that has its number.
  void replace_on_host(const std::filesystem::path& name) {
    const auto number = stat_of(host() / name).st_ino;
    std::filesystem::remove(host() / name);
    write(host() / name, "of somebody else");
    ASSERT_EQ(stat_of(host() / name).st_ino, number);
  }

 private:
  const ScratchDirectory host_{"workdir"};
  LoopDisk disk_{"ext4", "16M"};
};

TEST_F(WorkdirOnExt4, WhatIsKnownOfAFileIsNotTakenForAnotherOneWithItsNumber) {
  const auto remove = [&] { EXPECT_OK(::unlink((workdir() / "n").c_str())); };
  const auto replace = [&] {
    write(workdir() / "over", "over");
    EXPECT_OK(::rename((workdir() / "over").c_str(), (workdir() / "n").c_str()));
  };
  for (const auto& take_name : {std::function<void()>(remove), std::function<void()>(replace)}) {
    write(host() / "n", "mine");
    const FileDescriptor known(::open((workdir() / "n").c_str(), O_PATH | O_CLOEXEC));
    ASSERT_TRUE(known);
    replace_on_host("n");
    take_name();
    const std::string path = "/proc/self/fd/" + std::to_string(known.get());
    EXPECT_EQ(ERRNO_OF(FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC)).get()), ESTALE);
    struct stat status {};
    if (::fstat(known.get(), &status) == 0) {
      EXPECT_NE(status.st_size, 16);
    }
  }
}

// The kernel let the name go by what it knew of the owner.
TEST_F(WorkdirOnExt4, AFileWithTheNumberOfAnotherOneStaysItsOwners) {
  EXPECT_OK(::chmod(host().c_str(), 01777));
  const std::array<int (*)(const char*), 2> calls{
      ::unlink, [](const char* path) { return ::rename(path, (std::string(path) + ".moved").c_str()); }};
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const std::string name = std::to_string(i);
    write(host() / name, "mine");
    EXPECT_OK(::chown((host() / name).c_str(), kAlice.uid, kAlice.gid));
    EXPECT_EQ(stat_of(workdir() / name).st_uid, kAlice.uid);
    replace_on_host(name);
    as_user(kAlice, [&] { EXPECT_EQ(ERRNO_OF(calls[i]((workdir() / name).c_str())), EPERM); });
    EXPECT_EQ(read(host() / name), "of somebody else");
  }
}

}  // namespace
}  // namespace okcvm::test
