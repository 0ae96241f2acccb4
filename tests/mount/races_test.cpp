#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "tests/support/mounted_session.h"

namespace okcvm::test {
namespace {

namespace fs = std::filesystem;

/// A program that looks at an inode again and again while another one changes it.
class Races : public MountedSession {
 protected:
  static constexpr int kRounds = 30;

  void SetUp() override {
    MountedSession::SetUp();
    if (IsSkipped()) return;
    fs::create_directory(here());
    write(file(), "bytes");
  }
  fs::path here() const { return outputs() / "d"; }
  fs::path file() const { return here() / "file"; }
  fs::path other() const { return here() / "other"; }

  /// What the kernel has kept of `path` after each change that raced with looks at it, is the truth.
  void expect_nothing_outdated(const fs::path& path, const std::function<void(int round)>& change) {
    const auto watched = open_file(path, O_RDONLY);
    std::atomic<int> begun{0};
    std::atomic<int> ended{0};
    std::jthread looker([&](const std::stop_token& stop) {
      for (int round = 0; !stop.stop_requested();) {
        if (begun == round) continue;
        round = begun;
        for (int i = 0; i < 2; ++i) stat_of(watched);
        ended = round;
      }
    });
    int outdated = 0;
    for (int round = 0; round < kRounds; ++round) {
      let_the_clock_go_on();
      ::fsetxattr(watched.get(), "user.round", &round, sizeof round, 0);  // so that the looks must ask
      let_the_clock_go_on();
      begun = round + 1;
      for (std::atomic<int> spins = round * 97 % 4000; spins > 0; --spins) continue;
      change(round);
      while (ended != round + 1) continue;
      outdated += described(watched, 0) != described(watched, AT_STATX_FORCE_SYNC);
    }
    EXPECT_EQ(outdated, 0) << "of " << kRounds;
  }

 private:
  /// Inodes are stamped by a clock that moves every few milliseconds.
  static void let_the_clock_go_on() { ::poll(nullptr, 0, 5); }

  static std::string described(const FileDescriptor& watched, int how) {
    struct statx found {};
    EXPECT_OK(::statx(watched.get(), "", AT_EMPTY_PATH | how, STATX_BASIC_STATS, &found));
    std::string text;
    for (const auto& time : {found.stx_mtime, found.stx_ctime})
      text += std::to_string(time.tv_sec) + "." + std::to_string(time.tv_nsec) + " ";
    return text + std::to_string(found.stx_nlink) + " " + std::to_string(found.stx_size) + " " +
           std::to_string(found.stx_blocks);
  }
};

TEST_F(Races, ADirectoryInWhichDirectoriesComeAndGo) {
  expect_nothing_outdated(here(), [this](int round) {
    EXPECT_OK(round % 2 ? ::rmdir(other().c_str()) : ::mkdir(other().c_str(), 0755));
  });
}

TEST_F(Races, ADirectoryInWhichFilesComeAndGo) {
  expect_nothing_outdated(here(), [this](int round) {
    if (round % 2)
      EXPECT_OK(::unlink(other().c_str()));
    else
      EXPECT_TRUE(open_file(other(), O_CREAT | O_WRONLY));
  });
}

TEST_F(Races, ADirectoryInWhichLinksComeAndGo) {
  expect_nothing_outdated(here(), [this](int round) {
    if (round % 2)
      EXPECT_OK(::unlink(other().c_str()));
    else
      EXPECT_OK(round % 4 ? ::symlink("file", other().c_str()) : ::link(file().c_str(), other().c_str()));
  });
}

TEST_F(Races, TheDirectoriesOfARename) {
  const auto target = here() / "sub";
  fs::create_directory(target);
  const auto moved = [&](int round) {
    const auto from = round % 2 ? target / "file" : file();
    const auto to = round % 2 ? file() : target / "file";
    EXPECT_OK(::rename(from.c_str(), to.c_str()));
  };
  expect_nothing_outdated(here(), moved);
  expect_nothing_outdated(target, moved);
}

TEST_F(Races, AFileThatIsRenamed) {
  expect_nothing_outdated(file(), [this](int round) {
    EXPECT_OK(round % 2 ? ::rename(other().c_str(), file().c_str())
                        : ::rename(file().c_str(), other().c_str()));
  });
}

TEST_F(Races, AFileWhoseExtendedAttributesChange) {
  expect_nothing_outdated(file(), [this](int round) {
    EXPECT_OK(round % 2 ? ::removexattr(file().c_str(), "user.a")
                        : ::setxattr(file().c_str(), "user.a", "1", 1, 0));
  });
}

TEST_F(Races, AFileThatIsAllocatedAndTruncated) {
  const auto writer = open_file(file(), O_WRONLY);
  expect_nothing_outdated(file(), [&](int round) {
    EXPECT_OK(round % 2 ? ::ftruncate(writer.get(), 0)
                        : ::fallocate(writer.get(), FALLOC_FL_KEEP_SIZE, 0, 65'536));
  });
}

/// Over the control socket: in the kernel, one removal waits for the other.
TEST_F(Races, TheTwoNamesOfAFileThatAreRemovedAtOnce) {
  const auto remove = [this](const char* path) {
    EXPECT_TRUE(session().files().remove({}, value_of(RelPath::parse(path)), false));
  };
  int lost = 0;
  for (int round = 0; round < 1000; ++round) {
    EXPECT_OK(::mknod(other().c_str(), S_IFREG | 0644, 0));
    EXPECT_OK(::link(other().c_str(), (here() / "link").c_str()));
    const auto found = open_file(other(), O_PATH);
    std::atomic<bool> go{false};
    std::jthread remover([&] {
      go = true;
      remove("outputs/d/link");
    });
    while (!go) continue;
    remove("outputs/d/other");
    remover.join();
    struct statx now {};
    lost += ::statx(found.get(), "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &now) != 0;
  }
  EXPECT_EQ(lost, 0) << "an inode without a name is held as long as it is known";
}

// With a change of the extended attributes the kernel itself drops no more than the change time.
TEST_F(Races, WhatAnotherThreadAskedForIsDroppedWhenItChanges) {
  const auto change = [this] { EXPECT_OK(::setxattr(file().c_str(), "user.a", "1", 1, 0)); };
  const auto requests_of_a_look = [this] {
    const auto before = count_of("GETATTR");
    struct statx found {};
    EXPECT_OK(::statx(AT_FDCWD, file().c_str(), 0, STATX_SIZE, &found));
    return count_of("GETATTR") - before;
  };
  std::jthread([this] { stat_of(file()); }).join();
  change();
  EXPECT_EQ(requests_of_a_look(), 1u);
  EXPECT_EQ(requests_of_a_look(), 0u);
  change();
  EXPECT_EQ(requests_of_a_look(), 0u) << "nobody else could have an answer to take up";
}

/// Links that may have so many ".." only where they stand deep enough, and would lead to a file of the host.
class DeepLinks : public Races {
 protected:
  void SetUp() override {
    Races::SetUp();
    if (IsSkipped()) return;
    std::string up, down = "deep";
    for (int i = 0; i < 16; ++i) {
      down += "/d";
      up += "../";
    }
    deep_ = here() / down;
    std::filesystem::create_directories(deep_ / "d");
    std::filesystem::create_directory(shallow());
    ASSERT_OK(::symlink((up + "proc/self/status").c_str(), (deep_ / "link").c_str()));
    ASSERT_OK(::symlink((up + "../proc/self/status").c_str(), (deep_ / "d/link").c_str()));
  }
  std::filesystem::path deep() const { return deep_; }
  std::filesystem::path shallow() const { return here() / "shallow"; }
  static bool leads_out(const std::filesystem::path& link) {
    return FileDescriptor(::open(link.c_str(), O_RDONLY | O_CLOEXEC)).get() >= 0;
  }

 private:
  std::filesystem::path deep_;
};

TEST_F(DeepLinks, NeverLeadOutWhileTheyMove) {
  std::atomic<bool> done{false};
  std::jthread mover([&, from = deep() / "link", to = shallow() / "link"] {
    while (!done) {
      EXPECT_OK(::rename(from.c_str(), to.c_str()));
      std::this_thread::yield();
      EXPECT_OK(::rename(to.c_str(), from.c_str()));
    }
  });
  int led_out = 0;
  for (int i = 0; i < 20'000; ++i) led_out += leads_out(shallow() / "link");
  done = true;
  mover.join();
  EXPECT_EQ(led_out, 0);
}

TEST_F(DeepLinks, DoNotLeadOutWhileTheirDirectoryMovesDeeper) {
  enum Phase { kIdle, kMoving, kMoved };
  std::atomic<int> phase{kIdle};
  int led_out = 0;
  std::jthread opener([&, link = shallow() / "d/link"](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      if (phase == kIdle) continue;
      led_out += leads_out(link);
      if (phase == kMoved) phase = kIdle;
    }
  });
  for (int round = 0; round < 1500; ++round) {
    ASSERT_OK(::rename((deep() / "d").c_str(), (shallow() / "d").c_str()));
    phase = kMoving;
    ASSERT_OK(::rename((shallow() / "d").c_str(), (deep() / "d").c_str()));
    phase = kMoved;
    while (phase != kIdle) std::this_thread::yield();
  }
  opener.request_stop();
  opener.join();
  EXPECT_EQ(led_out, 0);
}

/// The driver finds out whether a file can still be written to by taking a lease on it, for a moment in which
/// an open that may not wait would fail.
TEST_F(Races, AnOpenThatMayNotWaitIsNotInTheDriversWay) {
  const auto path = file().string();
  std::jthread opener([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) open_file(path, O_RDWR);
  });
  std::jthread looker([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) stat_of(path);
  });
  int refused = 0;
  for (int i = 0; i < 20'000; ++i)
    refused += ERRNO_OF(FileDescriptor(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC)).get()) != 0;
  EXPECT_EQ(refused, 0);
}

TEST_F(Races, ALinkCanBeReadRightAfterItMovedDeeper) {
  std::filesystem::create_directories(here() / "a/b/c");
  for (int round = 0; round < 500; ++round) {
    ASSERT_OK(::symlink("../../..", (here() / "a/b/link").c_str()));
    ASSERT_OK(::rename((here() / "a/b/link").c_str(), (here() / "a/b/c/link").c_str()));
    ASSERT_EQ(link_text(here() / "a/b/c/link"), "../../..");
    ASSERT_OK(::unlink((here() / "a/b/c/link").c_str()));
  }
}

}  // namespace
}  // namespace okcvm::test
