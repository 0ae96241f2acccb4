#include <fcntl.h>
#include <gmock/gmock.h>
#include <linux/fs.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "tests/support/mounted_session.h"

namespace okcvm::test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

using OpenFiles = MountedSession;

TEST_F(OpenFiles, AnUnlinkedFileLivesOnInItsDescriptor) {
  const auto path = outputs() / "file";
  const auto file = open_file(path, O_CREAT | O_RDWR);
  write_all(file, "before");
  EXPECT_OK(::unlink(path.c_str()));
  EXPECT_THAT(list(outputs()), ElementsAre());
  EXPECT_EQ(stat_of(file).st_nlink, 0u);
  write_all(file, " and after");
  EXPECT_EQ(read(file), "before and after");
  EXPECT_OK(::ftruncate(file.get(), 6));
  EXPECT_OK(::fchmod(file.get(), 0600));
  EXPECT_OK(::fsync(file.get()));
  const timespec times[2] = {{1, 2}, {3, 4}};
  EXPECT_OK(::futimens(file.get(), times));
  EXPECT_OK(::fsetxattr(file.get(), "user.a", "1", 1, 0));
  EXPECT_OK(::fallocate(file.get(), 0, 0, 8192));
  EXPECT_EQ(stat_of(file).st_size, 8192);
  EXPECT_EQ(stat_of(file).st_mtim.tv_sec >= 3, true);
  write(path, "another");
  EXPECT_NE(stat_of(path).st_ino, stat_of(file).st_ino);
  EXPECT_EQ(read(file).substr(0, 6), "before");
}

TEST_F(OpenFiles, AnUnlinkedFileIsReopenedThroughProc) {
  const auto path = outputs() / "file";
  const auto file = open_file(path, O_CREAT | O_RDWR);
  write_all(file, "bytes");
  EXPECT_OK(::unlink(path.c_str()));
  const auto again = open_file("/proc/self/fd/" + std::to_string(file.get()), O_RDWR);
  EXPECT_EQ(read(again), "bytes");
  write_all(again, "BYTES");
  EXPECT_EQ(read(file), "BYTES");
}

TEST_F(OpenFiles, AReplacedFileLivesOnInItsDescriptor) {
  write(outputs() / "file", "old");
  write(outputs() / "new", "new");
  const auto file = open_file(outputs() / "file", O_RDWR);
  EXPECT_OK(::rename((outputs() / "new").c_str(), (outputs() / "file").c_str()));
  EXPECT_EQ(read(file), "old");
  EXPECT_EQ(stat_of(file).st_nlink, 0u);
  write_all(file, "still");
  EXPECT_EQ(read(file), "still");
  EXPECT_EQ(read(outputs() / "file"), "new");
}

TEST_F(OpenFiles, ARemovedDirectoryThatIsOpenIsEmptyAndTakesNothing) {
  expect_as_native([](const fs::path& here, std::ostream& log) {
    fs::create_directory(here / "d");
    const auto directory = open_file(here / "d", O_RDONLY | O_DIRECTORY);
    log << ANSWER_OF(::rmdir((here / "d").c_str())) << stat_of(directory).st_nlink
        << ANSWER_OF(::mkdirat(directory.get(), "x", 0755))
        << ANSWER_OF(::openat(directory.get(), "f", O_CREAT | O_WRONLY, 0644))
        << ANSWER_OF(::faccessat(directory.get(), ".", F_OK, 0))
        << ANSWER_OF(::faccessat(directory.get(), "y", F_OK, 0));
  });
}

TEST_F(OpenFiles, AppendsGoToTheEndWhereverItIs) {
  const auto path = outputs() / "log";
  const auto one = open_file(path, O_CREAT | O_WRONLY | O_APPEND);
  const auto two = open_file(path, O_WRONLY | O_APPEND);
  write_all(one, "1");
  write_all(two, "2");
  EXPECT_OK(::lseek(one.get(), 0, SEEK_SET));
  write_all(one, "3");
  append(path, "4");
  EXPECT_EQ(read(path), "1234");
  EXPECT_OK(::ftruncate(one.get(), 1));
  write_all(two, "5");
  EXPECT_EQ(read(path), "15");
}

TEST_F(OpenFiles, AppendsOfSeveralProcessesAreNeitherLostNorTorn) {
  const auto path = outputs() / "log";
  write(path, "");
  constexpr int kProcesses = 4, kLines = 500;
  std::vector<std::unique_ptr<ChildProcess>> writers;
  for (int i = 0; i < kProcesses; ++i)
    writers.push_back(std::make_unique<ChildProcess>([&](ChildProcess&) {
      const FileDescriptor file(::open(path.c_str(), O_WRONLY | O_APPEND));
      const std::string line = std::string(99, static_cast<char>('a' + i)) + "\n";
      for (int n = 0; n < kLines; ++n)
        if (::write(file.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) return 1;
      return 0;
    }));
  for (auto& writer : writers) EXPECT_EQ(writer->join(), 0);
  const auto bytes = read(path);
  ASSERT_EQ(bytes.size(), 100u * kProcesses * kLines);
  for (std::size_t at = 0; at < bytes.size(); at += 100)
    ASSERT_EQ(bytes.substr(at, 100), std::string(99, bytes[at]) + "\n");
}

TEST_F(OpenFiles, TruncatingAtOpenEmptiesTheFileForAll) {
  const auto path = outputs() / "file";
  write(path, "content");
  const auto before = open_file(path, O_RDONLY);
  EXPECT_EQ(read(before), "content");
  const auto emptied = open_file(path, O_WRONLY | O_TRUNC);
  EXPECT_EQ(stat_of(path).st_size, 0);
  EXPECT_EQ(stat_of(before).st_size, 0);
  EXPECT_EQ(read(before), "");
}

TEST_F(OpenFiles, DirectIoReadsAndWritesWhatBufferedIoSees) {
  const auto path = outputs() / "file";
  write(path, pattern(8192, 1));
  const FileDescriptor file(::open(path.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC));
  if (!file) GTEST_SKIP() << "no O_DIRECT on this backing file system: " << errno_name(errno);
  const std::unique_ptr<void, void (*)(void*)> buffer(std::aligned_alloc(4096, 4096), std::free);
  auto* const bytes = static_cast<char*>(buffer.get());
  ASSERT_EQ(::pread(file.get(), bytes, 4096, 4096), 4096);
  EXPECT_EQ(std::string_view(bytes, 4096), pattern(8192, 1).substr(4096));
  const auto fresh = pattern(4096, 2);
  fresh.copy(bytes, 4096);
  ASSERT_EQ(::pwrite(file.get(), bytes, 4096, 0), 4096);
  EXPECT_EQ(read(path), fresh + pattern(8192, 1).substr(4096));
  write(path, std::string(8192, 'z'));
  ASSERT_EQ(::pread(file.get(), bytes, 4096, 0), 4096);
  EXPECT_EQ(std::string_view(bytes, 4096), std::string(4096, 'z'));
}

int link_open_file(const FileDescriptor& file, const fs::path& path) {
  const auto opened = "/proc/self/fd/" + std::to_string(file.get());
  return ::linkat(AT_FDCWD, opened.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW);
}

TEST_F(OpenFiles, NamelessFilesAreAsNativeOnes) {
  expect_as_native([](const fs::path& here, std::ostream& log) {
    const auto say = [&](const char* what, int fd) {
      struct stat status {};
      const int answer = ::fstat(fd, &status);
      log << what << ": " << answer << " 0" << std::oct << status.st_mode << std::dec << " "
          << status.st_nlink << " " << status.st_size << " " << status.st_uid << ":" << status.st_gid << "\n";
    };
    fs::create_directory(here / "d");
    EXPECT_OK(::chown((here / "d").c_str(), 0, 12345));
    EXPECT_OK(::chmod((here / "d").c_str(), 02777));
    ::umask(027);
    for (const int access : {O_RDWR, O_WRONLY, O_RDWR | O_EXCL}) {
      const FileDescriptor file(::open((here / "d").c_str(), O_TMPFILE | access | O_CLOEXEC, 0666));
      say("made", file.get());
      log << "written " << ::write(file.get(), "some text", 9) << "\n";
      log << "cut " << ::ftruncate(file.get(), 7) << " " << ::fchmod(file.get(), 0604) << "\n";
      say("changed", file.get());
      const auto opened = "/proc/self/fd/" + std::to_string(file.get());
      log << "opened again "
          << errno_name(FileDescriptor(::open(opened.c_str(), O_RDWR | O_CLOEXEC)) ? 0 : errno) << "\n";
      const auto path = here / ("named" + std::to_string(access));
      log << "linked " << errno_name(link_open_file(file, path) ? errno : 0) << " ";
      log << errno_name(link_open_file(file, path) ? errno : 0) << "\n";
      say("linked", file.get());
      if (!fs::exists(path)) continue;
      log << "appended " << ::pwrite(file.get(), "!", 1, 7) << " " << read(path) << "\n";
      EXPECT_EQ(stat_of(path).st_ino, stat_of(file).st_ino);
      log << "again " << errno_name(link_open_file(file, here / "other") ? errno : 0) << "\n";
      say("two names", file.get());
      fs::remove(path);
      fs::remove(here / "other");
      say("no name", file.get());
      log << "too late " << errno_name(link_open_file(file, path) ? errno : 0) << "\n";
    }
    ::umask(0);
    for (const int flags : {O_RDONLY, O_RDWR | O_CREAT}) {
      const FileDescriptor file(::open(here.c_str(), O_TMPFILE | flags | O_CLOEXEC, 0600));
      log << "0" << std::oct << flags << std::dec << ": " << errno_name(file ? 0 : errno) << "\n";
    }
    write(here / "file", "x");
    const FileDescriptor in_file(::open((here / "file").c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    log << "in a file: " << errno_name(in_file ? 0 : errno) << "\n";
  });
}

TEST_F(OpenFiles, TheTimesToldOfANewNamelessFileAreItsOwn) {
  for (const int access : {O_WRONLY, O_RDWR}) {
    const auto file = open_file(outputs(), O_TMPFILE | access, 0600);
    struct statx told {
    }, asked{};
    EXPECT_OK(::statx(file.get(), "", AT_EMPTY_PATH, STATX_CTIME, &told));
    EXPECT_OK(::statx(file.get(), "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_CTIME, &asked));
    EXPECT_EQ(told.stx_ctime.tv_sec, asked.stx_ctime.tv_sec);
    EXPECT_EQ(told.stx_ctime.tv_nsec, asked.stx_ctime.tv_nsec);
  }
}

TEST_F(OpenFiles, TheLastCloseOfARemovedFileIsNoChangeOfIt) {
  const auto path = outputs() / "file";
  auto file = open_file(path, O_RDWR | O_CREAT);
  const auto seen = open_file(path, O_PATH);
  EXPECT_OK(::unlink(path.c_str()));
  const auto changed = [&] {
    struct statx status {};
    EXPECT_OK(::statx(seen.get(), "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_CTIME, &status));
    return std::pair(status.stx_ctime.tv_sec, status.stx_ctime.tv_nsec);
  };
  const auto before = changed();
  file.reset();
  while (count_of("RELEASE") == 0) std::this_thread::yield();
  EXPECT_EQ(changed(), before);
}

TEST_F(OpenFiles, NamelessFilesLeaveNothingBehind) {
  const auto temp = session().mount() / "temp";
  for (int i = 0; i < 20; ++i) {
    const FileDescriptor file(::open(temp.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    ASSERT_TRUE(file) << errno_name(errno);
    write_all(file, "text");
    EXPECT_EQ(read(file), "text");
  }
  EXPECT_THAT(list(temp), ElementsAre());
  const auto files = [&] {
    std::vector<fs::path> found;
    for (const auto& entry : fs::recursive_directory_iterator(session().workspace()))
      if (!entry.is_directory()) found.push_back(entry.path());
    return found;
  };
  // The kernel forgets the last of them a moment later.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!files().empty() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_THAT(files(), ElementsAre());
  EXPECT_ERRNO(EROFS, ::open((session().mount() / "skills").c_str(), O_TMPFILE | O_RDWR, 0600));
}

TEST_F(OpenFiles, OpenFlagsMeanWhatTheyMean) {
  expect_as_native([](const fs::path& here, std::ostream& log) {
    write(here / "file", "x");
    fs::create_directory(here / "d");
    fs::create_symlink("file", here / "link");
    fs::create_symlink("missing", here / "dangling");
    const auto open = [&](const char* name, int flags) {
      const FileDescriptor file(::open((here / name).c_str(), flags | O_CLOEXEC, 0644));
      log << name << " 0" << std::oct << flags << std::dec << ": " << (file ? "ok" : errno_name(errno))
          << "\n";
    };
    for (const int flags :
         {O_RDONLY, O_WRONLY, O_RDWR, O_CREAT | O_EXCL | O_WRONLY, O_RDONLY | O_NOFOLLOW,
          O_RDONLY | O_DIRECTORY, O_PATH, O_PATH | O_NOFOLLOW, O_RDONLY | O_NOATIME, O_WRONLY | O_DIRECTORY,
          O_RDWR | O_APPEND | O_TRUNC, O_RDWR | O_SYNC, O_RDWR | O_DSYNC})
      for (const char* name : {"file", "d", "link", "missing", "file/x", "d/", "file/"}) open(name, flags);
    open("dangling", O_CREAT | O_WRONLY);
    log << there_is(here / "missing");
  });
}

/// Where what is written is passed through, the kernel has an EIO for every reason.
TEST_F(OpenFiles, AFileThatTheHostLetsNobodyWriteToSaysWhy) {
  write(outputs() / "file", "x");
  const auto held = open_file(outputs() / "file", O_RDWR);
  const auto behind = session().workspace() / "outputs" / "file";
  if (!set_flag(behind, FS_IMMUTABLE_FL, true)) GTEST_SKIP() << "the file system has no immutable files";
  for (const int flags : {O_WRONLY, O_RDWR, O_WRONLY | O_APPEND, O_WRONLY | O_TRUNC})
    EXPECT_ERRNO(EPERM, ::open((outputs() / "file").c_str(), flags | O_CLOEXEC));
  EXPECT_EQ(read(outputs() / "file"), "x");
  EXPECT_TRUE(set_flag(behind, FS_IMMUTABLE_FL, false));
  write(outputs() / "file", "y");
  EXPECT_EQ(read(held), "y");
}

TEST_F(OpenFiles, OneFileOpenedManyTimesInEveryMode) {
  const auto path = outputs() / "file";
  write(path, "0");
  std::vector<FileDescriptor> files;
  for (int i = 0; i < 50; ++i)
    files.push_back(open_file(
        path, std::array{O_RDONLY, O_WRONLY, O_RDWR, O_RDWR | O_APPEND}[static_cast<std::size_t>(i) % 4]));
  for (int i = 0; i < 50; ++i) {
    if (i % 4 == 0) continue;
    EXPECT_OK(::pwrite(files[static_cast<std::size_t>(i)].get(), "w", 1, 0));
  }
  for (int i = 0; i < 50; i += 4) EXPECT_EQ(read(files[static_cast<std::size_t>(i)])[0], 'w');
  files.erase(files.begin(), files.begin() + 49);
  const auto again = open_file(path, O_RDWR);
  EXPECT_OK(::pwrite(again.get(), "x", 1, 0));
  EXPECT_EQ(read(path)[0], 'x');
}

TEST_F(OpenFiles, OpeningAndClosingInManyThreadsNeverFails) {
  const auto path = outputs() / "file";
  write(path, pattern(10'000));
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i)
    threads.emplace_back([&, i] {
      for (int n = 0; n < 300; ++n) {
        const FileDescriptor file(::open(path.c_str(), (i + n) % 3 ? O_RDONLY : O_RDWR));
        ASSERT_TRUE(file) << errno_name(errno);
        char byte = 0;
        ASSERT_EQ(::pread(file.get(), &byte, 1, 5000), 1) << errno_name(errno);
        ASSERT_EQ(byte, pattern(10'000)[5000]);
      }
    });
  for (auto& thread : threads) thread.join();
}

TEST_F(OpenFiles, AFullDiskIsReportedToTheWriter) {
  ScratchDirectory place("small");
  const auto disk = place / "disk";
  fs::create_directory(disk);
  if (run({.arguments = {"mount", "-t", "tmpfs", "-o", "size=1M,mode=755", "none", disk.string()}})
          .exit_code != 0)
    GTEST_SKIP() << "cannot mount a small tmpfs";
  fs::create_directory(disk / "workspaces");
  start_with([&](fusefs::MountConfig& config) { config.workspace = disk / "workspaces" / "w"; });
  const auto big = pattern(2 << 20);
  {
    const auto file = open_file(outputs() / "file", O_CREAT | O_RDWR);
    std::size_t done = 0;
    int error = 0;
    while (error == 0 && done < big.size()) {
      const auto put =
          ::write(file.get(), big.data() + done, std::min<std::size_t>(big.size() - done, 65536));
      if (put < 0)
        error = errno;
      else
        done += static_cast<std::size_t>(put);
    }
    EXPECT_EQ(errno_name(error), "ENOSPC");
    EXPECT_EQ(read(file), big.substr(0, done));
    EXPECT_OK(::ftruncate(file.get(), 0));
    EXPECT_OK(::pwrite(file.get(), "ok", 2, 0));
  }
  session().unmount();
  run({.arguments = {"umount", "-l", disk.string()}});
}

TEST_F(OpenFiles, ThatAreRemovedCostTheDriverABoundedNumberOfDescriptors) {
  constexpr std::size_t kFiles = 4600, kMostHeld = 4096, kOthers = 400;
  const auto descriptors = [] {
    const std::filesystem::directory_iterator all("/proc/self/fd"), end;
    return static_cast<std::size_t>(std::distance(all, end));
  };
  rlimit usual{};
  ASSERT_OK(::getrlimit(RLIMIT_NOFILE, &usual));
  if (usual.rlim_max < 4 * (kFiles + kOthers)) GTEST_SKIP() << "this process may not have enough files open";
  const rlimit many{usual.rlim_max, usual.rlim_max};
  ASSERT_OK(::setrlimit(RLIMIT_NOFILE, &many));
  const std::size_t before = descriptors();
  std::vector<FileDescriptor> files;
  for (std::size_t i = 0; i < kFiles; ++i) {
    const auto path = outputs() / std::to_string(i);
    files.push_back(open_file(path, O_CREAT | O_RDWR));
    write_all(files.back(), std::to_string(i));
    ASSERT_OK(::unlink(path.c_str()));
  }
  const bool passthrough = session().driver().statistics().passthrough;
  // Without passthrough, the driver has each open file open, too.
  EXPECT_LT(descriptors(), before + kFiles + kMostHeld + kOthers + (passthrough ? 0 : kFiles));
  for (std::size_t i = 0; i < kFiles; ++i) {
    EXPECT_EQ(stat_of(files[i]).st_nlink, 0u) << i;
    EXPECT_EQ(read(files[i]), std::to_string(i));
  }
  files.clear();
  ASSERT_OK(::setrlimit(RLIMIT_NOFILE, &usual));
}

}  // namespace
}  // namespace okcvm::test
