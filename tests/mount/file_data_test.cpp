#include <fcntl.h>
#include <gmock/gmock.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "tests/support/mounted_session.h"

namespace okcvm::test {
namespace {

namespace fs = std::filesystem;

using FileData = MountedSession;

/// A shared or private mapping of a whole file.
class Mapping final {
 public:
  Mapping(const FileDescriptor& file, std::size_t size, int protection, int flags)
      : memory_(::mmap(nullptr, size, protection, flags, file.get(), 0)), size_(size) {
    EXPECT_NE(memory_, MAP_FAILED) << errno_name(errno);
  }
  ~Mapping() {
    // By munmap(2) the kernel would wait for the driver with a lock that the driver may need here, where it
    // is in the same process.
    ::msync(memory_, size_, MS_SYNC);
    ::munmap(memory_, size_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  char* data() const { return static_cast<char*>(memory_); }
  std::string text(std::size_t at, std::size_t count) const { return {data() + at, count}; }
  void put(std::size_t at, std::string_view bytes) const {
    std::memcpy(data() + at, bytes.data(), bytes.size());
  }

 private:
  void* memory_;
  std::size_t size_;
};

TEST_F(FileData, BigFilesComeBackByteForByte) {
  const auto bytes = pattern(9'000'001);
  write(outputs() / "big", bytes);
  EXPECT_TRUE(read(outputs() / "big") == bytes);
  EXPECT_TRUE(read(session().workspace() / "outputs/big") == bytes);
  const auto file = open_file(outputs() / "big", O_RDWR);
  EXPECT_OK(::pwrite(file.get(), "middle", 6, 4'500'000));
  auto changed = bytes;
  changed.replace(4'500'000, 6, "middle");
  EXPECT_TRUE(read(outputs() / "big") == changed);
}

TEST_F(FileData, VectoredAndPositionedCallsAnswerAsNative) {
  expect_as_native([](const fs::path& here, std::ostream& log) {
    const auto file = open_file(here / "f", O_CREAT | O_RDWR);
    char byte = 0;
    log << ::pwrite(file.get(), "abc", 3, 10) << ::pread(file.get(), &byte, 1, 9) << int{byte}
        << ::pread(file.get(), &byte, 1, 13) << ANSWER_OF(::pread(file.get(), &byte, 1, -1))
        << ANSWER_OF(::pwrite(file.get(), "x", 1, -1)) << ANSWER_OF(::lseek(file.get(), -1, SEEK_SET))
        << ANSWER_OF(::ftruncate(file.get(), -1)) << ::lseek(file.get(), -2, SEEK_END)
        << ::write(file.get(), "ZZZ", 3) << stat_of(file).st_size << read(file) << ::write(file.get(), "", 0)
        << ANSWER_OF(::write(open_file(here / "f", O_RDONLY).get(), "x", 1));
  });
}

TEST_F(FileData, SpaceIsAllocatedPunchedAndZeroedAsNative) {
  expect_as_native([](const fs::path& here, std::ostream& log) {
    constexpr int kModes[] = {0,
                              FALLOC_FL_KEEP_SIZE,
                              FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                              FALLOC_FL_PUNCH_HOLE,
                              FALLOC_FL_ZERO_RANGE,
                              FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE};
    for (const int mode : kModes) {
      const auto file = open_file(here / ("f" + std::to_string(mode)), O_CREAT | O_RDWR);
      write_all(file, pattern(20'000));
      log << mode << ": " << ANSWER_OF(::fallocate(file.get(), mode, 4096, 8192))
          << ANSWER_OF(::fallocate(file.get(), mode, 16'000, 50'000))
          << ANSWER_OF(::fallocate(file.get(), mode, 0, 0))
          << ANSWER_OF(::fallocate(file.get(), mode, -1, 10)) << stat_of(file).st_size << " "
          << std::hash<std::string>{}(read(file)) << "\n";
    }
    const auto read_only = open_file(here / "f0", O_RDONLY);
    log << ANSWER_OF(::fallocate(read_only.get(), 0, 0, 10));
  });
}

TEST_F(FileData, OtherWaysToMoveSpaceAreRefusedCleanly) {
  const auto file = open_file(outputs() / "f", O_CREAT | O_RDWR);
  write_all(file, pattern(20'480));
  EXPECT_ERRNO(EOPNOTSUPP, ::fallocate(file.get(), FALLOC_FL_COLLAPSE_RANGE, 4096, 4096));
  EXPECT_ERRNO(EOPNOTSUPP, ::fallocate(file.get(), FALLOC_FL_INSERT_RANGE, 4096, 4096));
  EXPECT_EQ(read(file), pattern(20'480));
}

TEST_F(FileData, HolesAreFoundWhereTheBackingHasThem) {
  expect_as_native([](const fs::path& here, std::ostream& log) {
    const auto file = open_file(here / "f", O_CREAT | O_RDWR);
    ::pwrite(file.get(), "data", 4, 1 << 20);
    ::ftruncate(file.get(), 4 << 20);
    for (const off_t from : {0, 1 << 20, (1 << 20) + 4096, 3 << 20, 4 << 20, 5 << 20}) {
      const auto data = ::lseek(file.get(), from, SEEK_DATA);
      log << from << " data " << (data < 0 ? errno_name(errno) : std::to_string(data));
      const auto hole = ::lseek(file.get(), from, SEEK_HOLE);
      log << " hole " << (hole < 0 ? errno_name(errno) : std::to_string(hole)) << "\n";
    }
  });
}

TEST_F(FileData, WhatWasStoredThroughAMappingIsNoHole) {
  constexpr std::size_t kSize = 4 << 20, kAt = 1 << 20;
  const auto file = open_file(outputs() / "f", O_CREAT | O_RDWR);
  ASSERT_OK(::ftruncate(file.get(), kSize));
  const Mapping mapping(file, kSize, PROT_READ | PROT_WRITE, MAP_SHARED);
  mapping.put(kAt, "stored");
  EXPECT_GT(stat_of(file).st_blocks, 0);  // without any, tar does not even look
  EXPECT_EQ(::lseek(file.get(), 0, SEEK_DATA), static_cast<off_t>(kAt));
  EXPECT_EQ(::lseek(file.get(), kAt, SEEK_HOLE), static_cast<off_t>(kAt + 4096));
  mapping.put(kAt + 4096, "more");
  EXPECT_EQ(::lseek(file.get(), kAt, SEEK_HOLE), static_cast<off_t>(kAt + 8192));
  EXPECT_EQ(read(open_file(outputs() / "f", O_RDONLY)).substr(kAt, 6), "stored");
}

TEST_F(FileData, AHoleHasNoBlocksOnceNobodyCanStoreInIt) {
  const auto path = outputs() / "f";
  auto file = open_file(path, O_CREAT | O_RDWR);
  ASSERT_OK(::ftruncate(file.get(), 1 << 20));
  stat_of(path);
  const auto releases = count_of("RELEASE");
  file.reset();
  while (count_of("RELEASE") == releases) std::this_thread::yield();
  EXPECT_EQ(stat_of(path).st_blocks, 0);
}

TEST_F(FileData, WhatWasStoredThroughAMappingIsReadByPath) {
  const auto file = open_file(outputs() / "f", O_CREAT | O_RDWR);
  ASSERT_OK(::ftruncate(file.get(), 8192));
  const Mapping mapping(file, 8192, PROT_READ | PROT_WRITE, MAP_SHARED);
  for (const char* const stored : {"first", "later"}) {
    mapping.put(4096, stored);
    EXPECT_EQ(read(value_of(session().files().open({}, *RelPath::parse("outputs/f"))).file).substr(4096, 5),
              stored);
  }
}

/// As lock files and those of mkstemp(3) are made.
TEST_F(FileData, AFileThatIsMadeToBeReadAsWellIsNotAskedForAsItIsOpened) {
  constexpr int kFiles = 200;
  const auto asked_for = [&](int flags) {
    const auto before = count_of("GETATTR");
    for (int i = 0; i < kFiles; ++i)
      open_file(outputs() / (std::to_string(flags) + "." + std::to_string(i)), O_CREAT | O_EXCL | flags);
    return count_of("GETATTR") - before;
  };
  EXPECT_LE(asked_for(O_RDWR), asked_for(O_WRONLY) + kFiles / 2) << "a tick of the clock may come between";
  const auto file = open_file(outputs() / "f", O_CREAT | O_RDWR);
  ASSERT_OK(::ftruncate(file.get(), 4096));
  EXPECT_EQ(stat_of(outputs() / "f").st_size, 4096);
}

/// As databases do before each query, and the kernel would otherwise ask us each time.
TEST_F(FileData, TheSizeOfAFileOpenForWritingIsNotAskedForEachTime) {
  const auto file = open_file(outputs() / "f", O_CREAT | O_RDWR);
  write_all(file, "bytes");
  const auto before = count_of("GETATTR");
  for (int i = 0; i < 2000; ++i) EXPECT_EQ(::lseek(file.get(), 0, SEEK_END), 5);
  EXPECT_LT(count_of("GETATTR") - before, 1000u);
  EXPECT_OK(::pwrite(file.get(), "+", 1, 5));
  EXPECT_EQ(::lseek(file.get(), 0, SEEK_END), 6);
}

TEST_F(FileData, RangesAreCopiedWithinAndBetweenFiles) {
  expect_as_native([](const fs::path& here, std::ostream& log) {
    const auto from = open_file(here / "from", O_CREAT | O_RDWR);
    const auto to = open_file(here / "to", O_CREAT | O_RDWR);
    write_all(from, pattern(300'000));
    const auto copy = [&](const FileDescriptor& source, loff_t at, const FileDescriptor& target, loff_t put,
                          std::size_t size) {
      std::size_t done = 0;
      while (done < size) {
        const auto count = ::copy_file_range(source.get(), &at, target.get(), &put, size - done, 0);
        if (count < 0) log << errno_name(errno) << " ";
        if (count <= 0) break;
        done += static_cast<std::size_t>(count);
      }
      log << done << " " << stat_of(target).st_size << " " << std::hash<std::string>{}(read(target)) << "\n";
    };
    copy(from, 0, to, 0, 300'000);
    copy(from, 100, to, 500'000, 1000);
    copy(from, 299'999, to, 0, 1000);
    copy(from, 400'000, to, 0, 1000);
    copy(from, 0, from, 1'000'000, 4096);
    copy(from, 0, from, 10, 4096);
    const auto read_only = open_file(here / "to", O_RDONLY);
    copy(from, 0, read_only, 0, 10);
    off_t at = 5;
    log << ::sendfile(to.get(), from.get(), &at, 70'000) << std::hash<std::string>{}(read(to));
  });
}

TEST_F(FileData, SharedMappingsAndCallsSeeEachOther) {
  const auto path = outputs() / "mapped";
  const auto file = open_file(path, O_CREAT | O_RDWR);
  EXPECT_OK(::ftruncate(file.get(), 10'000));
  const Mapping map(file, 10'000, PROT_READ | PROT_WRITE, MAP_SHARED);
  map.put(5000, "through the mapping");
  EXPECT_EQ(read(path).substr(5000, 19), "through the mapping");
  EXPECT_OK(::pwrite(file.get(), "through a call", 14, 100));
  EXPECT_EQ(map.text(100, 14), "through a call");
  const auto other = open_file(path, O_RDWR);
  EXPECT_OK(::pwrite(other.get(), "other", 5, 200));
  EXPECT_EQ(map.text(200, 5), "other");
  EXPECT_OK(::msync(map.data(), 10'000, MS_SYNC));
  EXPECT_EQ(read(session().workspace() / "outputs/mapped").substr(5000, 19), "through the mapping");
}

TEST_F(FileData, SharedMappingsReachOtherProcesses) {
  const auto path = outputs() / "mapped";
  write(path, std::string(8192, '.'));
  ChildProcess child([&](ChildProcess& self) {
    const auto file = open_file(path, O_RDWR);
    const Mapping map(file, 8192, PROT_READ | PROT_WRITE, MAP_SHARED);
    self.wait();
    if (map.text(0, 6) != "parent") return 1;
    map.put(4096, "child");
    self.signal();
    self.wait();
    return map.text(6, 5) == "again" ? 0 : 2;
  });
  const auto file = open_file(path, O_RDWR);
  const Mapping map(file, 8192, PROT_READ | PROT_WRITE, MAP_SHARED);
  map.put(0, "parent");
  child.signal();
  ASSERT_TRUE(child.wait());
  EXPECT_EQ(map.text(4096, 5), "child");
  map.put(6, "again");
  child.signal();
  EXPECT_EQ(child.join(), 0);
  EXPECT_EQ(read(path).substr(4096, 5), "child");
}

TEST_F(FileData, PrivateMappingsKeepTheirChanges) {
  const auto path = outputs() / "mapped";
  write(path, std::string(8192, '.'));
  const auto file = open_file(path, O_RDONLY);
  const Mapping map(file, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE);
  map.put(0, "mine");
  EXPECT_EQ(map.text(0, 4), "mine");
  EXPECT_EQ(read(path), std::string(8192, '.'));
}

TEST_F(FileData, AMappingOutlivesItsDescriptorAndItsName) {
  const auto path = outputs() / "mapped";
  auto file = open_file(path, O_CREAT | O_RDWR);
  EXPECT_OK(::ftruncate(file.get(), 8192));
  const Mapping map(file, 8192, PROT_READ | PROT_WRITE, MAP_SHARED);
  EXPECT_OK(::link(path.c_str(), (outputs() / "second").c_str()));
  file.reset();
  map.put(0, "after close");
  EXPECT_EQ(read(path).substr(0, 11), "after close");
  EXPECT_OK(::unlink(path.c_str()));
  map.put(20, "after unlink");
  EXPECT_OK(::msync(map.data(), 8192, MS_SYNC));
  EXPECT_EQ(read(outputs() / "second").substr(20, 12), "after unlink");
}

void set_time_back(const fs::path& path) {
  const timespec past[2] = {{1000, 0}, {1000, 0}};
  EXPECT_OK(::utimensat(AT_FDCWD, path.c_str(), past, 0));
  EXPECT_EQ(stat_of(path).st_mtim.tv_sec, 1000);
}

/// Whether a store to a page of `mapping` that was not stored to before moves the file's modification time,
/// as statx(2) tells it when that alone is asked for (ls(1) does).
bool store_moves_time(const Mapping& mapping, std::size_t page, const fs::path& path) {
  mapping.put(page * 4096, "stored");
  EXPECT_OK(::msync(mapping.data(), (page + 1) * 4096, MS_SYNC));
  struct statx status {};
  EXPECT_OK(::statx(AT_FDCWD, path.c_str(), 0, STATX_MTIME, &status));
  return status.stx_mtime.tv_sec != 1000;
}

TEST_F(FileData, StoresThroughAMappingMoveTheTimesAlsoAfterTheClose) {
  const auto path = outputs() / "file";
  const auto second = outputs() / "second";
  write(path, "");
  ASSERT_OK(::truncate(path.c_str(), 4 * 4096));
  EXPECT_EQ(stat_of(path).st_blocks, 0);
  set_time_back(path);
  auto file = open_file(path, O_RDWR);
  {
    const Mapping mapping(file, 4 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED);
    EXPECT_TRUE(store_moves_time(mapping, 0, path));
    file.reset();
    set_time_back(path);
    EXPECT_TRUE(store_moves_time(mapping, 1, path));
    EXPECT_GE(stat_of(path).st_blocks, 16);
    EXPECT_OK(::link(path.c_str(), second.c_str()));
    set_time_back(second);
    EXPECT_TRUE(store_moves_time(mapping, 2, second));
    EXPECT_OK(::unlink(second.c_str()));
    set_time_back(path);
    EXPECT_TRUE(store_moves_time(mapping, 3, path));
  }
  EXPECT_EQ(stat_of(path).st_mtim.tv_nsec, stat_of(session().workspace() / "outputs/file").st_mtim.tv_nsec);
  const auto before = count_of("GETATTR");
  for (int i = 0; i < 100; ++i) EXPECT_GE(stat_of(path).st_blocks, 32);
  EXPECT_LE(count_of("GETATTR") - before, 1u) << "they are kept again once nobody can store";
}

TEST_F(FileData, AFileThatIsEmptiedAsItIsOpenedStaysEmptyThoughStoresWereOnTheirWay) {
  constexpr std::size_t kSize = 4 << 20;
  for (const mode_t mode : {0644, 04755})  // data of set-id files is never passed through
    for (int round = 0; round < 30; ++round) {
      const auto path = outputs() / "file";
      write(path, "");
      ASSERT_OK(::chmod(path.c_str(), mode));
      const auto file = open_file(path, O_RDWR);
      ASSERT_OK(::ftruncate(file.get(), kSize));
      {
        const Mapping mapping(file, kSize, PROT_READ | PROT_WRITE, MAP_SHARED);
        std::memset(mapping.data(), 'x', kSize);
        ASSERT_OK(::sync_file_range(file.get(), 0, 0, SYNC_FILE_RANGE_WRITE));
        open_file(path, O_WRONLY | O_TRUNC);
      }
      ASSERT_OK(::fsync(file.get()));
      ASSERT_EQ(stat_of(session().workspace() / "outputs/file").st_size, 0)
          << round << std::oct << ' ' << mode;
      ASSERT_EQ(read(path), "");
      ASSERT_OK(::unlink(path.c_str()));
    }
}

TEST_F(FileData, ProgramsRunFromTheSession) {
  const auto tool = outputs() / "tool";
  ASSERT_EQ(run_script("cp /bin/echo tool && chmod +x tool", outputs()).exit_code, 0);
  const auto result = run({.arguments = {tool.string(), "hello"}});
  EXPECT_EQ(result.output, "hello\n");
  EXPECT_EQ(run({.arguments = {tool.string(), "hello"}, .user = kAlice}).output, "hello\n");
}

TEST_F(FileData, SyncCallsSucceed) {
  const auto file = open_file(outputs() / "f", O_CREAT | O_RDWR);
  write_all(file, "x");
  EXPECT_OK(::fsync(file.get()));
  EXPECT_OK(::fdatasync(file.get()));
  EXPECT_OK(::syncfs(file.get()));
  EXPECT_OK(::fsync(open_file(outputs(), O_RDONLY | O_DIRECTORY).get()));
  EXPECT_OK(::sync_file_range(file.get(), 0, 1, SYNC_FILE_RANGE_WRITE));
}

}  // namespace
}  // namespace okcvm::test
