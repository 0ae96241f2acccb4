#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "tests/support/mounted_session.h"

namespace okcvm::test {
namespace {

class Locks : public MountedSession {
 protected:
  std::filesystem::path file() {
    if (!there_is(outputs() / "locked")) write(outputs() / "locked", std::string(1000, '.'));
    return outputs() / "locked";
  }
};

struct flock range(short type, off_t start, off_t length) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = start;
  lock.l_len = length;
  return lock;
}

int set_lock(const FileDescriptor& file, int command, short type, off_t start = 0, off_t length = 0) {
  auto lock = range(type, start, length);
  return ::fcntl(file.get(), command, &lock) == 0 ? 0 : errno;
}

TEST_F(Locks, FlockExcludesOtherProcesses) {
  const auto mine = open_file(file(), O_RDWR);
  ASSERT_OK(::flock(mine.get(), LOCK_EX));
  ChildProcess child([&](ChildProcess& self) {
    const auto theirs = open_file(file(), O_RDWR);
    if (::flock(theirs.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return 1;
    if (::flock(theirs.get(), LOCK_SH | LOCK_NB) == 0 || errno != EWOULDBLOCK) return 2;
    self.signal();
    if (::flock(theirs.get(), LOCK_EX) != 0) return 3;  // waits for the parent
    return 0;
  });
  ASSERT_TRUE(child.wait());
  EXPECT_OK(::flock(mine.get(), LOCK_UN));
  EXPECT_EQ(child.join(), 0);
  EXPECT_OK(::flock(mine.get(), LOCK_EX | LOCK_NB));
}

TEST_F(Locks, SharedFlocksGoTogether) {
  const auto one = open_file(file(), O_RDONLY);
  const auto two = open_file(file(), O_RDONLY);
  EXPECT_OK(::flock(one.get(), LOCK_SH));
  EXPECT_OK(::flock(two.get(), LOCK_SH | LOCK_NB));
  EXPECT_ERRNO(EWOULDBLOCK, ::flock(two.get(), LOCK_EX | LOCK_NB));
  EXPECT_OK(::flock(one.get(), LOCK_UN));
  EXPECT_OK(::flock(two.get(), LOCK_EX | LOCK_NB));
}

TEST_F(Locks, ClosingOrDyingReleasesAFlock) {
  const auto mine = open_file(file(), O_RDWR);
  {
    const auto other = open_file(file(), O_RDWR);
    ASSERT_OK(::flock(other.get(), LOCK_EX));
    EXPECT_ERRNO(EWOULDBLOCK, ::flock(mine.get(), LOCK_EX | LOCK_NB));
  }
  EXPECT_OK(::flock(mine.get(), LOCK_EX | LOCK_NB));
  EXPECT_OK(::flock(mine.get(), LOCK_UN));
  ChildProcess child([&](ChildProcess& self) {
    const auto theirs = open_file(file(), O_RDWR);
    if (::flock(theirs.get(), LOCK_EX) != 0) return 1;
    self.signal();
    self.wait();
    return 0;
  });
  ASSERT_TRUE(child.wait());
  EXPECT_ERRNO(EWOULDBLOCK, ::flock(mine.get(), LOCK_EX | LOCK_NB));
  child.kill(SIGKILL);
  child.join();
  EXPECT_OK(::flock(mine.get(), LOCK_EX));
}

TEST_F(Locks, PosixLocksExcludeRangesOfOtherProcesses) {
  const auto mine = open_file(file(), O_RDWR);
  EXPECT_EQ(set_lock(mine, F_SETLK, F_WRLCK, 100, 50), 0);
  EXPECT_EQ(set_lock(mine, F_SETLK, F_RDLCK, 300, 50), 0);
  const pid_t parent = ::getpid();
  ChildProcess child([&](ChildProcess&) {
    const auto theirs = open_file(file(), O_RDWR);
    if (set_lock(theirs, F_SETLK, F_WRLCK, 120, 1) != EAGAIN) return 1;
    if (set_lock(theirs, F_SETLK, F_RDLCK, 120, 1) != EAGAIN) return 2;
    if (set_lock(theirs, F_SETLK, F_RDLCK, 300, 10) != 0) return 3;
    if (set_lock(theirs, F_SETLK, F_WRLCK, 349, 1) != EAGAIN) return 4;
    if (set_lock(theirs, F_SETLK, F_WRLCK, 0, 100) != 0) return 5;
    if (set_lock(theirs, F_SETLK, F_WRLCK, 150, 150) != 0) return 6;
    auto who = range(F_WRLCK, 0, 0);
    if (::fcntl(theirs.get(), F_GETLK, &who) != 0) return 7;
    if (who.l_type != F_WRLCK || who.l_start != 100 || who.l_len != 50) return 8;
    return who.l_pid == parent ? 0 : 9;
  });
  EXPECT_EQ(child.join(), 0);
  EXPECT_EQ(set_lock(mine, F_SETLK, F_WRLCK, 0, 0), 0);
}

TEST_F(Locks, AWaiterForAPosixLockGetsItInTurn) {
  const auto mine = open_file(file(), O_RDWR);
  ASSERT_EQ(set_lock(mine, F_SETLK, F_WRLCK), 0);
  ChildProcess child([&](ChildProcess& self) {
    const auto theirs = open_file(file(), O_RDWR);
    self.signal();
    if (set_lock(theirs, F_SETLKW, F_WRLCK) != 0) return 1;
    return read(theirs).substr(0, 4) == "done" ? 0 : 2;
  });
  ASSERT_TRUE(child.wait());
  EXPECT_OK(::pwrite(mine.get(), "done", 4, 0));
  EXPECT_EQ(set_lock(mine, F_SETLK, F_UNLCK), 0);
  EXPECT_EQ(child.join(), 0);
}

TEST_F(Locks, AWaiterCanBeInterrupted) {
  const auto mine = open_file(file(), O_RDWR);
  ASSERT_EQ(set_lock(mine, F_SETLK, F_WRLCK), 0);
  ASSERT_OK(::flock(mine.get(), LOCK_EX));
  for (const bool posix : {true, false}) {
    ChildProcess child([&](ChildProcess& self) {
      const auto theirs = open_file(file(), O_RDWR);
      self.signal();
      return posix ? set_lock(theirs, F_SETLKW, F_WRLCK) : ::flock(theirs.get(), LOCK_EX);
    });
    ASSERT_TRUE(child.wait());
    child.kill(SIGKILL);
    EXPECT_EQ(child.join(), 128 + SIGKILL);
  }
  EXPECT_EQ(set_lock(mine, F_SETLK, F_UNLCK), 0);
  ChildProcess after([&](ChildProcess&) { return set_lock(open_file(file(), O_RDWR), F_SETLK, F_WRLCK); });
  EXPECT_EQ(after.join(), 0);
}

TEST_F(Locks, PosixLocksEndWithTheirProcessAndWithAnyClose) {
  const auto mine = open_file(file(), O_RDWR);
  ChildProcess child([&](ChildProcess& self) {
    const auto theirs = open_file(file(), O_RDWR);
    if (set_lock(theirs, F_SETLK, F_WRLCK, 0, 10) != 0) return 1;
    self.signal();
    self.wait();
    open_file(file(), O_RDONLY);  // opened and closed: gives up all of this process's locks (fcntl(2))
    self.signal();
    self.wait();
    if (set_lock(theirs, F_SETLK, F_WRLCK, 0, 10) != 0) return 2;
    self.signal();
    self.wait();
    return 0;
  });
  ASSERT_TRUE(child.wait());
  EXPECT_EQ(set_lock(mine, F_SETLK, F_WRLCK, 0, 10), EAGAIN);
  child.signal();
  ASSERT_TRUE(child.wait());
  EXPECT_EQ(set_lock(mine, F_SETLK, F_WRLCK, 0, 10), 0);
  EXPECT_EQ(set_lock(mine, F_SETLK, F_UNLCK, 0, 10), 0);
  child.signal();
  ASSERT_TRUE(child.wait());
  EXPECT_EQ(set_lock(mine, F_SETLK, F_WRLCK, 0, 10), EAGAIN);
  child.kill(SIGKILL);
  child.join();
  EXPECT_EQ(set_lock(mine, F_SETLKW, F_WRLCK, 0, 10), 0);
}

TEST_F(Locks, ADeadlockIsRefused) {
  const auto mine = open_file(file(), O_RDWR);
  ASSERT_EQ(set_lock(mine, F_SETLK, F_WRLCK, 0, 1), 0);
  ChildProcess child([&](ChildProcess& self) {
    const auto theirs = open_file(file(), O_RDWR);
    if (set_lock(theirs, F_SETLK, F_WRLCK, 1, 1) != 0) return 1;
    self.signal();
    const int answer = set_lock(theirs, F_SETLKW, F_WRLCK, 0, 1);
    return answer == 0 || answer == EDEADLK ? 0 : 2;
  });
  ASSERT_TRUE(child.wait());
  const int answer = set_lock(mine, F_SETLKW, F_WRLCK, 1, 1);
  EXPECT_TRUE(answer == 0 || answer == EDEADLK) << errno_name(answer);
  EXPECT_EQ(set_lock(mine, F_SETLK, F_UNLCK), 0);
  EXPECT_EQ(child.join(), 0);
}

TEST_F(Locks, OpenFileDescriptionLocksBelongToTheDescription) {
  const auto one = open_file(file(), O_RDWR);
  const auto two = open_file(file(), O_RDWR);
  const FileDescriptor same(::dup(one.get()));
  EXPECT_EQ(set_lock(one, F_OFD_SETLK, F_WRLCK, 0, 100), 0);
  EXPECT_EQ(set_lock(same, F_OFD_SETLK, F_WRLCK, 0, 100), 0);
  EXPECT_EQ(set_lock(two, F_OFD_SETLK, F_WRLCK, 50, 10), EAGAIN);
  EXPECT_EQ(set_lock(two, F_OFD_SETLK, F_WRLCK, 100, 10), 0);
  auto who = range(F_WRLCK, 0, 10);
  EXPECT_OK(::fcntl(two.get(), F_OFD_GETLK, &who));
  EXPECT_EQ(who.l_type, F_WRLCK);
  EXPECT_EQ(who.l_pid, -1);
  ChildProcess child(
      [&](ChildProcess&) { return set_lock(open_file(file(), O_RDWR), F_OFD_SETLK, F_WRLCK, 0, 1); });
  EXPECT_EQ(child.join(), EAGAIN);
}

TEST_F(Locks, LocksWorkOnFilesThatLostTheirName) {
  const auto one = open_file(file(), O_RDWR);
  const auto two = open_file(file(), O_RDWR);
  EXPECT_OK(::unlink((outputs() / "locked").c_str()));
  EXPECT_OK(::flock(one.get(), LOCK_EX));
  EXPECT_ERRNO(EWOULDBLOCK, ::flock(two.get(), LOCK_EX | LOCK_NB));
  EXPECT_EQ(set_lock(one, F_OFD_SETLK, F_WRLCK), 0);
  EXPECT_EQ(set_lock(two, F_OFD_SETLK, F_WRLCK), EAGAIN);
}

TEST_F(Locks, LeasesAndReadOnlyDescriptorsAnswerAsNative) {
  expect_as_native([](const std::filesystem::path& here, std::ostream& log) {
    write(here / "f", "x");
    const auto reader = open_file(here / "f", O_RDONLY);
    const auto writer = open_file(here / "f", O_WRONLY);
    log << errno_name(set_lock(reader, F_SETLK, F_WRLCK)) << errno_name(set_lock(writer, F_SETLK, F_RDLCK))
        << errno_name(set_lock(reader, F_OFD_SETLK, F_WRLCK))
        << errno_name(set_lock(reader, F_SETLK, F_RDLCK, -5, 1));
  });
}

}  // namespace
}  // namespace okcvm::test
