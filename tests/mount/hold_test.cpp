#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstring>
#include <fstream>
#include <future>
#include <thread>
#include <vector>

#include "tests/support/mounted_session.h"

namespace okcvm::test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class Hold : public MountedSession {
 protected:
  fs::path backing(const char* path) { return session().workspace() / path; }
  static std::vector<RelPath> paths(std::initializer_list<const char*> texts) {
    std::vector<RelPath> parsed;
    for (const char* text : texts) parsed.push_back(value_of(RelPath::parse(text)));
    return parsed;
  }
};

TEST_F(Hold, RequestsWaitAndThenAreAnswered) {
  write(outputs() / "file", "x");
  auto hold = session().driver().hold();
  auto made =
      std::async(std::launch::async, [&] { return ERRNO_OF(::mkdir((outputs() / "made").c_str(), 0755)); });
  EXPECT_EQ(made.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout);
  EXPECT_FALSE(there_is(backing("outputs/made")));
  hold.reset();
  EXPECT_EQ(errno_name(made.get()), "ok");
  EXPECT_TRUE(there_is(backing("outputs/made")));
}

/// Their requests are in the hands of several threads, which give them to one another, when they must wait.
TEST_F(Hold, ManyProgramsGoOnAfterIt) {
  constexpr int kPrograms = 6;
  constexpr int kRounds = 150;
  const auto program = [&](int number) {
    const auto here = outputs() / ("program-" + std::to_string(number));
    ASSERT_OK(::mkdir(here.c_str(), 0755));
    for (int round = 0; round < kRounds; ++round) {
      const auto text = std::to_string(number) + ": " + std::to_string(round);
      write(here / "draft", text);
      ASSERT_OK(::rename((here / "draft").c_str(), (here / "file").c_str()));
      ASSERT_EQ(read(here / "file"), text);
      ASSERT_OK(::mkdir((here / "directory").c_str(), 0700));
      ASSERT_THAT(list(here), UnorderedElementsAre("directory", "file"));
      ASSERT_OK(::rmdir((here / "directory").c_str()));
      ASSERT_OK(::unlink((here / "file").c_str()));
      ASSERT_FALSE(there_is(here / "file"));
    }
  };
  std::vector<std::future<void>> programs;
  for (int number = 0; number < kPrograms; ++number)
    programs.push_back(std::async(std::launch::async, program, number));
  for (auto& one : programs)
    while (one.wait_for(std::chrono::milliseconds(2)) == std::future_status::timeout)
      EXPECT_TRUE(session().driver().hold());
  for (int number = 0; number < kPrograms; ++number)
    EXPECT_THAT(list(backing(("outputs/program-" + std::to_string(number)).c_str())), IsEmpty());
}

TEST_F(Hold, WhatWasStoredThroughAMappingIsInTheBackingFile) {
  auto file = open_file(outputs() / "file", O_CREAT | O_RDWR);
  EXPECT_OK(::ftruncate(file.get(), 4));
  auto* const memory =
      static_cast<char*>(::mmap(nullptr, 4, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0));
  ASSERT_NE(memory, MAP_FAILED);
  file.reset();
  std::memcpy(memory, "cut.", 4);
  session().driver().cut_changes();
  EXPECT_EQ(read(backing("outputs/file")), "cut.");
  std::memcpy(memory, "held", 4);
  {
    const auto hold = session().driver().hold();
    EXPECT_EQ(read(backing("outputs/file")), "held");
  }
  EXPECT_EQ(read(outputs() / "file"), "held");
  EXPECT_OK(
      ::msync(memory, 4, MS_SYNC));  // munmap(2) would hold a lock that the driver needs, in this process
  ::munmap(memory, 4);
}

TEST_F(Hold, WhatChangedUnderneathIsSeenAfterwards) {
  fs::create_directories(outputs() / "d/sub");
  write(outputs() / "d/replaced", "old content");
  write(outputs() / "d/shrunk", std::string(10'000, 'x'));
  write(outputs() / "d/removed", "x");
  write(outputs() / "d/mode", "x");
  fs::create_symlink("replaced", outputs() / "d/link");
  struct stat found {};
  EXPECT_ERRNO(ENOENT, ::stat((outputs() / "d/added").c_str(), &found));
  for (const char* name : {"replaced", "shrunk", "removed"}) read(outputs() / "d" / name);
  list(outputs() / "d");
  list(outputs() / "d/sub");
  link_text(outputs() / "d/link");
  stat_of(outputs() / "d/mode");
  {
    auto hold = session().driver().hold();
    write(backing("outputs/d/draft"), "new");
    fs::rename(backing("outputs/d/draft"), backing("outputs/d/replaced"));
    write(backing("outputs/d/shrunk"), "s");
    fs::remove(backing("outputs/d/removed"));
    write(backing("outputs/d/added"), "added");
    EXPECT_OK(::chmod(backing("outputs/d/mode").c_str(), 0711));
    fs::remove(backing("outputs/d/link"));
    fs::create_symlink("added", backing("outputs/d/link"));
    write(backing("outputs/d/sub/deep"), "deep");
    hold->invalidate(
        paths({"outputs/d", "outputs/d/replaced", "outputs/d/shrunk", "outputs/d/removed", "outputs/d/added",
               "outputs/d/mode", "outputs/d/link", "outputs/d/sub", "outputs/d/sub/deep"}));
  }
  EXPECT_EQ(read(outputs() / "d/replaced"), "new");
  EXPECT_EQ(stat_of(outputs() / "d/replaced").st_size, 3);
  EXPECT_EQ(read(outputs() / "d/shrunk"), "s");
  EXPECT_ERRNO(ENOENT, ::stat((outputs() / "d/removed").c_str(), &found));
  EXPECT_EQ(read(outputs() / "d/added"), "added");
  EXPECT_EQ(mode_of(outputs() / "d/mode"), 0711u);
  EXPECT_EQ(link_text(outputs() / "d/link"), "added");
  EXPECT_THAT(list(outputs() / "d"), ElementsAre("added", "link", "mode", "replaced", "shrunk", "sub"));
  EXPECT_THAT(list(outputs() / "d/sub"), ElementsAre("deep"));
}

TEST_F(Hold, OpenFilesAndWorkingDirectoriesStayWhatTheyWere) {
  fs::create_directories(outputs() / "d");
  write(outputs() / "d/file", "old");
  const auto file = open_file(outputs() / "d/file", O_RDWR);
  const auto directory = open_file(outputs() / "d", O_RDONLY | O_DIRECTORY);
  {
    auto hold = session().driver().hold();
    write(backing("outputs/d/draft"), "new");
    fs::rename(backing("outputs/d/draft"), backing("outputs/d/file"));
    hold->invalidate(paths({"outputs/d", "outputs/d/file"}));
  }
  EXPECT_EQ(read(file), "old");
  EXPECT_EQ(stat_of(file).st_nlink, 0u);
  EXPECT_EQ(read(outputs() / "d/file"), "new");
  const FileDescriptor made(::openat(directory.get(), "made", O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
  ASSERT_TRUE(made) << errno_name(errno);
  EXPECT_THAT(list(outputs() / "d"), ElementsAre("file", "made"));
}

TEST_F(Hold, ADirectoryThatGoesStaysWhatItWasForWhoHasItOpen) {
  fs::create_directory(outputs() / "d");
  const auto directory = open_file(outputs() / "d", O_RDONLY | O_DIRECTORY);
  {
    auto hold = session().driver().hold();
    hold->will_replace(paths({"outputs/d"}));
    fs::remove(backing("outputs/d"));
    hold->invalidate(paths({"outputs/d"}));
  }
  EXPECT_FALSE(there_is(outputs() / "d"));
  EXPECT_OK(::fchmod(directory.get(), 0710));
  const timespec times[2] = {{1, 0}, {2, 0}};
  EXPECT_OK(::futimens(directory.get(), times));
  EXPECT_OK(::fsetxattr(directory.get(), "user.a", "b", 1, 0));
  const auto status = stat_of(directory);
  EXPECT_EQ(status.st_mode, S_IFDIR | 0710u);
  EXPECT_EQ(status.st_mtim.tv_sec, 2);
  EXPECT_EQ(status.st_nlink, 0u);
  EXPECT_THAT(list("/proc/self/fd/" + std::to_string(directory.get())), IsEmpty());
  EXPECT_EQ(::openat(directory.get(), "f", O_CREAT | O_WRONLY, 0644), -1);
  EXPECT_EQ(errno, ENOENT);
}

/// As a container does that has it bound somewhere.
TEST_F(Hold, AFileOrLinkThatGoesStaysWhatItWasForWhoRefersToIt) {
  write(outputs() / "file", "old");
  fs::create_symlink("file", outputs() / "link");
  const auto file = open_file(outputs() / "file", O_PATH);
  const auto link = open_file(outputs() / "link", O_PATH | O_NOFOLLOW);
  {
    auto hold = session().driver().hold();
    hold->will_replace(paths({"outputs/file", "outputs/link"}));
    write(backing("outputs/draft"), "new");
    fs::rename(backing("outputs/draft"), backing("outputs/file"));
    fs::remove(backing("outputs/link"));
    hold->invalidate(paths({"outputs/file", "outputs/link"}));
  }
  EXPECT_EQ(read(outputs() / "file"), "new");
  const auto by_descriptor = "/proc/self/fd/" + std::to_string(file.get());
  EXPECT_EQ(read(by_descriptor), "old");
  EXPECT_OK(::chmod(by_descriptor.c_str(), 0600));
  EXPECT_EQ(stat_of(file).st_mode, S_IFREG | 0600u);
  std::array<char, 16> text{};
  EXPECT_EQ(::readlinkat(link.get(), "", text.data(), text.size()), 4) << errno_name(errno);
  EXPECT_STREQ(text.data(), "file");
}

TEST_F(Hold, WhoStandsBelowADirectoryThatGoesIsToldSo) {
  fs::create_directories(outputs() / "d/sub/deep");
  ChildProcess program([&](ChildProcess& self) {
    if (::chdir((outputs() / "d/sub/deep").c_str()) != 0) return errno;
    self.signal();
    self.wait();
    std::array<char, PATH_MAX> path;
    return ::getcwd(path.data(), path.size()) ? 0 : errno;
  });
  const bool stands_there = program.wait();
  ASSERT_TRUE(stands_there);
  {
    auto hold = session().driver().hold();
    hold->will_replace(paths({"outputs/d", "outputs/d/sub", "outputs/d/sub/deep"}));
    fs::remove_all(backing("outputs/d"));
    hold->invalidate(paths({"outputs/d"}));
  }
  fs::create_directories(outputs() / "d/sub/deep");
  program.signal();
  EXPECT_EQ(program.join(), ENOENT);
}

TEST_F(Hold, AZoneMadeUnderneathIsSeen) {
  list(outputs());
  {
    auto hold = session().driver().hold();
    fs::create_directories(backing("outputs/d"));
    write(backing("outputs/d/file"), "restored");
    hold->invalidate(paths({"outputs", "outputs/d", "outputs/d/file"}));
  }
  EXPECT_EQ(read(outputs() / "d/file"), "restored");
  EXPECT_THAT(list(outputs()), ElementsAre("d"));
}

TEST_F(Hold, AnEscapingLinkPutThereIsNotFollowed) {
  write(outputs() / "file", "x");
  {
    auto hold = session().driver().hold();
    fs::create_symlink("/etc/passwd", backing("outputs/link"));
    hold->invalidate(paths({"outputs/link"}));
  }
  std::array<char, 100> text;
  EXPECT_ERRNO(EPERM, ::readlink((outputs() / "link").c_str(), text.data(), text.size()));
}

TEST_F(Hold, CutsWhileHolding) {
  write(outputs() / "file", "x");
  auto hold = session().driver().hold();
  const auto changes = hold->cut_changes();
  EXPECT_FALSE(changes.empty());
  hold.reset();
  session().driver().retire_changes(changes);
}

TEST_F(Hold, IsTakenAndReleasedUnderLoadWithoutAFailedCall) {
  std::atomic<bool> done{false};
  std::atomic<int> failures{0}, rounds{0};
  std::vector<std::thread> workers;
  for (int i = 0; i < 3; ++i)
    workers.emplace_back([&, i] {
      const auto name = outputs() / ("w" + std::to_string(i));
      while (!done) {
        failures += ::mkdir(name.c_str(), 0755) != 0;
        FileDescriptor file(::open((name / "f").c_str(), O_CREAT | O_RDWR, 0644));
        failures += !file || ::write(file.get(), "x", 1) != 1;
        file.reset();
        failures += ::unlink((name / "f").c_str()) != 0;
        failures += ::rmdir(name.c_str()) != 0;
        ++rounds;
      }
    });
  for (int i = 0; i < 100; ++i) {
    auto hold = session().driver().hold();
    hold->cut_changes();
    hold->invalidate({});
    hold.reset();
    const int seen = rounds;
    while (rounds == seen) std::this_thread::yield();
  }
  done = true;
  for (auto& worker : workers) worker.join();
  EXPECT_EQ(failures, 0);
}

/// The kernel has looked up both names, and asks for the rename, while what stands at one of them changes.
TEST_F(Hold, ARenameUnderWayIsOfWhatStandsThereAfterwards) {
  constexpr int kRounds = 300;
  const auto file = outputs() / "file", renamed = outputs() / "renamed";
  const auto look_ups = [&] {
    for (const auto& operation : session().driver().statistics().operations)
      if (operation.name == "LOOKUP") return operation.count;
    return std::uint64_t{0};
  };
  int after = 0, wrong = 0;
  for (int i = 0; i < kRounds; ++i) {
    write(file, "old");
    std::atomic<bool> may_begin{false};
    std::thread program([&] {
      while (!may_begin) std::this_thread::yield();
      EXPECT_OK(::rename(file.c_str(), renamed.c_str()));
    });
    const auto before = look_ups();
    may_begin = true;
    while (look_ups() == before) {
    }
    {
      const auto hold = session().driver().hold();
      if (there_is(backing("outputs/file"))) {
        hold->will_replace(paths({"outputs/file"}));
        write(backing("new"), "restored");
        fs::rename(backing("new"), backing("outputs/file"));
        hold->invalidate(paths({"outputs/file"}));
      }
    }
    program.join();
    const auto is_there = read(backing("outputs/renamed"));
    after += is_there == "restored";
    wrong += read(renamed) != is_there;
    ASSERT_OK(::unlink(renamed.c_str()));
  }
  EXPECT_EQ(wrong, 0) << "of " << after;
  if (after == 0) GTEST_SKIP() << "no rename was under way at the right moment";
}

/// Puts a file while a rename of its name, or one that takes its name, waits for that.
TEST_F(Hold, ARenameUnderWayIsOfWhatIsPutThere) {
  const auto file = outputs() / "file", renamed = outputs() / "renamed";
  for (const bool was_there : {true, false}) {
    write(file, "old");
    EXPECT_FALSE(there_is(renamed));
    std::atomic<pid_t> thread{0};
    std::thread program;
    const auto meanwhile = [&](const fusefs::FileInfo*, const fusefs::FileInfo*) -> Result<void> {
      program = std::thread([&] {
        thread = ::gettid();
        EXPECT_OK(::rename(file.c_str(), renamed.c_str()));
      });
      wait_until_within(thread, SYS_rename);
      if (!was_there) fs::remove(backing("outputs/file"));
      return {};
    };
    const auto incoming = value_of(session().files().create(
        Caller{}, value_of(RelPath::parse("outputs/file")), {}, fusefs::IfExists::kReplace, meanwhile));
    ASSERT_EQ(::write(incoming->descriptor(), "put", 3), 3);
    value_of(incoming->publish());
    program.join();
    EXPECT_EQ(read(renamed), "put");
    std::ofstream(renamed, std::ios::app) << " and more";
    EXPECT_EQ(read(backing("outputs/renamed")), "put and more");
    EXPECT_FALSE(there_is(file));
    ASSERT_OK(::unlink(renamed.c_str()));
  }
}

TEST_F(Hold, AllocatingAndCopyingGoOnMeanwhile) {
  write(outputs() / "from", "0123456789");
  const auto from = open_file(outputs() / "from", O_RDONLY);
  const auto to = open_file(outputs() / "to", O_CREAT | O_RDWR);
  write_all(to, "x");  // the first write of a file has the kernel ask for more
  const auto hold = session().driver().hold();
  EXPECT_EQ(ERRNO_OF(::fallocate(to.get(), 0, 0, 1 << 20)), 0);
  EXPECT_EQ(::copy_file_range(from.get(), nullptr, to.get(), nullptr, 10, 0), 10);
}

TEST_F(Hold, ARemovalUnderWayIsOfWhatStandsThereAfterwards) {
  const auto directory = outputs() / "directory", moved = outputs() / "moved";
  ASSERT_OK(::mkdir(directory.c_str(), 0755));
  stat_of(outputs());  // so that nothing need be asked before the removal
  const auto somebody_in_it = open_file(directory, O_RDONLY | O_DIRECTORY);
  EXPECT_EQ(stat_of(directory).st_nlink, 2u);
  std::atomic<pid_t> thread{0};
  std::thread program;
  {
    const auto hold = session().driver().hold();
    program = std::thread([&] {
      thread = ::gettid();
      EXPECT_OK(::rmdir(directory.c_str()));
    });
    wait_until_within(thread, SYS_rmdir);
    hold->will_replace(paths({"outputs/directory"}));
    fs::rename(backing("outputs/directory"), backing("outputs/moved"));
    fs::create_directory(backing("outputs/directory"));
    hold->invalidate(paths({"outputs/directory", "outputs/moved"}));
  }
  program.join();
  EXPECT_FALSE(there_is(directory));
  EXPECT_FALSE(there_is(backing("outputs/directory")));
  EXPECT_OK(::mkdirat(somebody_in_it.get(), "made", 0755));  // it was not the one that was removed
  EXPECT_EQ(stat_of(moved).st_nlink, 3u);
}

TEST_F(Hold, LinksThatComeAndGoAreCountedUnderTheOtherNames) {
  write(outputs() / "one", "x");
  write(outputs() / "two", "x");
  ASSERT_OK(::link((outputs() / "two").c_str(), (outputs() / "goes").c_str()));
  EXPECT_EQ(stat_of(outputs() / "one").st_nlink, 1u);
  EXPECT_EQ(stat_of(outputs() / "two").st_nlink, 2u);
  {
    const auto hold = session().driver().hold();
    const auto changed = paths({"outputs/comes", "outputs/goes"});
    hold->will_replace(changed);
    ASSERT_OK(::link(backing("outputs/one").c_str(), backing("outputs/comes").c_str()));
    ASSERT_OK(::unlink(backing("outputs/goes").c_str()));
    hold->invalidate(changed);
  }
  EXPECT_EQ(stat_of(outputs() / "one").st_nlink, 2u);
  EXPECT_EQ(stat_of(outputs() / "two").st_nlink, 1u);
}

}  // namespace
}  // namespace okcvm::test
