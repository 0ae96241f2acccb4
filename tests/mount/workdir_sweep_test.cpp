// What the host does in a workdir in the middle of a call of the session, and deaths in such calls.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "tests/mount/sweep.h"

namespace okcvm::test {
namespace {

namespace fs = std::filesystem;

using InWorkdir = Sweep;

/// Where the host can append, too, an append has no place of its own, and one that is asked for again could
/// be made twice.
TEST_F(InWorkdir, AppendsAreMadeOnce) {
  const ScratchDirectory host("workdir");
  start([&](fusefs::MountConfig& config) {
    config.workdir = open_file(host.path(), O_RDONLY | O_DIRECTORY);
    config.passthrough = fusefs::Passthrough::kOff;
  });
  const Call call{"", "", append_records, ""};
  for (int n = 1;; ++n) {
    SCOPED_TRACE("death at point " + std::to_string(n));
    write(host.path() / "file", "zero\n");
    arm("kill:" + std::to_string(n) + "\nkill:" + std::to_string(n % 3 + 1));
    const auto seen = make(call, place_->mount() / "workdir");
    disarm();
    EXPECT_EQ(read(host.path() / "file"), "zero\none\ntwo\nthree\n");
    EXPECT_EQ(seen, "okokok19");
    if (HasFailure() || takeovers_ == 0) break;
    ASSERT_LT(n, 100);
  }
}

/// Of a directory that the host changes while one program's listing of it is on its way, and another one
/// asks.
TEST_F(InWorkdir, AListingThatComesLateDoesNotStay) {
  constexpr int kMostRounds = 20;
  const ScratchDirectory host("workdir");
  start(
      [&](fusefs::MountConfig& config) { config.workdir = open_file(host.path(), O_RDONLY | O_DIRECTORY); });
  for (int n = 0; n < kMostRounds; ++n) {
    const auto there = host.path() / std::to_string(n);
    const auto here = place_->mount() / "workdir" / std::to_string(n);
    fs::create_directory(there);
    write(there / "old", "");
    const auto before = stat_of(here).st_mtim;
    arm("delay:listing.read:500");
    ChildProcess late([&](ChildProcess& self) {
      self.send(list(here).front());
      return 0;
    });
    wait_until_within(late.pid(), SYS_getdents64);
    fs::rename(there / "old", there / "new");
    ChildProcess other([&](ChildProcess&) {
      while (stat_of(here).st_mtim.tv_nsec == before.tv_nsec) std::this_thread::yield();
      list(here);
      return 0;
    });
    const auto seen = late.receive();
    EXPECT_EQ(late.join(), 0);
    EXPECT_EQ(other.join(), 0);
    disarm();
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (list(here).front() != "new" && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    EXPECT_EQ(list(here).front(), "new");
    if (seen == "old") return;
  }
  FAIL() << "no listing was late";
}

/// The host gives a file another name while its only one is removed here.
TEST_F(InWorkdir, AFileThatTheHostLinksAsItIsRemovedStaysTheOneThatItIs) {
  const ScratchDirectory host("workdir");
  start(
      [&](fusefs::MountConfig& config) { config.workdir = open_file(host.path(), O_RDONLY | O_DIRECTORY); });
  for (int n = 0; n < 5; ++n) {
    const auto name = std::to_string(n), other = name + "-kept";
    const auto workdir = place_->mount() / "workdir";
    write(host.path() / name, "bytes");
    const auto file = open_file(workdir / name, O_RDWR);
    EXPECT_OK(::flock(file.get(), LOCK_EX));
    arm("delay:backing.unlink:100");
    ChildProcess remover([&](ChildProcess&) { return ERRNO_OF(::unlink((workdir / name).c_str())); });
    wait_until_within(remover.pid(), SYS_unlink);
    for (int i = 0; i < 20; ++i) there_is(outputs() / (name + std::to_string(i)));  // until it has begun
    EXPECT_OK(::link((host.path() / name).c_str(), (host.path() / other).c_str()));
    EXPECT_EQ(remover.join(), 0);
    disarm();
    const auto kept = open_file(workdir / other, O_RDWR);
    EXPECT_EQ(stat_of(kept).st_ino, stat_of(file).st_ino);
    EXPECT_ERRNO(EWOULDBLOCK, ::flock(kept.get(), LOCK_EX | LOCK_NB));
    EXPECT_EQ(stat_of(kept).st_nlink, 1u);
    EXPECT_EQ(stat_of(file).st_nlink, 1u);
  }
}

/// In a sticky directory the host puts another user's file in the place of what is taken away just then.
TEST_F(InWorkdir, WhatIsAnothersByThenIsNotTakenFromAStickyDirectory) {
  const ScratchDirectory host("workdir");
  ASSERT_OK(::chmod(host.path().c_str(), 01777));
  start(
      [&](fusefs::MountConfig& config) { config.workdir = open_file(host.path(), O_RDONLY | O_DIRECTORY); });
  const auto workdir = place_->mount() / "workdir";
  const auto own = [&](const fs::path& file, const User& user) {
    EXPECT_OK(::chown(file.c_str(), user.uid, user.gid));
  };
  const auto taken = [&](const std::string& name, long call, const std::function<int()>& take) {
    ChildProcess taker([&](ChildProcess&) { return become(kAlice) ? ERRNO_OF(take()) : 255; });
    wait_until_within(taker.pid(), call);
    for (int i = 0; i < 20; ++i) there_is(outputs() / (name + std::to_string(i)));  // until it has begun
    write(host.path() / "bobs", "bob's");
    own(host.path() / "bobs", kBob);
    fs::rename(host.path() / "bobs", host.path() / name);
    return errno_name(taker.join());
  };
  for (int n = 0; n < 3; ++n) {
    const auto name = "f" + std::to_string(n), over = "over" + std::to_string(n);
    for (const auto& file : {name, over}) {
      write(host.path() / file, "alice's");
      own(host.path() / file, kAlice);
      EXPECT_EQ(stat_of(workdir / file).st_uid, kAlice.uid);
    }
    arm("delay:backing.unlink:100");
    EXPECT_EQ(taken(name, SYS_unlink, [&] { return ::unlink((workdir / name).c_str()); }), "EPERM");
    EXPECT_EQ(read(host.path() / name), "bob's");
    disarm();
    write(host.path() / "new", "alice's");
    own(host.path() / "new", kAlice);
    EXPECT_EQ(stat_of(workdir / "new").st_uid, kAlice.uid);
    arm("delay:backing.rename:100");
    const auto rename = [&] { return ::rename((workdir / "new").c_str(), (workdir / over).c_str()); };
    EXPECT_EQ(taken(over, SYS_rename, rename), "EPERM");
    EXPECT_EQ(read(host.path() / over), "bob's");
    EXPECT_EQ(read(host.path() / "new"), "alice's");
    disarm();
  }
}

}  // namespace
}  // namespace okcvm::test
