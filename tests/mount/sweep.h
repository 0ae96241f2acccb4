#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "tests/mount/sweep_calls.h"
#include "tests/mount/take_over.h"
#include "tests/support/manifest.h"
#include "tests/support/mounted_session.h"

namespace okcvm::test {

/// A session whose daemon can be made to die, wait or fail at its fault points, and is replaced then.
class Sweep : public TakeOver {
 protected:
  void TearDown() override {
    TakeOver::TearDown();
    ::unsetenv("OKCVM_FAULT");
  }
  void before_mount() override { ::setenv("OKCVM_FAULT", ("file:" + fault().string()).c_str(), 1); }

  std::filesystem::path fault() const { return place_->scratch() / "fault"; }

  /// Makes `call` in a process of its own, in a directory.
  std::string make(
      const Call& call, const std::filesystem::path& here, const std::function<void()>& meanwhile = [] {}) {
    ChildProcess client([&](ChildProcess& self) {
      self.send(become(call.user) ? call.make(here) : "nobody");
      return 0;
    });
    takeovers_ += daemon_->serve_until_end_of(client.pid(), meanwhile);
    const auto seen = client.receive();
    EXPECT_EQ(client.join(), 0);
    return seen;
  }

  void arm(const std::string& faults) {
    takeovers_ = 0;
    write(place_->scratch() / "draft", faults);
    std::filesystem::rename(place_->scratch() / "draft", fault());
  }
  /// A program's end is followed by requests of its own, in which the daemon may die as well.
  void disarm() {
    for (bool is_alive = false;
         !is_alive || std::filesystem::exists(fault());) {  // what dies just now writes the file again
      std::filesystem::remove(fault());
      is_alive = !daemon_->ask("nodes").empty();
      if (is_alive) continue;
      ++takeovers_;
      daemon_->reap();
      if (daemon_->take_over()) continue;
      ASSERT_LT(takeovers_, 100) << daemon_->why();
    }
  }

  static void prepare(const Call& call, const std::filesystem::path& here) {
    ASSERT_OK(::mkdir(here.c_str(), 0777));
    ASSERT_OK(::chmod(here.c_str(), 0777));
    ASSERT_EQ(run_script(call.prepare, here).output, "");
  }

  /// Makes the call while deaths happen as `faults` says. Answers whether any did.
  bool dies(const Call& call, const std::string& faults, const std::string& where) {
    prepare(call, outputs() / where);
    prepare(call, place_->plain() / where);
    daemon_->ask("forget changes");
    arm(faults);
    const auto seen = make(call, outputs() / where);
    disarm();
    EXPECT_EQ(seen, make(call, place_->plain() / where));
    ManifestScope scope;
    scope.times = false;
    EXPECT_THAT(differences(manifest_of(place_->plain() / where), manifest_of(outputs() / where), scope),
                ::testing::IsEmpty());
    EXPECT_THAT(differences(manifest_of(outputs() / where),
                            manifest_of(place_->workspace() / "outputs" / where), scope),
                ::testing::IsEmpty());
    if (*call.changed) {
      EXPECT_EQ(daemon_->ask("changed outputs/" + where + "/" + call.changed), "yes");
    }
    expect_all_closed(where);
    return takeovers_ > 0;
  }

  /// Once they are removed, neither the driver nor the kernel on its behalf (a backing id) has the files of a
  /// directory open any more: a write lease is for who has a file open alone. The last RELEASE may be on its
  /// way still.
  void expect_all_closed(const std::string& where) {
    std::map<ino_t, FileDescriptor> files;
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(place_->workspace() / "outputs" / where))
      if (entry.is_regular_file() && !entry.is_symlink())
        files[stat_of(entry.path()).st_ino] =
            FileDescriptor(::open(entry.path().c_str(), O_RDWR | O_CLOEXEC));
    std::filesystem::remove_all(outputs() / where);
    for (const auto& [inode, file] : files) {
      int tries = 0;
      for (; ::fcntl(file.get(), F_SETLEASE, F_WRLCK) != 0 && tries < kMostTries; ++tries)
        daemon_->ask("nodes");
      EXPECT_LT(tries, kMostTries) << "a file is still open";
    }
    int tries = 0;
    for (; has_hidden_files() && tries < kMostTries; ++tries) daemon_->ask("nodes");
    EXPECT_LT(tries, kMostTries) << "a removed file still has a hidden name";
  }

  bool has_hidden_files() const {
    const auto names = list(place_->workspace());
    return std::any_of(names.begin(), names.end(),
                       [](const std::string& name) { return name.starts_with(".orphan"); });
  }

  static constexpr int kMostTries = 10'000;
  int takeovers_ = 0;
};

}  // namespace okcvm::test
