#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>

#include "tests/mount/daemon_process.h"
#include "tests/support/expect.h"
#include "tests/support/file_io.h"
#include "tests/support/process.h"
#include "tests/support/session.h"
#include "tests/support/watchdog.h"

namespace okcvm::test {

/// A session whose daemon is killed and replaced.
class TakeOver : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = why_no_mounts(); !reason.empty()) GTEST_SKIP() << reason;
    Watchdog::instance().expect_progress(Watchdog::usual_limit());
    ASSERT_NO_FATAL_FAILURE(start());
    if (daemon_->ask("survives") != "yes") GTEST_SKIP() << "mounts do not outlive their daemon here";
  }
  void TearDown() override {
    daemon_.reset();
    place_.reset();
    Watchdog::instance().rest();
  }

  /// Anew, with nothing of the session that was there.
  void start(const Session::Adjust& adjust = nullptr) {
    daemon_.reset();
    place_ = std::make_unique<SessionPlace>();
    before_mount();
    daemon_ = std::make_unique<DaemonProcess>(*place_, adjust);
    ASSERT_TRUE(daemon_->mount()) << daemon_->why();
  }
  virtual void before_mount() {}

  DaemonProcess& daemon() { return *daemon_; }
  std::filesystem::path outputs() const { return place_->outputs(); }
  std::filesystem::path temp() const { return place_->temp(); }
  SessionPlace& place() { return *place_; }

  void replace_daemon() {
    daemon().kill();
    ASSERT_TRUE(daemon().take_over()) << daemon().why();
  }
  /// Runs `work` in a process of its own while the daemon is killed and replaced, again and again, each at
  /// most `life` after it began. `work` returns 0, or which of its steps failed.
  void survives(const std::function<int(int round)>& work, int kills = 12,
                std::chrono::microseconds life = std::chrono::milliseconds(60)) {
    constexpr int kRounds = 100'000;
    ChildProcess worker([&](ChildProcess& self) {
      for (int round = 0; round < kRounds; ++round) {
        if (const int step = work(round); step != 0) {
          self.send("round " + std::to_string(round) + ", step " + std::to_string(step) + ": " +
                    errno_name(errno));
          return 1;
        }
        if (there_is(place().scratch() / "enough")) return 0;
      }
      return 0;
    });
    std::mt19937 random(7);
    for (int i = 0; i < kills; ++i) {
      // The moment of death is meant to be any.
      ::usleep(static_cast<useconds_t>(random() % static_cast<unsigned long>(life.count())));
      replace_daemon();
    }
    write(place().scratch() / "enough", "");
    EXPECT_EQ(worker.receive(), "");
    EXPECT_EQ(worker.join(), 0);
  }

  std::unique_ptr<SessionPlace> place_;
  std::unique_ptr<DaemonProcess> daemon_;
};

}  // namespace okcvm::test
