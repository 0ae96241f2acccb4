#include <fcntl.h>
#include <gmock/gmock.h>
#include <linux/xattr.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/support/manifest.h"
#include "tests/support/mounted_session.h"

namespace okcvm::test {
namespace {

namespace fs = std::filesystem;

using Attributes = MountedSession;

std::string text_of(const timespec& time) {
  return std::to_string(time.tv_sec) + "." + std::to_string(time.tv_nsec);
}

/// As linux/posix_acl_xattr.h has it: owner, group and others.
std::string acl_of_mode(mode_t mode) {
  std::string acl("\2\0\0\0", 4);
  for (const auto& [tag, bits] : {std::pair{1, mode >> 6}, {4, mode >> 3}, {32, mode}})
    acl += {static_cast<char>(tag), 0, static_cast<char>(bits & 7), 0, '\xff', '\xff', '\xff', '\xff'};
  return acl;
}

TEST_F(Attributes, TimesAreKeptToTheNanosecond) {
  write(outputs() / "file", "x");
  fs::create_directory(outputs() / "d");
  fs::create_symlink("file", outputs() / "link");
  for (const char* name : {"file", "d", "link"}) {
    const timespec times[2] = {{1'234'567'890, 123'456'789}, {987'654'321, 987'654'321}};
    EXPECT_OK(::utimensat(AT_FDCWD, (outputs() / name).c_str(), times, AT_SYMLINK_NOFOLLOW));
    EXPECT_EQ(text_of(stat_of(outputs() / name).st_atim), "1234567890.123456789") << name;
    EXPECT_EQ(text_of(stat_of(outputs() / name).st_mtim), "987654321.987654321") << name;
    const auto stored = stat_of(session().workspace() / "outputs" / name);
    EXPECT_EQ(text_of(stored.st_mtim), "987654321.987654321") << name;
  }
}

TEST_F(Attributes, TimesCanBeLeftOrSetToNow) {
  write(outputs() / "file", "x");
  const auto file = outputs() / "file";
  const timespec old[2] = {{1, 1}, {2, 2}};
  const timespec omit_first[2] = {{0, UTIME_OMIT}, {5, 5}};
  const timespec now_second[2] = {{6, 6}, {0, UTIME_NOW}};
  const timespec neither[2] = {{0, UTIME_OMIT}, {0, UTIME_OMIT}};
  EXPECT_OK(::utimensat(AT_FDCWD, file.c_str(), old, 0));
  EXPECT_OK(::utimensat(AT_FDCWD, file.c_str(), omit_first, 0));
  EXPECT_EQ(text_of(stat_of(file).st_atim), "1.1");
  EXPECT_EQ(text_of(stat_of(file).st_mtim), "5.5");
  timespec before{};
  ::clock_gettime(CLOCK_REALTIME_COARSE, &before);
  EXPECT_OK(::utimensat(AT_FDCWD, file.c_str(), now_second, 0));
  EXPECT_EQ(text_of(stat_of(file).st_atim), "6.6");
  EXPECT_GE(stat_of(file).st_mtim.tv_sec, before.tv_sec);
  EXPECT_OK(::utimensat(AT_FDCWD, file.c_str(), old, 0));
  EXPECT_OK(::utimensat(AT_FDCWD, file.c_str(), neither, 0));
  EXPECT_EQ(text_of(stat_of(file).st_mtim), "2.2");
  const auto open = open_file(file, O_RDWR);
  EXPECT_OK(::futimens(open.get(), omit_first));
  EXPECT_EQ(text_of(stat_of(open).st_mtim), "5.5");
}

TEST_F(Attributes, OrdinaryUsersMaySetTheTimesNativeLetsThemSet) {
  expect_as_native([](const fs::path& here, std::ostream& log) {
    write(here / "writable", "x", 0666);
    ::chmod((here / "writable").c_str(), 0666);
    as_user(kBob, [&] {
      const timespec exact[2] = {{1, 1}, {2, 2}};
      const timespec now[2] = {{0, UTIME_NOW}, {0, UTIME_NOW}};
      const timespec half[2] = {{0, UTIME_NOW}, {0, UTIME_OMIT}};
      log << ANSWER_OF(::utimensat(AT_FDCWD, (here / "writable").c_str(), exact, 0))
          << ANSWER_OF(::utimensat(AT_FDCWD, (here / "writable").c_str(), now, 0))
          << ANSWER_OF(::utimensat(AT_FDCWD, (here / "writable").c_str(), half, 0));
    });
  });
}

/// A file's mtime and ctime, as what they were before or something newer.
class Clock {
 public:
  explicit Clock(fs::path path) : path_(std::move(path)) {
    const timespec past[2] = {{1000, 0}, {1000, 0}};
    ::utimensat(AT_FDCWD, path_.c_str(), past, AT_SYMLINK_NOFOLLOW);
    before_ = stat_of(path_);
    ::usleep(20'000);  // more than a tick of the coarse clock, so that a change has another time
  }
  std::string moved() const {
    const auto now = stat_of(path_);
    std::string text;
    if (text_of(now.st_mtim) != text_of(before_.st_mtim)) text += "m";
    if (text_of(now.st_ctim) != text_of(before_.st_ctim)) text += "c";
    return text + " ";
  }

 private:
  fs::path path_;
  struct stat before_ {};
};

TEST_F(Attributes, EveryChangeMovesTheTimesThatItMovesNatively) {
  expect_as_native([](const fs::path& here, std::ostream& log) {
    const auto file = here / "d/file", directory = here / "d";
    fs::create_directory(directory);
    write(file, "x");
    const auto after = [&](const char* what, const std::function<void()>& change) {
      const Clock of_file(file), of_directory(directory);
      change();
      log << what << " file:" << of_file.moved() << "directory:" << of_directory.moved() << "\n";
    };
    after("write", [&] { append(file, "more"); });
    after("overwrite", [&] { EXPECT_OK(::pwrite(open_file(file, O_WRONLY).get(), "y", 1, 0)); });
    after("truncate", [&] { EXPECT_OK(::truncate(file.c_str(), 1)); });
    after("same size", [&] { EXPECT_OK(::truncate(file.c_str(), 1)); });
    after("read", [&] { read(file); });
    after("chmod", [&] { EXPECT_OK(::chmod(file.c_str(), 0600)); });
    after("chown", [&] { EXPECT_OK(::chown(file.c_str(), 1, 1)); });
    after("link", [&] { EXPECT_OK(::link(file.c_str(), (directory / "hard").c_str())); });
    after("unlink", [&] { EXPECT_OK(::unlink((directory / "hard").c_str())); });
    after("create", [&] { write(directory / "new", "x"); });
    after("rename", [&] { EXPECT_OK(::rename((directory / "new").c_str(), (directory / "newer").c_str())); });
    after("mkdir", [&] { EXPECT_OK(::mkdir((directory / "sub").c_str(), 0755)); });
    after("rmdir", [&] { EXPECT_OK(::rmdir((directory / "sub").c_str())); });
    after("symlink", [&] { EXPECT_OK(::symlink("x", (directory / "s").c_str())); });
    after("setxattr", [&] { EXPECT_OK(::setxattr(file.c_str(), "user.a", "1", 1, 0)); });
    after("fallocate", [&] { EXPECT_OK(::fallocate(open_file(file, O_WRONLY).get(), 0, 0, 100)); });
    after("open truncated", [&] { open_file(file, O_WRONLY | O_TRUNC); });
    after("rename itself", [&] {
      EXPECT_OK(::rename(file.c_str(), (directory / "f2").c_str()));
      EXPECT_OK(::rename((directory / "f2").c_str(), file.c_str()));
    });
  });
}

TEST_F(Attributes, TheCacheShowsWhatTheBackingHas) {
  const auto here = shared_in_session();
  write(here / "a", "12345");
  EXPECT_OK(::link((here / "a").c_str(), (here / "b").c_str()));
  stat_of(here / "a");
  stat_of(here / "b");
  append(here / "b", "67890");
  EXPECT_EQ(stat_of(here / "a").st_size, 10);
  EXPECT_OK(::chmod((here / "b").c_str(), 0611));
  EXPECT_EQ(mode_of(here / "a"), 0611u);
  EXPECT_OK(::unlink((here / "b").c_str()));
  EXPECT_EQ(stat_of(here / "a").st_nlink, 1u);
  EXPECT_EQ(differences(manifest_of(here), manifest_of(session().workspace() / "outputs/shared")),
            std::vector<std::string>{});
}

TEST_F(Attributes, ExtendedAttributesAnswerAsNative) {
  expect_as_native([](const fs::path& here, std::ostream& log) {
    write(here / "f", "x");
    fs::create_directory(here / "d");
    fs::create_symlink("f", here / "l");
    ::mkfifo((here / "p").c_str(), 0644);
    for (const char* name : {"f", "d", "l", "p"}) {
      const auto path = (here / name).string();
      const auto set = [&](const std::string& xattr, std::size_t size, int flags) {
        log << errno_name(ERRNO_OF(
                   ::lsetxattr(path.c_str(), xattr.c_str(), std::string(size, 'v').data(), size, flags)))
            << " ";
      };
      set("user.a", 1, 0);
      set("user.a", 2, XATTR_CREATE);
      set("user.a", 3, XATTR_REPLACE);
      set("user.b", 4, XATTR_REPLACE);
      set("user.b", 0, XATTR_CREATE);
      set("user." + std::string(250, 'n'), 5, 0);
      set("user." + std::string(251, 'n'), 5, 0);
      set("user.", 1, 0);
      set("", 1, 0);
      set("nonsense.a", 1, 0);
      set("user.big", XATTR_SIZE_MAX + 1, 0);
      set("user.medium", 2000, 0);
      char small = 0;
      std::array<char, 4096> value;
      log << ANSWER_OF(::lgetxattr(path.c_str(), "user.medium", &small, 1))
          << ::lgetxattr(path.c_str(), "user.medium", nullptr, 0)
          << ::lgetxattr(path.c_str(), "user.medium", value.data(), value.size())
          << ::lgetxattr(path.c_str(), "user.a", value.data(), value.size())
          << ::lgetxattr(path.c_str(), "user.b", value.data(), value.size())
          << ANSWER_OF(::lgetxattr(path.c_str(), "user.none", value.data(), value.size()))
          << ANSWER_OF(::lgetxattr(path.c_str(), "nonsense.a", value.data(), value.size()))
          << ANSWER_OF(::llistxattr(path.c_str(), &small, 1))
          << ANSWER_OF(::lremovexattr(path.c_str(), "user.a"))
          << ANSWER_OF(::lremovexattr(path.c_str(), "user.a")) << "\n";
    }
    const auto file = open_file(here / "f", O_RDWR);
    log << ANSWER_OF(::fsetxattr(file.get(), "user.c", "by descriptor", 13, 0));
    for (const auto& [path, entry] : manifest_of(here))
      for (const auto& [name, value] : entry.xattrs) log << path << " " << name << " " << value << "\n";
    as_user(kBob, [&] {
      log << ANSWER_OF(::setxattr((here / "f").c_str(), "user.bob", "1", 1, 0))
          << ANSWER_OF(::getxattr((here / "f").c_str(), "user.c", nullptr, 0));
    });
  });
}

TEST_F(Attributes, NoMoreNamesAreTakenThanCanBeListed) {
  const std::string file = outputs() / "f";
  write(file, "x");
  int taken = 0;
  int error = 0;
  while (error == 0 && taken < 1000) {
    const auto name = "user." + std::to_string(1000 + taken) + std::string(200, 'n');
    error = ERRNO_OF(::setxattr(file.c_str(), name.c_str(), "1", 1, 0));
    if (error == 0) ++taken;
  }
  EXPECT_EQ(error, ENOSPC) << taken;
  std::string names(XATTR_LIST_MAX, 0);
  EXPECT_EQ(::listxattr(file.c_str(), names.data(), names.size()), taken * 210);
  const auto first = "user.1000" + std::string(200, 'n');
  EXPECT_OK(::setxattr(file.c_str(), first.c_str(), "2", 1, XATTR_REPLACE));
  EXPECT_OK(::removexattr(file.c_str(), first.c_str()));
  EXPECT_OK(::setxattr(file.c_str(), first.c_str(), "3", 1, XATTR_CREATE));
}

TEST_F(Attributes, TheHostsOwnAttributesStayTheHosts) {
  write(outputs() / "f", "x");
  // Capabilities, labels and overlay marks are the host's business, even for root inside a session.
  EXPECT_NE(ERRNO_OF(::setxattr((outputs() / "f").c_str(), "trusted.overlay.opaque", "y", 1, 0)), 0);
  const char capability[20] = {0, 0, 0, 2};
  EXPECT_NE(ERRNO_OF(::setxattr((outputs() / "f").c_str(), "security.capability", capability, 20, 0)), 0);
}

/// cp -p and mv give modes as ACLs.
TEST_F(Attributes, AnAclThatSaysNoMoreThanAModeIsThatMode) {
  const auto file = shared_in_session() / "f";
  write(file, "x");
  EXPECT_OK(::chown(file.c_str(), kBob.uid, 0));
  const auto set = [&](const std::string& acl) {
    return ERRNO_OF(::setxattr(file.c_str(), XATTR_NAME_POSIX_ACL_ACCESS, acl.data(), acl.size(), 0));
  };
  for (mode_t mode = 0; mode <= 0777; ++mode) {
    ASSERT_EQ(set(acl_of_mode(mode)), 0);
    ASSERT_EQ(stat_of(file).st_mode, S_IFREG | mode);
    ASSERT_EQ(stat_of(session().workspace() / "outputs/shared/f").st_mode, S_IFREG | mode);
  }
  const auto may_alice_read = [&] {
    bool may = false;
    as_user(kAlice, [&] { may = FileDescriptor(::open(file.c_str(), O_RDONLY)).get() >= 0; });
    return may;
  };
  EXPECT_EQ(set(acl_of_mode(0600)), 0);
  EXPECT_FALSE(may_alice_read());  // with no stat in between, which would bring the mode up to date
  EXPECT_EQ(set(acl_of_mode(0604)), 0);
  EXPECT_TRUE(may_alice_read());

  EXPECT_OK(::chmod(file.c_str(), 07711));
  EXPECT_EQ(set(acl_of_mode(0755)), 0);
  EXPECT_EQ(stat_of(file).st_mode, S_IFREG | 07755u);
  as_user(kAlice, [&] { EXPECT_EQ(set(acl_of_mode(0777)), EPERM); });
  as_user(kBob, [&] { EXPECT_EQ(set(acl_of_mode(0751)), 0); });
  EXPECT_EQ(stat_of(file).st_mode, S_IFREG | 05751u);  // the group is not bob's

  auto with_user = acl_of_mode(0640);
  with_user.insert(12, std::string("\2\0\7\0\xe8\3\0\0", 8));
  with_user.insert(28, std::string("\x10\0\7\0\xff\xff\xff\xff", 8));
  EXPECT_EQ(set(with_user), EOPNOTSUPP);
  EXPECT_EQ(stat_of(file).st_mode, S_IFREG | 05751u);
  EXPECT_OK(::removexattr(file.c_str(), XATTR_NAME_POSIX_ACL_ACCESS));
  EXPECT_EQ(stat_of(file).st_mode, S_IFREG | 05751u);
  EXPECT_OK(::removexattr(file.parent_path().c_str(), XATTR_NAME_POSIX_ACL_DEFAULT));
  const auto minimal = acl_of_mode(0755);
  EXPECT_EQ(ERRNO_OF(::setxattr(file.parent_path().c_str(), XATTR_NAME_POSIX_ACL_DEFAULT, minimal.data(),
                                minimal.size(), 0)),
            EOPNOTSUPP);
}

/// Pages are read ahead without waiting: such a read may come to the driver later than what the program does
/// next.
TEST_F(Attributes, AnAccessTimeThatWasSetStaysThoughReadsAreUnderWay) {
  constexpr std::size_t kSize = 64 << 10;  // read ahead at once
  const auto file = outputs() / "file";
  write(file, std::string(kSize, 'x'));
  const auto open = open_file(file, O_RDWR);
  void* const mapped = ::mmap(nullptr, kSize, PROT_READ, MAP_SHARED, open.get(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  std::vector<unsigned char> present(kSize / 4096);
  for (int round = 0; round < 500; ++round) {
    const timespec times[2] = {{round, 5}, {0, UTIME_NOW}};
    EXPECT_EQ(::posix_fadvise(open.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
    EXPECT_EQ(::posix_fadvise(open.get(), 0, 0, POSIX_FADV_WILLNEED), 0);
    ASSERT_OK(::futimens(open.get(), times));
    for (bool complete = false; !complete;) {  // until the read ended
      ASSERT_OK(::mincore(mapped, kSize, present.data()));
      complete = std::all_of(present.begin(), present.end(), [](unsigned char page) { return page & 1; });
    }
    ASSERT_EQ(text_of(stat_of(open).st_atim), text_of(times[0])) << "round " << round;
  }
  ::munmap(mapped, kSize);
}

struct statx statx_of(const fs::path& path) {
  struct statx status {};
  EXPECT_OK(::statx(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_BTIME, &status));
  return status;
}

TEST_F(Attributes, BirthTimesAreTheBackingFilesAndStay) {
  const auto born = [](const struct statx& status) {
    return std::to_string(status.stx_btime.tv_sec) + "." + std::to_string(status.stx_btime.tv_nsec);
  };
  write(outputs() / "file", "x");
  fs::create_directory(outputs() / "d");
  fs::create_symlink("file", outputs() / "link");
  for (const char* name : {"file", "d", "link"}) {
    const auto real = statx_of(session().workspace() / "outputs" / name);
    if (!(real.stx_mask & STATX_BTIME)) GTEST_SKIP() << "the backing file system keeps no birth times";
    const auto seen = statx_of(outputs() / name);
    EXPECT_EQ(seen.stx_mask & (STATX_BASIC_STATS | STATX_BTIME), STATX_BASIC_STATS | STATX_BTIME) << name;
    EXPECT_EQ(born(seen), born(real)) << name;
    const auto plain = stat_of(outputs() / name);  // by the same kernel: nothing but the birth time is new
    EXPECT_EQ(seen.stx_ino, plain.st_ino);
    EXPECT_EQ(seen.stx_mode, plain.st_mode);
    EXPECT_EQ(seen.stx_size, static_cast<std::uint64_t>(plain.st_size));
    EXPECT_EQ(seen.stx_blocks, static_cast<std::uint64_t>(plain.st_blocks));
    EXPECT_EQ(seen.stx_nlink, plain.st_nlink);
    EXPECT_EQ(seen.stx_mtime.tv_nsec, plain.st_mtim.tv_nsec);
  }
  const auto at_first = born(statx_of(outputs() / "file"));
  write(outputs() / "file", "longer");
  EXPECT_OK(::rename((outputs() / "file").c_str(), (outputs() / "d/moved").c_str()));
  EXPECT_EQ(born(statx_of(outputs() / "d/moved")), at_first);
  EXPECT_EQ(statx_of(outputs() / "d/moved").stx_size, 6u);
  const auto before = count_of("STATX") + count_of("GETATTR");
  for (int i = 0; i < 100; ++i) EXPECT_EQ(born(statx_of(outputs() / "d/moved")), at_first);
  EXPECT_LE(count_of("STATX") + count_of("GETATTR") - before, 1u);
  EXPECT_NE(statx_of(mount()).stx_btime.tv_sec, 0);
  EXPECT_NE(statx_of(mount() / ".metadata.json").stx_btime.tv_sec, 0);
}

TEST_F(Attributes, ComeWithTheListingOfFilesThatWereOpenForReadingAndWriting) {
  constexpr int kFiles = 40;
  std::uint64_t asked = 0;
  for (const char* name :
       {"first", "second", "third"}) {  // at first the driver does not know that stats follow listings
    const auto directory = outputs() / name;
    std::filesystem::create_directory(directory);
    for (int i = 0; i < kFiles; ++i) {
      const auto file = open_file(directory / std::to_string(i), O_RDWR | O_CREAT);
      write_all(file, "bytes");
    }
    const auto before = count_of("GETATTR");
    for (const auto& file : list(directory)) EXPECT_EQ(stat_of(directory / file).st_size, 5);
    asked = count_of("GETATTR") - before;
  }
  EXPECT_LT(asked, std::uint64_t{kFiles / 4});
}

TEST_F(Attributes, StatfsSpeaksOfTheBackingFileSystem) {
  struct statvfs seen {
  }, real{};
  write(outputs() / "f", "x");
  ASSERT_OK(::statvfs(outputs().c_str(), &seen));
  ASSERT_OK(::statvfs(session().scratch().c_str(), &real));
  EXPECT_EQ(seen.f_blocks * seen.f_frsize, real.f_blocks * real.f_frsize);
  EXPECT_EQ(seen.f_namemax, 255u);
  EXPECT_GT(seen.f_bavail, 0u);
  EXPECT_EQ(seen.f_flag & (ST_NOSUID | ST_NODEV), static_cast<unsigned long>(ST_NOSUID | ST_NODEV));
}

TEST_F(Attributes, InodeNumbersAreStableAndAgreeWithListings) {
  write(outputs() / "f", "x");
  const auto number = stat_of(outputs() / "f").st_ino;
  EXPECT_OK(::rename((outputs() / "f").c_str(), (outputs() / "g").c_str()));
  EXPECT_EQ(stat_of(outputs() / "g").st_ino, number);
  EXPECT_EQ(stat_of(open_file(outputs() / "g", O_RDONLY)).st_ino, number);
  EXPECT_EQ(stat_of(outputs()).st_dev, stat_of(outputs() / "g").st_dev);
  EXPECT_NE(stat_of(outputs()).st_ino, stat_of(temp()).st_ino);
}

}  // namespace
}  // namespace okcvm::test
