// okcvmd dies at every point of an operation on a session: in the registry, the mount, the snapshot store.
// Its keeper starts the next one. Then the operation is done or not done at all, and nothing is left of what
// is not.

#include <gmock/gmock.h>

#include <cstdlib>
#include <functional>
#include <map>

#include "tests/mount/sweep_stride.h"
#include "tests/soak/kept_daemon.h"
#include "tests/support/expect.h"
#include "tests/support/file_io.h"
#include "tests/support/scratch.h"
#include "tests/support/session.h"
#include "tests/support/watchdog.h"

namespace okcvm::test {
namespace {

namespace fs = std::filesystem;
using ::testing::IsEmpty;

constexpr std::chrono::seconds kLimit{30};

class SessionSweep : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = why_no_mounts(); !reason.empty()) GTEST_SKIP() << reason;
  }
  void TearDown() override {
    daemon_.reset();
    top_.reset();
    ::unsetenv("OKCVM_FAULT");
    Watchdog::instance().rest();
  }

  using Arguments = std::vector<std::string>;

  CommandResult ask(const Arguments& arguments) { return daemon_->command(arguments, kLimit); }
  void must(const Arguments& arguments) {
    const auto result = ask(arguments);
    EXPECT_EQ(result.exit_code, 0) << arguments[0] << ": " << result.output;
  }
  fs::path outputs(const std::string& id) const { return daemon_->mount_of(id) / "outputs"; }

  bool is_listed(const std::string& id) {
    return ask({"list", "--json"}).output.find('"' + id + '"') != std::string::npos;
  }
  /// Wholly there, mounted and in working order, or not at all with nothing left. Answers which.
  bool is_whole(const std::string& id) {
    const bool listed = is_listed(id);
    if (listed) {
      EXPECT_NE(read(daemon_->mount_of(id) / ".metadata.json").find(id), std::string::npos);
      write(outputs(id) / "works", "yes");
      EXPECT_EQ(read(*top_ / "state/workspaces" / id / "outputs/works"), "yes");
      must({"snapshot", id});
      must({"verify", id});
    } else {
      for (const auto& left : {"state/workspaces/" + id, "state/snapshots/" + id + ".git",
                               "state/changes/" + id, "state/changes/." + id, "mnt/okcvm-" + id})
        EXPECT_FALSE(there_is(*top_ / left)) << left;
      for (const auto& name : list(*top_ / "run/sessions")) EXPECT_FALSE(name.starts_with(id + ".")) << name;
    }
    EXPECT_THAT(list(*top_ / "state/discarded"), IsEmpty());
    return listed;
  }

  /// Prepares, runs the command in which the daemon dies at its Nth point, and looks, for every N there is
  /// from `first` on, `stride` apart.
  void sweep(const std::function<void()>& prepare, const Arguments& command,
             const std::function<void(bool done)>& look, int first = 1, int stride = 1) {
    for (int n = first;; n += stride) {
      SCOPED_TRACE("death at point " + std::to_string(n));
      Watchdog::instance().expect_progress(Watchdog::usual_limit());
      daemon_.reset();
      top_ = std::make_unique<ScratchDirectory>("sweep");
      Watchdog::instance().guard(top_->path());
      ::setenv("OKCVM_FAULT", ("file:" + (*top_ / "fault").string()).c_str(), 1);
      fs::create_directories(*top_ / "state/skills/tool");
      write(*top_ / "state/skills/tool/SKILL.md", "how to");
      daemon_ = std::make_unique<soak::KeptDaemon>(top_->path(), Arguments{});
      prepare();
      const pid_t before = daemon_->daemon();
      write(*top_ / "draft", "kill:" + std::to_string(n));
      fs::rename(*top_ / "draft", *top_ / "fault");
      auto filled_in = command;
      for (auto& argument : filled_in)
        if (argument == kSnapshot) argument = snapshot_;
      const bool done = ask(filled_in).exit_code == 0;
      fs::remove(*top_ / "fault");
      must({"status"});  // answered by the next daemon
      look(done);
      const bool died = daemon_->daemon() != before;
      daemon_->stop();
      EXPECT_THAT(list(*top_ / "mnt"), IsEmpty());
      if (HasFailure() || !died) break;
      ASSERT_LT(n, 200);
    }
  }

  static constexpr const char* kSnapshot = "SNAPSHOT";
  std::string snapshot_;  // what kSnapshot stands for
  std::unique_ptr<ScratchDirectory> top_;
  std::unique_ptr<soak::KeptDaemon> daemon_;
};

TEST_F(SessionSweep, ACreationIsDoneOrNot) {
  sweep([] {}, {"create", "--id", "s", "--skill", "tool"},
        [&](bool done) {
          const bool is_there = is_whole("s");
          EXPECT_TRUE(is_there || !done);
          if (is_there) {
            EXPECT_EQ(read(daemon_->mount_of("s") / "skills/tool/SKILL.md"), "how to");
          } else {
            must({"create", "--id", "s"});
          }
        });
}

TEST_F(SessionSweep, AnAgentHasOneSession) {
  sweep([] {}, {"create", "--agent", "a"},
        [&](bool) {
          must({"create", "--agent", "a"});
          must({"create", "--agent", "child", "--parent-agent", "a"});
          EXPECT_EQ(list(*top_ / "mnt").size(), 1u);
        });
}

TEST_F(SessionSweep, ADeletionIsDoneOrNot) {
  const auto prepare = [&] {
    must({"create", "--id", "s"});
    write(outputs("s") / "file", "x");
    must({"snapshot", "s"});
  };
  sweep(prepare, {"delete", "s"}, [&](bool done) {
    const bool is_there = is_whole("s");
    EXPECT_FALSE(is_there && done);
    if (is_there) {
      EXPECT_EQ(read(outputs("s") / "file"), "x");
    }
    must({"delete", "s"});
    EXPECT_FALSE(is_whole("s"));
    must({"create", "--id", "s"});
    EXPECT_THAT(list(outputs("s")), IsEmpty());
  });
}

TEST_F(SessionSweep, AForkIsDoneOrNot) {
  const auto prepare = [&] {
    must({"create", "--id", "origin"});
    write(outputs("origin") / "file", "x");
    must({"snapshot", "origin"});
  };
  sweep(prepare, {"fork", "origin", "--id", "s"}, [&](bool done) {
    const bool is_there = is_whole("s");
    EXPECT_TRUE(is_there || !done);
    if (is_there) {
      EXPECT_EQ(read(outputs("s") / "file"), "x");
    }
    EXPECT_TRUE(is_whole("origin"));
  });
}

TEST_F(SessionSweep, ASkillIsLoadedOrNot) {
  sweep(
      [&] {
        must({"create", "--id", "s"});
      },
      {"skill", "load", "s", "tool"},
      [&](bool done) {
        const bool is_shown = there_is(daemon_->mount_of("s") / "skills/tool/SKILL.md");
        EXPECT_TRUE(is_shown || !done);
        EXPECT_EQ(read(daemon_->mount_of("s") / ".metadata.json").find("tool") != std::string::npos,
                  is_shown);
        EXPECT_TRUE(is_whole("s"));
      });
}

TEST_F(SessionSweep, AnUnmountIsDoneOrNot) {
  const auto prepare = [&] {
    must({"create", "--id", "s"});
    write(outputs("s") / "file", "x");
  };
  sweep(prepare, {"unmount", "s"}, [&](bool done) {
    const bool is_mounted = there_is(daemon_->mount_of("s") / ".metadata.json");
    EXPECT_FALSE(is_mounted && done);
    EXPECT_EQ(there_is(daemon_->mount_of("s")), is_mounted);
    must({"load", "s"});
    EXPECT_EQ(read(outputs("s") / "file"), "x");
    EXPECT_TRUE(is_whole("s"));
  });
}

/// Seen through the mount, where the kernel had kept the old file and that the new ones were not there.
TEST_F(SessionSweep, AWriteOverTheSocketIsSeenOrNotDone) {
  const auto prepare = [&] {
    must({"create", "--id", "s"});
    write(outputs("s") / "file", "old");
    EXPECT_EQ(read(outputs("s") / "file"), "old");
    EXPECT_FALSE(there_is(outputs("s") / "dir"));
  };
  const ScratchDirectory texts("text");
  write(texts / "new", "new text");
  const auto look = [&](const std::string& path, bool done) {
    const auto stored = *top_ / "state/workspaces/s/outputs" / path;
    EXPECT_EQ(there_is(outputs("s") / path), there_is(stored));
    EXPECT_TRUE(there_is(stored) || !done);
    if (there_is(stored)) {
      EXPECT_EQ(read(outputs("s") / path), read(stored));
      EXPECT_TRUE(read(stored) == "new text" || !done);
    }
    EXPECT_EQ(list(outputs("s")), list(*top_ / "state/workspaces/s/outputs"));
    EXPECT_TRUE(is_whole("s"));
  };
  for (const std::string path : {"file", "dir/below/file"})
    sweep(prepare, {"write", "s", "outputs/" + path, "--from", texts / "new"},
          [&](bool done) { look(path, done); });
}

TEST_F(SessionSweep, AResetIsSeenOrNotDone) {
  const auto prepare = [&] {
    must({"create", "--id", "s"});
    fs::create_directories(daemon_->mount_of("s") / "temp/dir/below");
    write(daemon_->mount_of("s") / "temp/dir/file", "x");
  };
  sweep(prepare, {"reset", "s"}, [&](bool done) {
    const auto temp = daemon_->mount_of("s") / "temp";
    if (done) {
      EXPECT_THAT(list(temp), IsEmpty());
    }
    EXPECT_EQ(there_is(temp / "dir/file"), there_is(*top_ / "state/workspaces/s/temp/dir/file"));
    EXPECT_EQ(list(temp), list(*top_ / "state/workspaces/s/temp"));
    EXPECT_TRUE(is_whole("s"));
  });
}

/// Seen through the mount, whose names and attributes the kernel had kept.
TEST_F(SessionSweep, ARestoreIsDoneOrNot) {
  const std::string three = "three";
  const std::string long_name(100, 'n');  // the driver does not remember it
  std::map<std::string, FileDescriptor> open_files;
  std::map<std::string, std::pair<FileDescriptor, struct stat>> going;
  const auto prepare = [&] {
    open_files.clear();
    going.clear();
    must({"create", "--id", "s"});
    for (const char* name : {"one", "two"}) write(outputs("s") / name, "old");
    snapshot_ = ask({"snapshot", "s"}).output.substr(0, 40);
    write(outputs("s") / "one", "newer");
    fs::remove(outputs("s") / "two");
    for (const auto& name : {three, long_name}) write(outputs("s") / name, "new");
    fs::create_directories(outputs("s") / "dir/below");
    EXPECT_FALSE(there_is(outputs("s") / "two"));
    for (const auto& name : {std::string("one"), three}) {
      ASSERT_OK(::chmod((outputs("s") / name).c_str(), 04755));  // it is not passed through
      open_files[name] = open_file(outputs("s") / name, O_RDONLY);
    }
    for (const auto& name : {std::string("dir"), std::string("dir/below"), long_name}) {
      auto reference = open_file(outputs("s") / name, name == long_name ? O_PATH : O_RDONLY | O_DIRECTORY);
      const auto status = stat_of(reference);
      going[name] = {std::move(reference), status};
    }
  };
  sweep(prepare, {"restore", "s", kSnapshot}, [&](bool done) {
    for (const auto& [name, file] : open_files)
      EXPECT_EQ(read(file), name == "one" ? "newer" : "new") << name;
    for (const auto& [name, file] : open_files) EXPECT_EQ(stat_of(file).st_mode, S_IFREG | 04755u) << name;
    open_files.clear();
    const bool is_old = read(outputs("s") / "one") == "old";
    for (const auto& [name, reference] : going) {
      const auto status = stat_of(reference.first);
      EXPECT_EQ(status.st_ino, reference.second.st_ino) << name;
      EXPECT_EQ(status.st_mode, reference.second.st_mode) << name;
      EXPECT_EQ(status.st_nlink, is_old ? 0u : reference.second.st_nlink) << name;
    }
    EXPECT_TRUE(is_old || !done);
    EXPECT_EQ(read(outputs("s") / "one"), is_old ? "old" : "newer");
    EXPECT_EQ(there_is(outputs("s") / "two"), is_old);
    for (const auto& name : {three, long_name}) EXPECT_EQ(there_is(outputs("s") / name), !is_old) << name;
    EXPECT_EQ(there_is(outputs("s") / "dir"), !is_old);
    EXPECT_EQ(list(outputs("s")), list(*top_ / "state/workspaces/s/outputs"));
    EXPECT_TRUE(is_whole("s"));
  });
}

/// Who stands in a directory goes on in it, wherever it is then. Each has the points that the others leave
/// out, or with OKCVM_SWEEP_STRIDE=1 all of them.
class DirectorySweep : public SessionSweep,
                       public ::testing::WithParamInterface<std::pair<int, const char*>> {};

TEST_P(DirectorySweep, IsRenamedBackOrNot) {
  const fs::path elsewhere = GetParam().second, first = "outputs/x/p";
  FileDescriptor stand;
  const auto session = [&] { return daemon_->mount_of("s"); };
  const auto prepare = [&] {
    stand.reset();
    must({"create", "--id", "s"});
    fs::create_directories(session() / first / "sub");
    write(session() / first / "sub/file", "old");
    ASSERT_OK(::symlink("sub/file", (session() / first / "link").c_str()));
    snapshot_ = ask({"snapshot", "s"}).output.substr(0, 40);
    fs::create_directories(session() / elsewhere.parent_path());
    fs::rename(session() / first, session() / elsewhere);
    if (elsewhere.parent_path() != first.parent_path()) fs::remove(session() / first.parent_path());
    write(session() / elsewhere / "sub/file", "newer");
    EXPECT_EQ(read(session() / elsewhere / "link"), "newer");
    stand = open_file(session() / elsewhere / "sub", O_RDONLY | O_DIRECTORY);
  };
  const auto look = [&](bool done) {
    // Before anybody looks for it by its name.
    const bool is_back = there_is(*top_ / "state/workspaces/s" / first);
    const fs::path place = is_back ? first : elsewhere;
    EXPECT_EQ(fs::read_symlink("/proc/self/fd/" + std::to_string(stand.get())), session() / place / "sub");
    const FileDescriptor made(::openat(stand.get(), "made", O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644));
    EXPECT_TRUE(made);
    EXPECT_TRUE(is_back || !done);
    EXPECT_EQ(there_is(session() / first), is_back);
    EXPECT_NE(there_is(session() / elsewhere), is_back);
    EXPECT_EQ(list(session() / place / "sub"), (std::vector<std::string>{"file", "made"}));
    EXPECT_EQ(list(*top_ / "state/workspaces/s" / place / "sub"), (std::vector<std::string>{"file", "made"}));
    EXPECT_EQ(read(session() / place / "link"), is_back ? "old" : "newer");
    EXPECT_EQ(stat_of(stand).st_ino, stat_of(session() / place / "sub").st_ino);
    stand.reset();
    EXPECT_TRUE(is_whole("s"));
  };
  const auto [first_point, stride] = takes_every_point() ? std::pair(1, 1) : std::pair(GetParam().first, 3);
  sweep(prepare, {"restore", "s", kSnapshot}, look, first_point, stride);
}
INSTANTIATE_TEST_SUITE_P(To, DirectorySweep,
                         ::testing::Values(std::pair(1, "outputs/x/q"), std::pair(2, "temp/q"),
                                           std::pair(3, "temp/deep/er/q")),
                         [](const auto& tested) {
                           std::string name = tested.param.second;
                           std::replace(name.begin(), name.end(), '/', '_');
                           return name;
                         });

}  // namespace
}  // namespace okcvm::test
