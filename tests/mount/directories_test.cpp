#include <dirent.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "tests/support/loop_disk.h"
#include "tests/support/mounted_session.h"

namespace okcvm::test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

using Stream = std::unique_ptr<DIR, int (*)(DIR*)>;

class Directories : public MountedSession {
 protected:
  static Stream open_stream(const fs::path& path) { return {::opendir(path.c_str()), ::closedir}; }

  fs::path filled(int count) {
    const auto here = shared_in_session();
    const auto directory = open_file(here, O_RDONLY | O_DIRECTORY);
    for (int i = 0; i < count; ++i)
      EXPECT_OK(::mknodat(directory.get(), ("f" + std::to_string(i)).c_str(), S_IFREG | 0644, 0));
    return here;
  }
};

TEST_F(Directories, DotAndDotDotHaveTheNumbersThatStatTells) {
  fs::create_directories(outputs() / "a/b");
  for (const auto& here : {mount(), outputs(), outputs() / "a", outputs() / "a/b", temp(), skills()}) {
    const auto stream = open_stream(here);
    ASSERT_TRUE(stream) << here;
    int seen = 0;
    while (const dirent* row = ::readdir(stream.get())) {
      const std::string name(row->d_name);
      if (name == ".." && here == mount()) continue;
      EXPECT_EQ(row->d_ino, stat_of(here / name).st_ino) << here / name;
      ++seen;
    }
    EXPECT_GE(seen, here == mount() ? 1 : 2) << here;
  }
}

TEST_F(Directories, DotDotIsTheDirectoryThatItsOwnWasMovedTo) {
  const auto one = outputs() / "one", two = outputs() / "two";
  fs::create_directories(one / "moved");
  fs::create_directories(two / "other");
  const auto listed_parent = [](const fs::path& here) {
    const auto stream = open_stream(here);
    ino_t parent = 0;
    while (const dirent* row = ::readdir(stream.get()))  // to its end: else the kernel keeps none
      if (std::string_view(row->d_name) == "..") parent = row->d_ino;
    return parent;
  };
  const auto is_listed_in = [&](const fs::path& here) {
    return listed_parent(here) == stat_of(here.parent_path()).st_ino;
  };
  for (int i = 0; i < 500; ++i) {
    SCOPED_TRACE(i);
    EXPECT_TRUE(is_listed_in(one / "moved"));
    EXPECT_TRUE(is_listed_in(two / "other"));
    ASSERT_OK(::rename((one / "moved").c_str(), (two / "moved").c_str()));
    EXPECT_TRUE(is_listed_in(two / "moved"));
    fs::create_directory(one / "third");
    EXPECT_TRUE(is_listed_in(one / "third"));
    ASSERT_OK(
        ::renameat2(AT_FDCWD, (one / "third").c_str(), AT_FDCWD, (two / "other").c_str(), RENAME_EXCHANGE));
    EXPECT_TRUE(is_listed_in(one / "third"));
    EXPECT_TRUE(is_listed_in(two / "other"));
    fs::remove(one / "third");
    ASSERT_OK(::rename((two / "moved").c_str(), (one / "moved").c_str()));
  }
}

TEST_F(Directories, ThousandsOfEntriesAreListedOnceEach) {
  constexpr int kCount = 5000;
  const auto here = filled(kCount);
  for (int round = 0; round < 2; ++round) {  // from the driver, then from the kernel's cache
    const auto names = list(here);
    EXPECT_EQ(names.size(), static_cast<std::size_t>(kCount));
    EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), static_cast<std::size_t>(kCount));
  }
  EXPECT_EQ(run_script("find . -type f -printf '%s\\n' | wc -l", here).output, "5000\n");
}

TEST_F(Directories, NamesOfAllLengthsAreListedWhateverTheRoom) {
  for (const std::size_t room : {280U, 700U, 4096U, 5000U, 32'768U, 200'000U}) {
    const auto here = outputs() / ("room" + std::to_string(room));  // not yet in the kernel's cache
    fs::create_directory(here);
    std::multiset<std::string> made{".", ".."};
    for (std::size_t length = 1; length <= 255; ++length) {
      made.emplace(length, 'n');
      write(here / std::string(length, 'n'), "");
    }
    const auto directory = open_file(here, O_RDONLY | O_DIRECTORY);
    std::multiset<std::string> listed;
    std::vector<char> buffer(room);
    for (;;) {
      const long size = ::syscall(SYS_getdents64, directory.get(), buffer.data(), buffer.size());
      ASSERT_GE(size, 0) << std::strerror(errno) << ", room " << room;
      if (size == 0) break;
      for (long at = 0; at < size;) {
        const auto* row = reinterpret_cast<const dirent64*>(buffer.data() + at);
        listed.emplace(row->d_name);
        at += row->d_reclen;
      }
    }
    EXPECT_EQ(listed, made) << "room " << room;
  }
}

/// If the daemon dies with the answer, the next one must know every reference in it.
TEST_F(Directories, OfManyNamesOnlySoManyAreListedAtOnceAsCanBeNoted) {
  constexpr std::size_t kMany = 3000, kMostAtOnce = 513 + 2;
  fs::create_directory(outputs() / "many");
  for (std::size_t i = 0; i < kMany; ++i) write(outputs() / "many" / std::to_string(i), "");
  session().unmount();
  session().remount();
  const auto directory = open_file(outputs() / "many", O_RDONLY | O_DIRECTORY);
  std::vector<char> buffer(1 << 20);
  std::set<std::string> listed;
  while (const long size = ::syscall(SYS_getdents64, directory.get(), buffer.data(), buffer.size())) {
    ASSERT_GT(size, 0) << std::strerror(errno);
    const auto before = listed.size();
    for (long at = 0; at < size;) {
      const auto* row = reinterpret_cast<const dirent64*>(buffer.data() + at);
      listed.emplace(row->d_name);
      at += row->d_reclen;
    }
    if (before == 0) {
      EXPECT_LE(listed.size(), kMostAtOnce);
    }
  }
  EXPECT_EQ(listed.size(), kMany + 2);
}

TEST_F(Directories, TypesAndInodesAgreeWithStat) {
  const auto here = shared_in_session();
  write(here / "file", "x");
  fs::create_directory(here / "directory");
  fs::create_symlink("file", here / "link");
  ::mkfifo((here / "pipe").c_str(), 0644);
  const auto stream = open_stream(here);
  std::set<std::string> seen;
  while (const dirent* entry = ::readdir(stream.get())) {
    seen.insert(entry->d_name);
    if (std::string_view(entry->d_name) == "..") continue;
    struct stat found {};
    ASSERT_OK(::fstatat(::dirfd(stream.get()), entry->d_name, &found, AT_SYMLINK_NOFOLLOW));
    EXPECT_EQ(entry->d_type, IFTODT(found.st_mode)) << entry->d_name;
    EXPECT_EQ(entry->d_ino, found.st_ino) << entry->d_name;
  }
  EXPECT_THAT(seen, ElementsAre(".", "..", "directory", "file", "link", "pipe"));
}

TEST_F(Directories, PositionsCanBeToldAndGoneBackTo) {
  const auto here = filled(1000);
  const auto stream = open_stream(here);
  std::vector<std::pair<long, std::string>> positions;
  for (;;) {
    const long at = ::telldir(stream.get());
    const dirent* entry = ::readdir(stream.get());
    if (!entry) break;
    positions.emplace_back(at, entry->d_name);
  }
  ASSERT_EQ(positions.size(), 1002u);
  for (const std::size_t index : {500U, 0U, 1001U, 1U, 999U, 250U}) {
    ::seekdir(stream.get(), positions[index].first);
    const dirent* entry = ::readdir(stream.get());
    ASSERT_NE(entry, nullptr) << index;
    EXPECT_EQ(entry->d_name, positions[index].second) << index;
  }
  ::rewinddir(stream.get());
  int count = 0;
  while (::readdir(stream.get())) ++count;
  EXPECT_EQ(count, 1002);
}

TEST_F(Directories, ARewoundStreamShowsWhatCameAndWent) {
  const auto here = filled(10);
  const auto stream = open_stream(here);
  while (::readdir(stream.get())) {
  }
  write(here / "came", "x");
  EXPECT_OK(::unlink((here / "f3").c_str()));
  ::rewinddir(stream.get());
  std::set<std::string> names;
  while (const dirent* entry = ::readdir(stream.get())) names.insert(entry->d_name);
  EXPECT_TRUE(names.contains("came"));
  EXPECT_FALSE(names.contains("f3"));
}

TEST_F(Directories, ListingsFollowEveryChangeAtOnce) {
  const auto here = shared_in_session();
  EXPECT_THAT(list(here), ElementsAre());
  write(here / "a", "x");
  EXPECT_THAT(list(here), ElementsAre("a"));
  EXPECT_OK(::rename((here / "a").c_str(), (here / "b").c_str()));
  EXPECT_THAT(list(here), ElementsAre("b"));
  EXPECT_OK(::link((here / "b").c_str(), (here / "c").c_str()));
  EXPECT_THAT(list(here), ElementsAre("b", "c"));
  EXPECT_OK(::rename((here / "b").c_str(), (temp() / "b").c_str()));
  EXPECT_THAT(list(here), ElementsAre("c"));
  EXPECT_THAT(list(temp()), ElementsAre("b"));
  EXPECT_OK(::unlink((here / "c").c_str()));
  EXPECT_THAT(list(here), ElementsAre());
  EXPECT_OK(::mkdir((here / "d").c_str(), 0755));
  EXPECT_THAT(list(here), ElementsAre("d"));
  EXPECT_OK(::symlink("d", (here / "e").c_str()));
  EXPECT_THAT(list(here), ElementsAre("d", "e"));
}

/// A listing that changed by one name: what the kernel has of the others it keeps, and what became of them
/// meanwhile shows.
TEST_F(Directories, ListedAgainAllAttributesAreRight) {
  expect_as_native([](const fs::path& here, std::ostream& log) {
    constexpr int kFiles = 300;
    const auto look = [&] {
      log << list(here).size() << ":";
      for (int i = 0; i < kFiles; ++i) {
        struct stat status {};
        const bool there = ::lstat((here / std::to_string(i)).c_str(), &status) == 0;
        if (there)
          log << " " << status.st_size << "/" << std::oct << status.st_mode << std::dec << "/"
              << status.st_nlink;
        log << (there ? "" : " -");
      }
      log << "\n";
    };
    for (int i = 0; i < kFiles; ++i) write(here / std::to_string(i), std::string(i, 'x'));
    look();
    write(here / "another", "x");
    look();
    write(here / "7", "longer than before");
    EXPECT_OK(::truncate((here / "8").c_str(), 88));
    EXPECT_OK(::chmod((here / "9").c_str(), 0600));
    EXPECT_OK(::link((here / "10").c_str(), (here / "ten").c_str()));
    EXPECT_OK(::rename((here / "11").c_str(), (here / "12").c_str()));
    EXPECT_OK(::unlink((here / "13").c_str()));
    EXPECT_OK(::symlink("14", (here / "link").c_str()));
    look();
    EXPECT_OK(::unlink((here / "ten").c_str()));
    write(here / "13", "again");
    look();
  });
}

/// After a file was read the kernel asks for its access time again. Where many were, the listing brings it.
TEST_F(Directories, FilesThatWereReadGetTheirAttributesWithTheListing) {
  if (!session().driver().statistics().passthrough) GTEST_SKIP() << "the kernel keeps what it read";
  constexpr std::uint64_t kFiles = 200;
  const auto here = filled(kFiles);
  const auto file = [&](std::uint64_t i) { return here / ("f" + std::to_string(i)); };
  std::uint64_t asked_for_all = kFiles;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  for (std::uint64_t i = 0; i < kFiles; ++i) write(file(i), "text");
  // The kernel is told from another thread, which may be late.
  while (asked_for_all > kFiles / 10 && std::chrono::steady_clock::now() < deadline) {
    EXPECT_EQ(list(here).size(), kFiles);
    for (std::uint64_t i = 0; i < kFiles; ++i) EXPECT_EQ(read(file(i)), "text");
    EXPECT_EQ(list(here).size(), kFiles);
    const auto before = count_of("GETATTR");
    for (std::uint64_t i = 0; i < kFiles; ++i) EXPECT_EQ(stat_of(file(i)).st_size, 4);
    asked_for_all = count_of("GETATTR") - before;
  }
  EXPECT_LE(asked_for_all, kFiles / 10);
}

/// Nor does the listing come anew for a program that only reads. Who then asks for the attributes of one file
/// gets the others of all folders with their listings.
TEST_F(Directories, FilesThatWereReadAreNotListedAgainForWhoAsksForNoAttributes) {
  if (!session().driver().statistics().passthrough) GTEST_SKIP() << "the kernel keeps what it read";
  constexpr std::uint64_t kFiles = 200;
  const auto here = shared_in_session();
  const auto file = [&](const char* folder, std::uint64_t i) { return here / folder / std::to_string(i); };
  for (const char* folder : {"a", "b"}) {
    EXPECT_OK(::mkdir((here / folder).c_str(), 0755));
    for (std::uint64_t i = 0; i < kFiles; ++i) write(file(folder, i), "text");
  }
  const auto read_all = [&] {
    for (const char* folder : {"a", "b"}) {
      EXPECT_EQ(list(here / folder).size(), kFiles);
      for (std::uint64_t i = 0; i < kFiles; ++i) {
        std::array<char, 8> text{};
        EXPECT_EQ(::read(open_file(file(folder, i), O_RDONLY).get(), text.data(), text.size()), 4);
      }
    }
  };
  for (int i = 0; i < 5; ++i) read_all();
  const auto listed = count_of("READDIRPLUS");
  for (int i = 0; i < 5; ++i) read_all();
  EXPECT_EQ(count_of("READDIRPLUS"), listed);

  EXPECT_EQ(stat_of(file("a", 0)).st_size, 4);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (count_of("READDIRPLUS") == listed && std::chrono::steady_clock::now() < deadline)
    EXPECT_EQ(list(here / "b").size(), kFiles);
  const auto asked = count_of("GETATTR");
  for (std::uint64_t i = 0; i < kFiles; ++i) EXPECT_EQ(stat_of(file("b", i)).st_size, 4);
  EXPECT_LE(count_of("GETATTR") - asked, kFiles / 10);
}

/// Once something was made in a folder, the kernel has to be given its attributes again. Listings bring them
/// from when somebody asked for those of one that was listed.
TEST_F(Directories, FoldersThatChangedGetTheirAttributesWithTheListing) {
  constexpr std::uint64_t kFolders = 100;
  const auto here = shared_in_session();
  const auto folder = [&](std::uint64_t i) { return here / ("d" + std::to_string(i)); };
  for (std::uint64_t i = 0; i < kFolders; ++i) {
    EXPECT_OK(::mkdir(folder(i).c_str(), 0755));
    EXPECT_EQ(stat_of(folder(i)).st_nlink, 2u);
    EXPECT_OK(::mkdir((folder(i) / "below").c_str(), 0755));
  }
  EXPECT_EQ(list(here).size(), kFolders);
  auto before = count_of("GETATTR");
  EXPECT_EQ(stat_of(folder(0)).st_nlink, 3u);
  EXPECT_EQ(count_of("GETATTR") - before, 1u) << "nobody had asked, so none should have been looked up";

  EXPECT_OK(::mkdir((here / "another").c_str(), 0755));
  EXPECT_EQ(list(here).size(), kFolders + 1);
  before = count_of("GETATTR");
  for (std::uint64_t i = 0; i < kFolders; ++i) EXPECT_EQ(stat_of(folder(i)).st_nlink, 3u);
  EXPECT_LE(count_of("GETATTR") - before, kFolders / 10);
}

/// A listing of which the kernel forgot a part while it came in would never be kept again.
TEST_F(Directories, AListingIsKeptThoughFilesWereReadWhileItCameIn) {
  constexpr int kFiles = 3000;
  const auto here = filled(kFiles);
  for (int round = 0; round < 5; ++round) {
    write(here / "f0", "another listing");
    EXPECT_OK(::unlink((here / "f0").c_str()));
    write(here / "f0", "x");
    const auto stream = open_stream(here);
    for (int i = 0; i < kFiles / 2; ++i) {
      ASSERT_NE(::readdir(stream.get()), nullptr);
      read(here / ("f" + std::to_string(i)));
    }
    while (::readdir(stream.get())) {
    }
    EXPECT_EQ(list(here).size(), static_cast<std::size_t>(kFiles));
    EXPECT_EQ(list(here).size(), static_cast<std::size_t>(kFiles));
    const auto before = count_of("READDIRPLUS");
    EXPECT_EQ(list(here).size(), static_cast<std::size_t>(kFiles));
    EXPECT_EQ(count_of("READDIRPLUS"), before) << "round " << round;
  }
}

TEST_F(Directories, AListingUnderChangesMissesNothingThatStays) {
  constexpr int kStay = 3000;
  const auto here = filled(kStay);
  std::atomic<bool> done{false};
  std::vector<std::thread> changers;
  for (int i = 0; i < 2; ++i)
    changers.emplace_back([&, i] {
      for (int n = 0; !done; ++n) {
        const auto name = here / ("t" + std::to_string(i) + "-" + std::to_string(n % 500));
        FileDescriptor(::open(name.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
        ::unlink((here / ("t" + std::to_string(i) + "-" + std::to_string((n + 250) % 500))).c_str());
      }
    });
  for (int round = 0; round < 10; ++round) {
    const auto stream = open_stream(here);
    std::map<std::string, int> seen;
    while (const dirent* entry = ::readdir(stream.get())) ++seen[entry->d_name];
    int missing = 0, doubled = 0;
    for (int i = 0; i < kStay; ++i) {
      const int count = seen["f" + std::to_string(i)];
      missing += count == 0;
      doubled += count > 1;
    }
    EXPECT_EQ(missing, 0);
    EXPECT_EQ(doubled, 0);
  }
  done = true;
  for (auto& changer : changers) changer.join();
}

// What was read of a listing before counts: the rest is to be told like a removed directory's.
TEST_F(Directories, AListingOfADirectoryThatTheHostRemovedEndsAsNative) {
  const ScratchDirectory host("workdir");
  start_with(
      [&](fusefs::MountConfig& config) { config.workdir = open_file(host.path(), O_RDONLY | O_DIRECTORY); });
  expect_as_native([&](const fs::path& here, std::ostream& log) {
    const bool is_session = here.string().starts_with(mount().string());
    const auto real = is_session ? host / "d" : here / "d";
    fs::create_directory(real);
    for (int i = 0; i < 300; ++i) write(real / std::to_string(i), "x");
    const auto seen = open_file(is_session ? mount() / "workdir/d" : real, O_RDONLY | O_DIRECTORY);
    std::array<char, 512> rows{};
    log << (::syscall(SYS_getdents64, seen.get(), rows.data(), rows.size()) > 0);
    fs::remove_all(real);
    long size = 0;
    do size = ::syscall(SYS_getdents64, seen.get(), rows.data(), rows.size());
    while (size > 0);
    log << errno_name(size < 0 ? errno : 0);
  });
}

/// A session whose files lie on btrfs, which lists names in the order in which they were made.
class BtrfsDirectories : public Directories {
 protected:
  void SetUp() override {
    Directories::SetUp();
    if (IsSkipped()) return;
    std::string why_not;
    start_with([&](fusefs::MountConfig& config) {
      const auto place = config.workspace.parent_path();
      why_not = disk_.mount_at(place);
      ::chmod(place.c_str(), 0755);
    });
    if (!why_not.empty()) GTEST_SKIP() << why_not;
  }

 private:
  LoopDisk disk_{"btrfs", "256M"};
};

TEST_F(BtrfsDirectories, AProgramThatRenamesWhatItListsComesToAnEnd) {
  constexpr int kCount = 3000;
  const auto here = filled(kCount);
  const auto stream = open_stream(here);
  const int directory = ::dirfd(stream.get());
  int listed = 0;
  while (const dirent* row = ::readdir(stream.get())) {
    if (row->d_name[0] != 'f') continue;
    ASSERT_LE(++listed, kCount);
    EXPECT_OK(::renameat(directory, row->d_name, directory, "moving"));
    EXPECT_OK(::renameat(directory, "moving", directory, row->d_name));
  }
  EXPECT_EQ(listed, kCount);
}

// Two streams go on in turn, and one was begun before a name came.
TEST_F(BtrfsDirectories, AListingShowsWhatWasThereWhenItBegan) {
  constexpr int kCount = 3000;
  const auto here = filled(kCount);
  const auto abandoned = open_stream(here);
  ASSERT_TRUE(::readdir(abandoned.get()));
  write(here / "came", "x");
  const auto names_of = [&](const Stream& stream) {
    std::set<std::string> names;
    while (const dirent* row = ::readdir(stream.get())) {
      EXPECT_TRUE(names.insert(row->d_name).second) << row->d_name;
      ::readdir(abandoned.get());
    }
    return names;
  };
  const auto names = names_of(open_stream(here));
  EXPECT_TRUE(names.contains("came"));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kCount) + 3);
}

TEST_F(Directories, RemovingWhileListingRemovesAll) {
  const auto here = filled(2000);
  const auto stream = open_stream(here);
  while (const dirent* entry = ::readdir(stream.get()))
    if (entry->d_name[0] == 'f') {
      EXPECT_OK(::unlinkat(::dirfd(stream.get()), entry->d_name, 0));
    }
  EXPECT_THAT(list(here), ElementsAre());
  EXPECT_OK(::rmdir(here.c_str()));
}

TEST_F(Directories, LinkCountsCountSubdirectories) {
  expect_as_native([](const fs::path& here, std::ostream& log) {
    log << stat_of(here).st_nlink;
    for (const char* name : {"a", "b", "c"}) ::mkdir((here / name).c_str(), 0755);
    log << stat_of(here).st_nlink;
    ::rmdir((here / "a").c_str());
    ::rename((here / "b").c_str(), (here / "c/b").c_str());
    log << stat_of(here).st_nlink << stat_of(here / "c").st_nlink << ANSWER_OF(::rmdir((here / "c").c_str()));
  });
}

TEST_F(Directories, ARemovedOneThatIsOpenStaysOfUse) {
  expect_as_native([](const fs::path& here, std::ostream& log) {
    ::mkdir((here / "d").c_str(), 0755);
    const auto open = open_file(here / "d", O_RDONLY | O_DIRECTORY);
    ::rmdir((here / "d").c_str());
    struct stat status {};
    log << ANSWER_OF(::fsync(open.get())) << ANSWER_OF(::fdatasync(open.get()))
        << ANSWER_OF(::fchmod(open.get(), 0700)) << ANSWER_OF(::futimens(open.get(), nullptr))
        << ANSWER_OF(::fsetxattr(open.get(), "user.a", "1", 1, 0)) << ANSWER_OF(::fstat(open.get(), &status))
        << std::oct << status.st_mode << ' ' << status.st_nlink << ANSWER_OF(::mkdirat(open.get(), "a", 0755))
        << ANSWER_OF(::openat(open.get(), ".", O_RDONLY)) << ANSWER_OF(::faccessat(open.get(), "a", F_OK, 0));
  });
}

TEST_F(Directories, TenThousandDirectoriesDoNotUseUpDescriptors) {
  const auto here = shared_in_session();
  const auto count_open = [] { return std::distance(fs::directory_iterator("/proc/self/fd"), {}); };
  const auto before = count_open();
  const auto top = open_file(here, O_RDONLY | O_DIRECTORY);
  for (int i = 0; i < 10'000; ++i) {
    const auto name = std::to_string(i);
    ASSERT_OK(::mkdirat(top.get(), name.c_str(), 0755));
    ASSERT_OK(::mknodat(top.get(), (name + "/file").c_str(), S_IFREG | 0644, 0));
  }
  EXPECT_LT(count_open(), before + 2000);
  EXPECT_EQ(run_script("find . -type f | wc -l", here).output, "10000\n");
  EXPECT_LT(count_open(), before + 2000);
  EXPECT_EQ(run_script("rm -rf shared && ls | wc -l", outputs()).output, "0\n");
}

}  // namespace
}  // namespace okcvm::test
