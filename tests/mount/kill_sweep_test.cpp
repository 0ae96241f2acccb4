// The driver dies at every one of its fault points while a program makes one call; a replacement takes the
// mount over. The program must see what it would see on a plain directory, and so must whoever looks
// afterwards.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <thread>

#include "tests/mount/sweep.h"
#include "tests/mount/sweep_stride.h"
#include "tests/support/loop_disk.h"

namespace okcvm::test {
namespace {

namespace fs = std::filesystem;
using ::testing::IsEmpty;

std::string name_of_call(const ::testing::TestParamInfo<Call>& row) {
  std::string name;
  for (const char c : std::string_view(row.param.name))
    name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

class KillSweep : public Sweep, public ::testing::WithParamInterface<Call> {};

TEST_P(KillSweep, EachCallIsCarriedOutExactlyOnce) {
  const auto& call = GetParam();
  int deaths = 0;
  for (int n = 1;; ++n) {
    const auto point = std::to_string(n);
    SCOPED_TRACE("death at point " + point);
    const bool died = dies(call, "kill:" + point, "at" + point);
    if (HasFailure() || !died) break;
    ++deaths;
    ASSERT_LT(n, 100);
  }
  EXPECT_GT(deaths, 0);
}

/// The daemon that takes over dies as well, and so does the next: at one of these points, another one for
/// each point of the first daemon, or with OKCVM_SWEEP_STRIDE=1 at all of them.
TEST_P(KillSweep, AlsoIfTheNextDaemonsDieToo) {
  const auto& call = GetParam();
  const std::array nexts{"1", "2", "4"};
  const std::size_t step = takes_every_point() ? 1 : nexts.size();
  for (std::size_t n = 1;; ++n) {
    const auto point = std::to_string(n);
    bool died = false;
    for (std::size_t i = n % step; i < nexts.size(); i += step) {
      const std::string next = nexts[i];
      SCOPED_TRACE("deaths at points " + point + " and " + next);
      died = dies(call, "kill:" + point + "\nkill:" + next + "\nkill:2", "at" + point + "and" + next);
      if (HasFailure()) return;
    }
    if (!died) break;
    ASSERT_LT(n, 100u);
  }
}

INSTANTIATE_TEST_SUITE_P(Of, KillSweep, ::testing::ValuesIn(sweep_calls()), name_of_call);

/// Whoever called is killed while the kernel has the request to send again and nobody reads it: it never
/// comes again, and nobody hears what became of it.
class KilledCaller : public Sweep, public ::testing::WithParamInterface<Call> {
 protected:
  static constexpr const char* kDeathBeforeReading = "\nkill:2";  // channel.resent

  static constexpr std::array kNames{"",        "new",       "file",  "other",       "target", "dir",
                                     "dir/new", "dir/below", "moved", "moved/below", "moved/d"};

  /// What stat(2) tells of each name.
  static std::string told(const fs::path& top) {
    std::ostringstream said;
    for (const char* name : kNames) {
      struct stat status {};
      said << '\n' << name << ' ';
      if (::lstat((top / name).c_str(), &status) != 0) {
        said << errno_name(errno);
        continue;
      }
      said << status.st_ino << ' ' << std::oct << status.st_mode << std::dec << ' ' << status.st_nlink << ' '
           << status.st_uid << ' ' << status.st_gid << ' ' << (S_ISDIR(status.st_mode) ? 0 : status.st_size);
      for (const auto& time : {status.st_mtim, status.st_ctim})
        said << ' ' << time.tv_sec << '.' << time.tv_nsec;
    }
    return said.str();
  }
  /// The names that it lists, and what is in its files.
  static std::string content(const fs::path& top) {
    std::ostringstream said;
    for (const auto& name : list(top)) said << name << ' ';
    for (const char* name : kNames)
      if (struct stat status{}; ::lstat((top / name).c_str(), &status) == 0 && S_ISREG(status.st_mode))
        said << '\n' << name << ' ' << read(top / name);
    return said.str();
  }
};

TEST_P(KilledCaller, IsFollowedByWhatHasBecomeOfItsCall) {
  const auto& call = GetParam();
  for (int n = 1;; ++n) {
    const auto where = "at" + std::to_string(n);
    SCOPED_TRACE("death at point " + std::to_string(n));
    prepare(call, outputs() / where);
    content(outputs() / where);
    told(outputs() / where);  // last: to read makes the kernel ask again; now it believes what it was told
    arm("kill:" + std::to_string(n) + kDeathBeforeReading);
    ChildProcess caller([&](ChildProcess&) {
      if (become(call.user)) call.make(outputs() / where);
      return 0;
    });
    int deaths = 0;
    takeovers_ = daemon_->serve_until_end_of(caller.pid(), [&] {
      if (++deaths == 2) ::kill(caller.pid(), SIGKILL);
    });
    caller.join();
    disarm();
    const auto backing = place_->workspace() / "outputs" / where;
    EXPECT_EQ(told(outputs() / where), told(backing));
    EXPECT_EQ(content(outputs() / where), content(backing));
    if (HasFailure() || deaths == 0) return;
    ASSERT_LT(n, 100);
  }
}

INSTANTIATE_TEST_SUITE_P(Of, KilledCaller, ::testing::ValuesIn(sweep_calls()), name_of_call);

/// A link's text can only have become another one with what it stands in.
using LinksMeanwhile = Sweep;

TEST_F(LinksMeanwhile, AreReadWhileTheKernelIsToldOfWhatElseADeadDaemonDid) {
  const Call mkdir_and_read{"mkdir", "mkdir -p a/b x; echo inside > x/f; ln -s ../../x/f a/b/link",
                            [](const fs::path& here) {
                              const auto made = ANSWER_OF(::mkdir((here / "new").c_str(), 0755));
                              std::array<char, 100> text{};
                              const auto path = here / "a/b/link";
                              return made + ANSWER_OF(::readlink(path.c_str(), text.data(), text.size())) +
                                     " " + text.data();
                            },
                            ""};
  for (int n = 1;; ++n) {
    const auto where = "at" + std::to_string(n);
    SCOPED_TRACE(where);
    prepare(mkdir_and_read, outputs() / where);
    arm("kill:" + std::to_string(n) + "\ndelay:kernel.told:500");
    EXPECT_EQ(make(mkdir_and_read, outputs() / where), "okok ../../x/f");
    disarm();
    if (HasFailure() || takeovers_ == 0) return;
    ASSERT_LT(n, 100);
  }
}

const Call kMakingCalls[] = {
    {"create with O_EXCL", "",
     [](const fs::path& here) { return answer_of_open(here / "new", O_CREAT | O_EXCL | O_RDWR); }, "EEXIST",
     kAlice},
    {"create", "", [](const fs::path& here) { return answer_of_open(here / "new", O_CREAT | O_RDWR); },
     "EACCES", kAlice},
    {"mkdir", "", [](const fs::path& here) { return ANSWER_OF(::mkdir((here / "new").c_str(), 0755)); },
     "EEXIST", kAlice},
    {"mknod", "",
     [](const fs::path& here) { return ANSWER_OF(::mknod((here / "new").c_str(), S_IFREG | 0644, 0)); },
     "EEXIST", kAlice},
    {"symlink", "",
     [](const fs::path& here) { return ANSWER_OF(::symlink("somewhere", (here / "new").c_str())); }, "EEXIST",
     kAlice}};

/// While no daemon serves, the host puts something where a call was, or will be.
class HostMeanwhile : public Sweep {
 protected:
  /// Makes the call with a death at each point, one after the other. `check` is told what the call answered
  /// and whether the host made what stands at the name then.
  void sweep(const Call& call, const char* name, const std::function<void(const std::string&, bool)>& check) {
    for (int n = 1;; ++n) {
      const auto where = std::string(call.name) + std::to_string(n);
      SCOPED_TRACE(where);
      prepare(call, outputs() / where);
      const auto backing = place_->workspace() / "outputs" / where / name;
      bool is_hosts = false;
      arm("kill:" + std::to_string(n));
      const auto seen = make(call, outputs() / where, [&] {
        is_hosts =
            static_cast<bool>(FileDescriptor(::open(backing.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0600)));
      });
      disarm();
      check(seen, is_hosts);
      if (is_hosts) {
        EXPECT_EQ(ERRNO_OF(::access(backing.c_str(), F_OK)), 0);
        EXPECT_EQ(stat_of(backing).st_uid, 0u);
      }
      if (HasFailure() || takeovers_ == 0) break;
      ASSERT_LT(n, 100);
    }
  }
};

TEST_F(HostMeanwhile, WhatItMakesIsNotTakenForTheCalls) {
  for (const auto& call : kMakingCalls)
    sweep(call, "new",
          [&](const std::string& seen, bool is_hosts) { EXPECT_EQ(seen, is_hosts ? call.changed : "ok"); });
}

TEST_F(HostMeanwhile, WhatItMakesAfterARemovalStays) {
  const Call unlink{"unlink", "echo x > file",
                    [](const fs::path& here) { return ANSWER_OF(::unlink((here / "file").c_str())); }, ""};
  sweep(unlink, "file", [](const std::string& seen, bool) { EXPECT_EQ(seen, "ok"); });
}

/// What the kernel has references on is forgotten in the end, though it never got some of the replies.
using References = Sweep;

TEST_F(References, OfLostRepliesAreGivenBack) {
  std::vector<Call> calls(std::begin(kMakingCalls), std::end(kMakingCalls));
  calls.push_back({"a file without a name, which is given one", "", link_nameless, ""});
  calls.push_back(
      {"listing", "", [](const fs::path& here) { return std::to_string(list(here).size()); }, ""});
  calls.push_back({"look-ups", "",
                   [](const fs::path& here) {
                     return std::to_string(stat_of(here / "0").st_size + stat_of(here / "39").st_size);
                   },
                   ""});
  std::vector<FileDescriptor> keep_known;  // the kernel forgets others when it likes, and when it is told to
  for (const auto& call : calls)
    for (int n = 1;; ++n) {
      SCOPED_TRACE(std::string(call.name) + " with deaths at " + std::to_string(n));
      const auto where = std::string(call.name) + std::to_string(n);
      prepare({"", ":", nullptr, ""}, outputs() / where);
      keep_known.push_back(open_file(outputs() / where, O_PATH | O_DIRECTORY));
      for (int i = 0; i < 40; ++i)  // the kernel does not know them
        write(place_->workspace() / "outputs" / where / std::to_string(i), "x");
      const auto nodes = daemon_->ask("nodes");
      arm("kill:" + std::to_string(n) + "\nkill:" + std::to_string(n % 3 + 1));
      make(call, outputs() / where);
      disarm();
      for (const auto& name : list(outputs() / where)) fs::remove(outputs() / where / name);
      int tries = 0;
      while (daemon_->ask("nodes") != nodes && ++tries < kMostTries)
        ;
      EXPECT_LT(tries, kMostTries) << daemon_->ask("nodes") << " nodes, " << nodes << " before";
      if (HasFailure() || takeovers_ == 0) break;
      ASSERT_LT(n, 100);
    }
}

/// A link that leads out of the mount from where its directory is for the kernel, but not from where the
/// directory goes: the dead daemon may have moved it, and the kernel not have heard of that.
using MoveToADeeperPlace = Sweep;

TEST_F(MoveToADeeperPlace, LetsNoLinkLeadOutBeforeTheKernelHearsOfIt) {
  static fs::path death;
  const Call move{
      "",
      "mkdir -p d/d/d/d/d/d/d/d/moved && mv d/d/d/d/d/d/d/d/moved . &&"
      "ln -s ../../../../../../../../../proc/self/status d/d/d/d/d/d/d/d/link &&"
      "mv d/d/d/d/d/d/d/d/link moved",
      [](const fs::path& here) {
        const auto moved = open_file(here / "moved", O_PATH | O_DIRECTORY);
        const auto leads_out = [&] { return ::openat(moved.get(), "link", O_RDONLY | O_CLOEXEC) >= 0; };
        std::atomic<int> led_out = leads_out();  // the kernel knows the link from now on
        std::jthread reader([&](const std::stop_token& stop) {
          while (!stop.stop_requested())
            if (there_is(death)) led_out += leads_out();
        });
        const auto answer =
            ANSWER_OF(::rename((here / "moved").c_str(), (here / "d/d/d/d/d/d/d/d/moved").c_str()));
        reader.request_stop();
        reader.join();
        return answer + ", led out " + std::to_string(led_out);
      },
      ""};
  for (int n = 1;; ++n) {
    const auto where = "at" + std::to_string(n);
    SCOPED_TRACE("death at point " + std::to_string(n));
    death = place_->scratch() / where;
    prepare(move, outputs() / where);
    arm("kill:" + std::to_string(n) + "\ndelay:rename.done:150");
    EXPECT_EQ(make(move, outputs() / where, [] { write(death, ""); }), "ok, led out 0");
    disarm();
    if (HasFailure() || takeovers_ == 0) break;
    ASSERT_LT(n, 100);
  }
}

using LinkThatIsRead = Sweep;

TEST_F(LinkThatIsRead, IsJudgedByWhereItIsThen) {
  replace_daemon();
  fs::create_directories(outputs() / "a/b/c");
  fs::create_symlink("../../../secret", outputs() / "a/b/c/link");
  EXPECT_TRUE(fs::is_symlink(outputs() / "a/b/c/link"));  // so that the kernel asks for nothing but its text
  arm("delay:readlink.read:2000");
  ChildProcess reader([&](ChildProcess&) {
    std::array<char, PATH_MAX> text;
    return ::readlink((outputs() / "a/b/c/link").c_str(), text.data(), text.size()) < 0 ? errno : 0;
  });
  wait_until_within(reader.pid(), SYS_readlink);
  fs::rename(outputs() / "a/b/c/link", outputs() / "link");
  EXPECT_EQ(reader.join(), EPERM);
  disarm();
  std::array<char, PATH_MAX> text;
  EXPECT_ERRNO(EPERM, ::readlink((outputs() / "link").c_str(), text.data(), text.size()));
}

using RefusedRemoval = Sweep;

/// Its hidden name, without passthrough, goes again.
TEST_F(RefusedRemoval, LeavesAnOpenFileOneLink) {
  start();
  write(outputs() / "file", "bytes");
  write(outputs() / "other", "bytes");
  const auto file = open_file(outputs() / "file", O_RDWR);
  const auto refused = [&](const char* fault, std::string (*call)(const fs::path&)) {
    arm(std::string("errno:") + fault + ":0:ENOSPC");
    EXPECT_EQ(make({"", "", call, ""}, outputs()), "ENOSPC") << fault;
    disarm();
    EXPECT_EQ(stat_of(file).st_nlink, 1u) << fault;
    EXPECT_THAT(list(place_->workspace()), ::testing::ElementsAre("outputs")) << fault;
  };
  refused("backing.unlink",
          [](const fs::path& here) { return ANSWER_OF(::unlink((here / "file").c_str())); });
  refused("backing.rename", [](const fs::path& here) {
    return ANSWER_OF(::rename((here / "other").c_str(), (here / "file").c_str()));
  });
}

using ChangeOfAttributes = Sweep;

TEST_F(ChangeOfAttributes, ThatFailsHalfwayIsSeenAsFarAsItWent) {
  start();
  write(outputs() / "file", "bytes");
  ASSERT_OK(::chmod((outputs() / "file").c_str(), 04755));
  EXPECT_EQ(stat_of(outputs() / "file").st_uid, 0u);
  arm("errno:backing.chmod:0:EIO");
  const auto give_away = [](const fs::path& here) {
    return ANSWER_OF(::chown((here / "file").c_str(), 1000, 1000));
  };
  EXPECT_EQ(make({"", "", give_away, ""}, outputs()), "EIO");
  disarm();
  EXPECT_EQ(stat_of(outputs() / "file").st_uid, 1000u);
}

/// Of a session that has something on a disk: of others fsync(2) has nothing to wait for.
class SyncError : public Sweep {
 protected:
  void SetUp() override {
    Sweep::SetUp();
    if (IsSkipped()) return;
    if (const auto reason = disk_.mount_at(host_.path()); !reason.empty()) GTEST_SKIP() << reason;
    start([&](fusefs::MountConfig& config) {
      config.workdir = open_file(host_.path(), O_RDONLY | O_DIRECTORY);
    });
  }

 private:
  ScratchDirectory host_{"workdir"};
  LoopDisk disk_{"ext4", "16M"};
};

TEST_F(SyncError, IsToldToEachOpenFileOnce) {
  write(outputs() / "other", "bytes");
  const auto other = open_file(outputs() / "other", O_RDWR);
  const auto first = open_file(outputs() / "file", O_RDWR | O_CREAT);
  const auto second = open_file(outputs() / "file", O_RDONLY);
  const auto third = open_file(outputs() / "file", O_RDONLY);
  arm("errno:backing.sync:1:EIO");
  EXPECT_ERRNO(EIO, ::fsync(first.get()));
  disarm();
  EXPECT_ERRNO(EIO, ::fdatasync(second.get()));
  replace_daemon();
  EXPECT_ERRNO(EIO, ::fsync(third.get()));
  const auto later = open_file(outputs() / "file", O_RDONLY);
  for (const auto* file : {&first, &second, &third, &later, &other}) EXPECT_OK(::fsync(file->get()));
}

/// The next daemon may find it, and the kernel asks no more once it was told that there is no need to.
TEST_F(SyncError, IsToldThoughTheWorkdirWasNotFound) {
  start([](fusefs::MountConfig& config) { config.expects_workdir = true; });
  const auto file = open_file(outputs() / "file", O_RDWR | O_CREAT);
  EXPECT_OK(::fsync(file.get()));
  arm("errno:backing.sync:0:EIO");
  EXPECT_ERRNO(EIO, ::fsync(file.get()));
  disarm();
}

using NothingToSync = Sweep;

TEST_F(NothingToSync, TheKernelAsksOnce) {
  struct statfs kind {};
  ASSERT_OK(::statfs(place().scratch().c_str(), &kind));
  if (kind.f_type != TMPFS_MAGIC) GTEST_SKIP() << "the tests' files are on no tmpfs (OKCVM_TEST_DIR)";
  const auto file = open_file(outputs() / "file", O_RDWR | O_CREAT);
  const auto folder = open_file(outputs(), O_RDONLY | O_DIRECTORY);
  for (int i = 0; i < 2; ++i) {
    for (const auto* synced : {&file, &folder}) {
      EXPECT_OK(::fsync(synced->get()));
      EXPECT_OK(::fdatasync(synced->get()));
    }
    EXPECT_EQ(daemon().ask("count FSYNC"), "1");
    EXPECT_EQ(daemon().ask("count FSYNCDIR"), "1");
    replace_daemon();
  }
}

using LongName = Sweep;

/// It is not among what is known of a file.
TEST_F(LongName, IsGoneOnceItIsRemoved) {
  const std::string name(200, 'n');
  for (int n = 1;; ++n) {
    SCOPED_TRACE("death at point " + std::to_string(n));
    start();
    const auto file = open_file(outputs() / name, O_RDWR | O_CREAT);
    daemon_->ask("forget changes");
    arm("kill:" + std::to_string(n));
    EXPECT_EQ(make({"", "", [](const fs::path& here) { return ANSWER_OF(::unlink(here.c_str())); }, ""},
                   outputs() / name),
              "ok");
    disarm();
    const int deaths = takeovers_;
    EXPECT_EQ(stat_of(file).st_nlink, 0u);
    EXPECT_EQ(daemon_->ask("changed outputs/" + name), "yes");
    daemon_->ask("forget changes");
    write_all(file, "more");
    EXPECT_EQ(daemon_->ask("changed outputs/" + name), "no");
    if (HasFailure() || deaths == 0) break;
    ASSERT_LT(n, 100);
  }
}

class LostForget : public Sweep {
 protected:
  /// Whether so many come to be known. The kernel tells a moment later what it forgot.
  bool comes_to_know(const std::string& nodes) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (daemon_->ask("nodes") != nodes) {
      if (std::chrono::steady_clock::now() > end) return false;
      daemon_->ask("forget changes");
    }
    return true;
  }
  /// Of what the kernel forgot the daemon that died knew alone.
  void expect_room_after(const std::function<void()>& removal) {
    for (int n = 1;; ++n) {
      SCOPED_TRACE("death at point " + std::to_string(n));
      start();
      const auto nodes = daemon_->ask("nodes");
      write(outputs() / "file", "bytes");
      arm("kill:" + std::to_string(n));
      daemon_->ask("tell of outputs/file");
      disarm();
      const int deaths = takeovers_;
      removal();
      EXPECT_TRUE(comes_to_know(nodes)) << daemon_->ask("nodes") << " nodes, not " << nodes;
      if (HasFailure() || deaths == 0) break;
      ASSERT_LT(n, 100);
    }
  }
};

TEST_F(LostForget, DoesNotKeepWhatIsRemovedLater) {
  expect_room_after([this] { EXPECT_OK(::unlink((outputs() / "file").c_str())); });
}

TEST_F(LostForget, DoesNotKeepWhatADeadDaemonsRestoreTook) {
  expect_room_after([this] {
    daemon_->ask("begin to take away outputs/file");
    replace_daemon();
  });
}

/// The kernel does not know that file yet.
TEST_F(LostForget, IsNotThatOfAFileWithoutANameThatIsBeingMade) {
  replace_daemon();
  write(outputs() / "first", "");
  const auto nodes = daemon_->ask("nodes");
  arm("delay:backing.opened:300");
  ChildProcess program([&](ChildProcess& self) {
    self.send(link_nameless(outputs()));
    return 0;
  });
  while (daemon_->ask("nodes") == nodes) continue;
  daemon_->ask("forget changes");
  disarm();
  EXPECT_EQ(program.receive(), link_nameless(place_->plain()));
  EXPECT_EQ(program.join(), 0);
}

using FirstWrite = Sweep;

TEST_F(FirstWrite, MakesItsFoldersAllTheSame) {
  for (int n = 1;; ++n) {
    SCOPED_TRACE("death at point " + std::to_string(n));
    start();
    arm("kill:" + std::to_string(n));
    const Call call{
        "", "", [](const fs::path& here) { return answer_of_open(here / "first", O_CREAT | O_WRONLY); }, ""};
    EXPECT_EQ(make(call, outputs()), "ok");
    disarm();
    EXPECT_THAT(list(place_->workspace()), ::testing::ElementsAre("outputs"));
    EXPECT_THAT(list(outputs()), ::testing::ElementsAre("first"));
    EXPECT_EQ(daemon_->ask("changed outputs/first"), "yes");
    if (HasFailure() || takeovers_ == 0) break;
    ASSERT_LT(n, 100);
  }
}

TEST_F(FirstWrite, ThatFailsLeavesNothingHalf) {
  arm("errno:backing.mkdir:0:ENOSPC");
  const Call call{"", "", [](const fs::path& here) { return ANSWER_OF(::mkdir((here / "d").c_str(), 0755)); },
                  ""};
  EXPECT_EQ(make(call, outputs()), "ENOSPC");
  disarm();
  EXPECT_THAT(list(outputs()), IsEmpty());
}

}  // namespace
}  // namespace okcvm::test
