#include <dirent.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

#include "tests/support/loop_disk.h"
#include "tests/support/mounted_session.h"

namespace okcvm::test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

using Sessions = MountedSession;

std::ptrdiff_t count_in(const fs::path& directory) {
  return std::distance(fs::directory_iterator(directory), {});
}

/// How many of these are mount points now.
std::ptrdiff_t count_mounted(const std::set<std::string>& points) {
  std::ifstream table("/proc/self/mountinfo");
  std::ptrdiff_t count = 0;
  for (std::string line; std::getline(table, line);) {
    std::istringstream fields(line);
    std::string id, parent, device, root, point;
    fields >> id >> parent >> device >> root >> point;
    count += points.contains(point);
  }
  return count;
}

TEST_F(Sessions, TwoDoNotSeeEachOther) {
  Session other("other");
  write(outputs() / "mine", "mine");
  write(other.outputs() / "theirs", "theirs");
  EXPECT_THAT(list(outputs()), ElementsAre("mine"));
  EXPECT_THAT(list(other.outputs()), ElementsAre("theirs"));
  EXPECT_ERRNO(EXDEV, ::rename((outputs() / "mine").c_str(), (other.outputs() / "x").c_str()));
  EXPECT_ERRNO(EXDEV, ::link((outputs() / "mine").c_str(), (other.outputs() / "x").c_str()));
  EXPECT_ERRNO(EPERM, ::symlink((other.outputs() / "theirs").c_str(), (outputs() / "x").c_str()));
  EXPECT_NE(stat_of(outputs()).st_dev, stat_of(other.outputs()).st_dev);
}

/// A session takes a quarter of the descriptors that the process may have, of each kind.
class OneOfManySessions : public MountedSession {
 protected:
  static constexpr rlim_t kMostInAll = 1000, kMostOfOne = kMostInAll / 4;
  void SetUp() override {
    MountedSession::SetUp();
    ASSERT_OK(::getrlimit(RLIMIT_NOFILE, &usual_));
  }
  void TearDown() override {
    ::setrlimit(RLIMIT_NOFILE, &usual_);
    MountedSession::TearDown();
  }
  void limit_descriptors() const {
    const rlimit few{kMostInAll, usual_.rlim_max};
    ASSERT_OK(::setrlimit(RLIMIT_NOFILE, &few));
  }
  rlimit usual_{};
};

TEST_F(OneOfManySessions, TakesNotAllDescriptorsByFilesThatAreKnown) {
  start_with([](fusefs::MountConfig& config) { config.file_handles = false; });
  Session other("other");
  limit_descriptors();
  std::size_t made = 0;
  while (made < kMostInAll && ::mknod((outputs() / std::to_string(made)).c_str(), S_IFREG | 0644, 0) == 0)
    ++made;
  EXPECT_EQ(errno, ENFILE);
  EXPECT_LE(made, kMostOfOne);
  EXPECT_GT(made, kMostOfOne / 2);
  EXPECT_EQ(list(outputs()).size(), made);
  write(other.outputs() / "file", "bytes");
  EXPECT_EQ(read(other.outputs() / "file"), "bytes");
  for (std::size_t i = 0; i < made; ++i) EXPECT_OK(::unlink((outputs() / std::to_string(i)).c_str()));
  write(outputs() / "file", "bytes");
}

TEST_F(OneOfManySessions, TakesNotAllDescriptorsByFilesThatAreOpen) {
  Session other("other");
  limit_descriptors();
  std::vector<FileDescriptor> files;
  while (files.size() < kMostOfOne + 50) {
    const auto path = outputs() / std::to_string(files.size());
    FileDescriptor file(::open(path.c_str(), O_CREAT | O_RDWR, 0644));
    if (!file) break;
    files.push_back(std::move(file));
  }
  if (session().driver().statistics().passthrough) {
    EXPECT_EQ(files.size(), kMostOfOne + 50);
  } else {
    EXPECT_EQ(errno, ENFILE);
    EXPECT_EQ(files.size(), kMostOfOne);
  }
  write(other.outputs() / "file", "bytes");
  files.pop_back();
  write(outputs() / "file", "bytes");
}

TEST_F(OneOfManySessions, TakesNoMoreForDirectoriesThanAllMay) {
  constexpr int kMany = 150;
  Session second("second"), third("third");
  limit_descriptors();
  std::uint64_t open = 0;
  for (Session* one : {&session(), &second, &third}) {
    for (int i = 0; i < kMany; ++i) {
      const auto directory = one->outputs() / std::to_string(i);
      ASSERT_OK(::mkdir(directory.c_str(), 0755));
      write(directory / "file", "bytes");
    }
    EXPECT_GT(one->driver().statistics().open_directories, kMostOfOne / 4);
  }
  for (Session* one : {&session(), &second, &third}) open += one->driver().statistics().open_directories;
  EXPECT_LE(open, kMostOfOne);
  EXPECT_GT(open, kMostOfOne / 2);
}

TEST_F(Sessions, TheMountIsNamedAndRestricted) {
  std::ifstream table("/proc/self/mountinfo");
  std::string line;
  while (std::getline(table, line) && line.find(mount()) == std::string::npos) {
  }
  EXPECT_THAT(line, ::testing::HasSubstr("nosuid"));
  EXPECT_THAT(line, ::testing::HasSubstr("nodev"));
  EXPECT_THAT(line, ::testing::HasSubstr(" fuse.okcvm "));
  EXPECT_THAT(line, ::testing::HasSubstr("default_permissions"));
  EXPECT_THAT(line, ::testing::HasSubstr("allow_other"));
  EXPECT_THAT(line, ::testing::Not(::testing::HasSubstr("state/workspaces")));
}

TEST_F(Sessions, TwoHundredLeaveNothingBehind) {
  std::set<std::string> points;
  const auto descriptors = count_in("/proc/self/fd"), threads = count_in("/proc/self/task");
  {
    std::vector<std::unique_ptr<Session>> sessions;
    for (int i = 0; i < 200; ++i) {
      sessions.push_back(std::make_unique<Session>("s" + std::to_string(i)));
      points.insert(sessions.back()->mount());
      list(sessions.back()->mount());
      write(sessions.back()->outputs() / "file", std::to_string(i));
    }
    EXPECT_EQ(count_mounted(points), 200);
    for (int i = 0; i < 200; ++i)
      EXPECT_EQ(read(sessions[static_cast<std::size_t>(i)]->outputs() / "file"), std::to_string(i));
    Watchdog::instance().expect_progress(Watchdog::usual_limit());
    for (int i = 0; i < 100; ++i) sessions[static_cast<std::size_t>(i)]->unmount();
  }
  EXPECT_EQ(count_mounted(points), 0);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (count_in("/proc/self/fd") > descriptors && std::chrono::steady_clock::now() < deadline) {
    // One keeps processors awake for a moment longer.
  }
  EXPECT_LE(count_in("/proc/self/fd"), descriptors);
  // The one session left may have started or ended a thread of its own meanwhile.
  EXPECT_LE(count_in("/proc/self/task"), threads + 8);
}

TEST_F(Sessions, UnmountingRemovesTheMountPointAndTheRuntimeState) {
  write(outputs() / "file", "kept");
  const auto point = mount();
  session().unmount();
  EXPECT_FALSE(there_is(point));
  EXPECT_THAT(list(session().scratch() / "run/sessions"), ::testing::IsEmpty());
  EXPECT_EQ(read(session().workspace() / "outputs/file"), "kept");
  session().remount();
  EXPECT_EQ(read(outputs() / "file"), "kept");
}

TEST_F(Sessions, ABusySessionIsUnmountedOnlyByForce) {
  write(outputs() / "file", "bytes");
  const auto file = open_file(outputs() / "file", O_RDONLY);
  const auto refused = session().driver().unmount(false);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kBusy);
  EXPECT_EQ(read(outputs() / "file"), "bytes");
  EXPECT_TRUE(session().driver().is_mounted());
  EXPECT_TRUE(session().driver().unmount(true));
  EXPECT_FALSE(there_is(mount()));
}

TEST_F(Sessions, AnIdleSessionIsUnmountedWithoutForce) {
  write(outputs() / "file", "bytes");
  read(outputs() / "file");
  list(outputs());
  // The kernel tells of a last close a moment later (fuse release is asynchronous).
  Result<void> done = fail(Code::kBusy, "");
  for (int i = 0; i < 1000 && !done; ++i) {
    done = session().driver().unmount(false);
    if (!done) ::usleep(1000);
  }
  EXPECT_TRUE(done) << done.error().message;
  EXPECT_FALSE(there_is(mount()));
}

TEST_F(Sessions, WhatIsMountedOnTopIsNotTakenAway) {
  ASSERT_OK(::mount("none", mount().c_str(), "tmpfs", 0, nullptr));
  std::ofstream(mount() / "of somebody else") << "bytes";
  EXPECT_EQ(session().driver().unmount(false).error().code, Code::kBusy);
  session().hand_over();
  EXPECT_EQ(session().driver().unmount(false).error().code, Code::kBusy);
  EXPECT_EQ(fs::file_size(mount() / "of somebody else"), 5u);
  ASSERT_OK(::umount2(mount().c_str(), 0));
  EXPECT_TRUE(there_is(outputs()));
  value_of(session().driver().unmount(false));
}

TEST_F(Sessions, WhatIsMountedOnTopGoesByForce) {
  ASSERT_OK(::mount("none", mount().c_str(), "tmpfs", 0, nullptr));
  value_of(session().driver().unmount(true));
  EXPECT_FALSE(there_is(mount()));
}

TEST_F(Sessions, WhatWasStoredThroughAMappingIsThereAfterADetach) {
  write(outputs() / "file", std::string(8192, '.'));
  auto file = open_file(outputs() / "file", O_RDWR);
  auto* const bytes =
      static_cast<char*>(::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0));
  ASSERT_NE(bytes, MAP_FAILED);
  bytes[5000] = 'x';
  value_of(session().driver().unmount(true));
  EXPECT_EQ(read(session().workspace() / "outputs/file").substr(4999, 3), ".x.");
  ::munmap(bytes, 8192);
}

TEST_F(Sessions, OpenFilesGoOnAfterADetach) {
  const auto file = open_file(outputs() / "file", O_CREAT | O_RDWR);
  write_all(file, "before");
  ASSERT_TRUE(session().driver().unmount(true));
  write_all(file, " after");
  EXPECT_EQ(read(file), "before after");
}

/// A program that has a file open when its mount is taken away goes on writing past the next mount.
TEST_F(Sessions, WhatIsWrittenThroughAFormerMountIsSeenInTheNext) {
  if (!session().driver().statistics().passthrough) GTEST_SKIP() << "what is open ends with its mount";
  write(outputs() / "log", "1\n");
  auto log = open_file(outputs() / "log", O_WRONLY | O_APPEND);
  session().unmount();
  session().remount();
  EXPECT_EQ(stat_of(outputs() / "log").st_size, 2);
  std::string all = "1\n";
  for (const bool is_taken_over : {false, true}) {
    if (is_taken_over) session().hand_over();
    write_all(log, "22222222\n");
    all += "22222222\n";
    EXPECT_EQ(stat_of(outputs() / "log").st_size, static_cast<off_t>(all.size()));
    write_all(log, "3\n");
    const auto appends = open_file(outputs() / "log", O_WRONLY);
    EXPECT_EQ(::lseek(appends.get(), 0, SEEK_END), static_cast<off_t>(all.size() + 2));
    write_all(appends, "4\n");
    all += "3\n4\n";
    EXPECT_EQ(read(outputs() / "log"), all);
  }
  // Once it is closed the kernel keeps again what it is told.
  log.reset();
  EXPECT_EQ(stat_of(outputs() / "log").st_size, static_cast<off_t>(all.size()));
  const auto asked = count_of("GETATTR");
  for (int i = 0; i < 10; ++i) stat_of(outputs() / "log");
  EXPECT_LE(count_of("GETATTR"), asked + 1);
}

TEST_F(Sessions, BadMountPointsAreRefusedAndUntouched) {
  const auto place = session().scratch() / "full";
  fs::create_directory(place);
  write(place / "precious", "x");
  auto config = session().config();
  config.mount_point = place;
  const auto full = fusefs::SessionMount::mount(std::move(config));
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, Code::kBusy);
  EXPECT_EQ(read(place / "precious"), "x");

  config = session().config();
  config.mount_point = session().scratch() / "no/such/place";
  const auto missing = fusefs::SessionMount::mount(std::move(config));
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::kNotFound);

  const auto link = session().scratch() / "link", victim = session().scratch() / "victim";
  fs::create_directory(victim);
  fs::create_directory_symlink(victim, link);
  config = session().config();
  config.mount_point = link;
  const auto linked = fusefs::SessionMount::mount(std::move(config));
  ASSERT_FALSE(linked);
  EXPECT_EQ(linked.error().code, Code::kBusy);
  EXPECT_TRUE(fs::is_empty(victim));
  EXPECT_TRUE(fs::is_symlink(link));

  config = session().config();
  const auto twice = fusefs::SessionMount::mount(std::move(config));
  ASSERT_FALSE(twice);
  EXPECT_EQ(twice.error().code, Code::kBusy);
  EXPECT_THAT(list(mount()), ElementsAre(".metadata.json", "outputs", "skills", "temp", "uploads"));
}

TEST_F(Sessions, AnUnmountFromOutsideIsNoticed) {
  EXPECT_TRUE(session().driver().is_mounted());
  ASSERT_EQ(run({.arguments = {"umount", mount().string()}}).exit_code, 0);
  for (int i = 0; i < 5000 && session().driver().is_mounted(); ++i) ::usleep(1000);
  EXPECT_FALSE(session().driver().is_mounted());
}

TEST_F(Sessions, TheMountOfADeadDaemonIsDetached) {
  const auto root = session().scratch() / "dead";
  fs::create_directory(root);
  ChildProcess daemon([&](ChildProcess& self) {
    auto config = session().config();
    config.mount_point = root / "okcvm-dead";
    const auto mounted = fusefs::SessionMount::mount(std::move(config));
    if (!mounted) return 1;
    self.signal();
    self.wait();
    return 0;
  });
  ASSERT_TRUE(daemon.wait());
  EXPECT_THAT(fusefs::detach_stale_mounts(root, root, [](std::string_view) { return true; }), ElementsAre());
  daemon.kill(SIGKILL);
  daemon.join();
  struct statfs space {};
  EXPECT_ERRNO(ENOTCONN, ::statfs((root / "okcvm-dead").c_str(), &space));
  EXPECT_THAT(fusefs::detach_stale_mounts(root, root, [](std::string_view) { return false; }), ElementsAre());
  EXPECT_THAT(
      fusefs::detach_stale_mounts(root, root, [](std::string_view name) { return name == "okcvm-dead"; }),
      ElementsAre("okcvm-dead"));
  EXPECT_EQ(count_in(root), 0);
  EXPECT_THAT(list(outputs()), ElementsAre());
}

/// A file whose opening waits: somebody has a lease on it (fcntl(2), F_SETLEASE) and takes his time.
class LeasedFile {
 public:
  explicit LeasedFile(const fs::path& path) : file_(open_file(path, O_RDONLY)) {
    std::signal(SIGIO, SIG_IGN);
    // The last RELEASE of the file comes after its close.
    while (::fcntl(file_.get(), F_SETLEASE, F_WRLCK) != 0 && errno == EAGAIN) std::this_thread::yield();
  }
  void wait_for_an_open() const {
    while (::fcntl(file_.get(), F_GETLEASE) == F_WRLCK) std::this_thread::yield();
  }
  void release() const { EXPECT_OK(::fcntl(file_.get(), F_SETLEASE, F_UNLCK)); }

 private:
  FileDescriptor file_;
};

TEST_F(Sessions, AStuckRequestStopsNoOther) {
  write(outputs() / "leased", "x");
  write(outputs() / "other", "y");
  EXPECT_OK(::chmod((outputs() / "leased").c_str(), 04755));  // such a file is opened anew each time
  const LeasedFile leased(session().workspace() / "outputs/leased");
  std::atomic<int> opened = 0;
  std::vector<std::thread> stuck;
  for (int i = 0; i < 3; ++i)
    stuck.emplace_back([&] {
      EXPECT_EQ(read(outputs() / "leased"), "x");
      ++opened;
    });
  leased.wait_for_an_open();
  for (int i = 0; i < 50; ++i) {
    const auto name = std::to_string(i);
    write(outputs() / name, name);
    EXPECT_EQ(read(outputs() / "other"), "y");
    EXPECT_OK(::rename((outputs() / name).c_str(), (outputs() / ("r" + name)).c_str()));
    EXPECT_OK(::unlink((outputs() / ("r" + name)).c_str()));
  }
  EXPECT_EQ(opened, 0);
  leased.release();
  for (auto& thread : stuck) thread.join();
  EXPECT_EQ(opened, 3);
}

/// As df(1) and `ls -l` of the mount root do, for all sessions alike.
TEST_F(Sessions, ALookAtTheMountPointIsNoUse) {
  const auto last_used = [&] { return session().driver().statistics().last_used.time_since_epoch().count(); };
  struct statfs space {};
  struct statx status {};
  EXPECT_OK(::statfs(session().mount().c_str(), &space));
  EXPECT_OK(::statx(AT_FDCWD, session().mount().c_str(), AT_STATX_FORCE_SYNC, STATX_ALL, &status));
  EXPECT_EQ(last_used(), 0);
  EXPECT_OK(::statx(AT_FDCWD, outputs().c_str(), AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &status));
  EXPECT_GT(last_used(), 0);
}

TEST_F(Sessions, RequestsAreCounted) {
  write(outputs() / "file", "x");
  const auto statistics = session().driver().statistics();
  EXPECT_GT(statistics.protocol_minor, 0u);
  std::uint64_t creates = 0;
  for (const auto& operation : statistics.operations)
    if (operation.name == "CREATE") creates = operation.count;
  EXPECT_EQ(creates, 1u);
  const auto file = open_file(outputs() / "file", O_RDONLY);
  EXPECT_EQ(session().driver().statistics().open_files, 1u);
}

std::uint64_t mount_number(const fs::path& place) {
  struct statx status {};
  EXPECT_OK(::statx(AT_FDCWD, place.c_str(), AT_SYMLINK_NOFOLLOW, STATX_MNT_ID, &status));
  return status.stx_mnt_id;
}

/// The next mount believes the record of changes, so what that does not name must be there.
TEST_F(Sessions, WhatTheyHoldIsOnTheDiskOnceTheyAreUnmounted) {
  const ScratchDirectory place("power");
  LoopDisk disk("ext4", "64M");
  for (const char* name : {"disk", "left"}) fs::create_directory(place / name);
  if (const auto why = disk.mount_at(place / "disk"); !why.empty()) GTEST_SKIP() << why;
  fs::create_directories(place / "disk/workspaces");
  start_with([&](fusefs::MountConfig& config) { config.workspace = place / "disk/workspaces/s"; });
  write(outputs() / "made", pattern(300'000));
  session().driver().retire_changes(session().driver().cut_changes());
  session().unmount();
  disk.copy_at(place / "left");
  EXPECT_TRUE(there_is(place / "left/changes/12ab34cd"));
  EXPECT_EQ(read(place / "left/workspaces/s/outputs/made"), pattern(300'000));
}

/// A zone of it, all of it at its own path, as in `-v DIRECTORY:DIRECTORY`, or all of it on the file system
/// that has the mount point.
TEST_F(Sessions, AreInUseWhereAContainerHasThemMounted) {
  write(outputs() / "file", "bytes");
  const ScratchDirectory root("container");
  const auto beside = mount().parent_path() / "a jail";
  fs::create_directory(beside);
  for (const auto& bind : {std::pair(outputs(), root / "data"),
                           {mount(), fs::path(root.path().string() + mount().string())},
                           {mount(), beside}}) {
    const auto what = bind.first, place = bind.second;
    ChildProcess container([&](ChildProcess& self) {
      if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
          ::mount("none", root.path().c_str(), "tmpfs", 0, nullptr) != 0)
        return 1;
      fs::create_directories(place);
      if (::mount(what.c_str(), place.c_str(), nullptr, MS_BIND, nullptr) != 0) return 1;
      self.send("mounted");
      self.receive();
      return read(place / (what == mount() ? "outputs/file" : "file")) == "bytes" ? 0 : 2;
    });
    ASSERT_EQ(container.receive(), "mounted");
    const auto number = mount_number(mount());
    const auto refused = session().driver().unmount(false);
    ASSERT_FALSE(refused) << place;
    EXPECT_EQ(refused.error().code, Code::kBusy);
    EXPECT_TRUE(session().driver().is_in_place());
    EXPECT_EQ(mount_number(mount()), number) << "it was away meanwhile";
    EXPECT_EQ(read(outputs() / "file"), "bytes");
    container.send("look");
    EXPECT_EQ(container.join(), 0);
  }
  value_of(session().driver().unmount(false));
}

TEST_F(Sessions, AreNotInUseWhereANamespaceHasACopyOfAllMounts) {
  const auto root = mount().parent_path();
  for (const unsigned long propagation : {MS_PRIVATE, MS_SLAVE}) {
    session().unmount();
    ASSERT_OK(::mount(root.c_str(), root.c_str(), nullptr, MS_BIND, nullptr));
    ASSERT_OK(::mount("none", root.c_str(), nullptr, MS_SHARED, nullptr));
    session().remount();
    ChildProcess service([&](ChildProcess& self) {
      if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | propagation, nullptr) != 0)
        return 1;
      self.send(there_is(outputs()) ? "sees" : "does not see");
      self.receive();
      return 0;
    });
    EXPECT_EQ(service.receive(), "sees");
    EXPECT_TRUE(session().driver().unmount(false)) << propagation;
    service.send("end");
    EXPECT_EQ(service.join(), 0);
    EXPECT_OK(::umount2(root.c_str(), MNT_DETACH));
    session().remount();
  }
}

}  // namespace
}  // namespace okcvm::test
