#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <thread>

#include "tests/support/mounted_session.h"

namespace okcvm::test {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::IsEmpty;
using ::testing::Not;

bool is_below(const std::string& path, const std::string& top) {
  return path == top || path.starts_with(top + "/");
}

/// What a snapshot would have to look at: the change set replayed, as policy/change_set.h says it must be.
class ToRead {
 public:
  explicit ToRead(const ChangeSet& changes) : rescan_(changes.rescan) {
    for (const auto& change : changes.changes) {
      if (change.kind == ChangeKind::kMoved)
        move(change.path.text(), change.target.text());
      else
        paths_[change.path.text()].insert(change.kind);
    }
  }

  /// Whether this path's bytes would be read again.
  bool content_of(const std::string& path) const {
    return rescan_ || found(path, ChangeKind::kContent) || found(path, ChangeKind::kEntry) ||
           in_new_tree(path);
  }
  bool attributes_of(const std::string& path) const {
    return found(path, ChangeKind::kAttributes) || content_of(path);
  }
  bool entry_of(const std::string& path) const {
    return rescan_ || found(path, ChangeKind::kEntry) || moved_.contains(path) || in_new_tree(path);
  }
  bool nothing() const { return !rescan_ && paths_.empty() && moved_.empty(); }

 private:
  bool found(const std::string& path, ChangeKind kind) const {
    const auto at = paths_.find(path);
    return at != paths_.end() && at->second.contains(kind);
  }
  bool in_new_tree(const std::string& path) const {
    for (const auto& [top, kinds] : paths_)
      if (kinds.contains(ChangeKind::kTree) && is_below(path, top)) return true;
    return false;
  }
  void move(const std::string& from, const std::string& to) {
    std::map<std::string, std::set<ChangeKind>> after;
    for (const auto& [path, kinds] : paths_)
      if (!is_below(path, to)) after[is_below(path, from) ? to + path.substr(from.size()) : path] = kinds;
    paths_ = std::move(after);
    moved_.insert(from);
    moved_.insert(to);
  }

  bool rescan_;
  std::map<std::string, std::set<ChangeKind>> paths_;
  std::set<std::string> moved_;
};

class Changes : public MountedSession {
 protected:
  /// Waits until the kernel has told of the last close (it does so a moment later), then cuts and retires:
  /// what is there now counts as saved.
  void save() {
    for (int i = 0; i < 5000 && session().driver().statistics().open_files > 0; ++i) ::usleep(1000);
    save_as_it_is();
  }
  void save_as_it_is() { retire(cut()); }
  void retire(const ChangeSet& changes) { session().driver().retire_changes(changes); }
  ChangeSet cut() { return session().driver().cut_changes(); }
  ToRead to_read() { return ToRead(cut()); }
};

TEST_F(Changes, NothingChangedNothingToRead) {
  EXPECT_TRUE(cut().empty());
  list(outputs());
  EXPECT_ERRNO(ENOENT, ::unlink((outputs() / "missing").c_str()));
  EXPECT_TRUE(to_read().nothing());
}

TEST_F(Changes, ReadingIsNoChange) {
  write(outputs() / "file", "x");
  save();
  read(outputs() / "file");
  stat_of(outputs() / "file");
  list(outputs());
  EXPECT_TRUE(to_read().nothing());
}

TEST_F(Changes, EachKindOfChangeIsRecorded) {
  for (const char* name :
       {"written", "truncated", "opened", "mode", "times", "xattr", "removed", "linked", "old"})
    write(outputs() / name, "content");
  fs::create_directory(outputs() / "directory");
  write(outputs() / "untouched", "x");
  save();
  append(outputs() / "written", "more");
  EXPECT_OK(::truncate((outputs() / "truncated").c_str(), 1));
  EXPECT_OK(::chmod((outputs() / "mode").c_str(), 0600));
  EXPECT_OK(::utimensat(AT_FDCWD, (outputs() / "times").c_str(), nullptr, 0));
  EXPECT_OK(::setxattr((outputs() / "xattr").c_str(), "user.a", "1", 1, 0));
  EXPECT_OK(::unlink((outputs() / "removed").c_str()));
  EXPECT_OK(::link((outputs() / "linked").c_str(), (temp() / "second").c_str()));
  EXPECT_OK(::rename((outputs() / "old").c_str(), (outputs() / "new").c_str()));
  EXPECT_OK(::rmdir((outputs() / "directory").c_str()));
  EXPECT_OK(::mkdir((outputs() / "made").c_str(), 0755));
  write(outputs() / "made/inside", "x");
  EXPECT_OK(::symlink("made", (outputs() / "link").c_str()));
  EXPECT_OK(::mkfifo((outputs() / "pipe").c_str(), 0644));

  const auto seen = to_read();
  EXPECT_TRUE(seen.content_of("outputs/written"));
  EXPECT_TRUE(seen.content_of("outputs/truncated"));
  EXPECT_TRUE(seen.attributes_of("outputs/mode"));
  EXPECT_TRUE(seen.attributes_of("outputs/times"));
  EXPECT_TRUE(seen.attributes_of("outputs/xattr"));
  EXPECT_TRUE(seen.entry_of("outputs/removed"));
  EXPECT_TRUE(seen.entry_of("temp/second"));
  EXPECT_TRUE(seen.entry_of("outputs/old"));
  EXPECT_TRUE(seen.entry_of("outputs/new"));
  EXPECT_TRUE(seen.entry_of("outputs/directory"));
  EXPECT_TRUE(seen.content_of("outputs/made/inside"));
  EXPECT_TRUE(seen.entry_of("outputs/link"));
  EXPECT_TRUE(seen.entry_of("outputs/pipe"));
  EXPECT_FALSE(seen.attributes_of("outputs/untouched"));
  EXPECT_FALSE(seen.content_of("outputs/mode"));
}

TEST_F(Changes, ANewDirectoryIsOneChange) {
  save();
  fs::create_directories(outputs() / "tree/a/b");
  for (int i = 0; i < 300; ++i) write(outputs() / "tree/a/b" / std::to_string(i), "x");
  const auto changes = cut();
  EXPECT_THAT(changes.changes,
              Contains(Change{ChangeKind::kTree, value_of(RelPath::parse("outputs/tree")), {}}));
  EXPECT_LT(changes.changes.size(), 10u);
  EXPECT_TRUE(ToRead(changes).content_of("outputs/tree/a/b/7"));
}

TEST_F(Changes, AWriteBelowAMovedDirectoryIsFoundAtItsNewPlace) {
  fs::create_directories(outputs() / "a/b");
  write(outputs() / "a/b/before", "x");
  write(outputs() / "a/b/after", "x");
  write(outputs() / "a/b/still", "x");
  save();
  append(outputs() / "a/b/before", "1");
  EXPECT_OK(::rename((outputs() / "a").c_str(), (outputs() / "z").c_str()));
  append(outputs() / "z/b/after", "2");
  EXPECT_OK(::rename((outputs() / "z/b").c_str(), (temp() / "b").c_str()));
  const auto seen = to_read();
  EXPECT_TRUE(seen.entry_of("outputs/a"));
  EXPECT_TRUE(seen.entry_of("outputs/z"));
  EXPECT_TRUE(seen.entry_of("temp/b"));
  EXPECT_TRUE(seen.content_of("temp/b/before"));
  EXPECT_TRUE(seen.content_of("temp/b/after"));
  EXPECT_FALSE(seen.content_of("temp/b/still"));
}

TEST_F(Changes, ExchangedPathsAreBothRecorded) {
  write(outputs() / "a", "a");
  write(outputs() / "b", "b");
  save();
  EXPECT_OK(
      ::renameat2(AT_FDCWD, (outputs() / "a").c_str(), AT_FDCWD, (outputs() / "b").c_str(), RENAME_EXCHANGE));
  const auto seen = to_read();
  EXPECT_TRUE(seen.entry_of("outputs/a"));
  EXPECT_TRUE(seen.entry_of("outputs/b"));
}

TEST_F(Changes, AHardLinkedFileIsRecordedByOneOfItsNamesAtLeast) {
  write(outputs() / "one", "x");
  fs::create_directory(temp() / "d");
  EXPECT_OK(::link((outputs() / "one").c_str(), (temp() / "d/two").c_str()));
  save();
  append(temp() / "d/two", "more");
  const auto seen = to_read();
  EXPECT_TRUE(seen.content_of("temp/d/two") || seen.content_of("outputs/one"));
}

TEST_F(Changes, AFileOpenForWritingIsInFlightAndStaysDirty) {
  write(outputs() / "file", "x");
  save();
  auto file = open_file(outputs() / "file", O_RDWR);
  const auto path = value_of(RelPath::parse("outputs/file"));
  const auto first = cut();
  EXPECT_THAT(first.in_flight, Contains(path));
  EXPECT_TRUE(ToRead(first).content_of("outputs/file"));
  session().driver().retire_changes(first);
  write_all(file, "while it is captured");
  const auto second = cut();
  EXPECT_THAT(second.in_flight, Contains(path));
  EXPECT_TRUE(ToRead(second).content_of("outputs/file"));
  session().driver().retire_changes(second);
  file.reset();
  const auto third = cut();
  EXPECT_TRUE(ToRead(third).content_of("outputs/file"));
  session().driver().retire_changes(third);
}

TEST_F(Changes, AnUnopenedFileComesCleanAfterItsLastClose) {
  {
    const auto file = open_file(outputs() / "file", O_CREAT | O_RDWR);
    write_all(file, "x");
  }
  save();
  const auto after = cut();
  EXPECT_THAT(after.in_flight, IsEmpty());
  EXPECT_TRUE(ToRead(after).nothing());
}

TEST_F(Changes, AMappedFileStaysInFlightAfterItsClose) {
  if (session().driver().statistics().passthrough)
    GTEST_SKIP()
        << "with passthrough a mapping holds the backing file alone: the store finds it (still_mapped)";
  auto file = open_file(outputs() / "file", O_CREAT | O_RDWR);
  EXPECT_OK(::ftruncate(file.get(), 4096));
  auto* const memory =
      static_cast<char*>(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0));
  ASSERT_NE(memory, MAP_FAILED);
  file.reset();
  save_as_it_is();
  std::memcpy(memory, "late", 4);
  const auto changes = cut();
  EXPECT_TRUE(ToRead(changes).content_of("outputs/file"));
  // Not by munmap(2), which would hold a lock that the driver needs: it is in this process.
  EXPECT_OK(::msync(memory, 4096, MS_SYNC));
  ::munmap(memory, 4096);
}

TEST_F(Changes, AnUnlinkedOpenFileIsNobodysBusiness) {
  save();
  const auto file = open_file(outputs() / "file", O_CREAT | O_RDWR);
  EXPECT_OK(::unlink((outputs() / "file").c_str()));
  write_all(file, "x");
  const auto changes = cut();
  EXPECT_THAT(changes.in_flight, Not(Contains(value_of(RelPath::parse("outputs/file")))));
}

TEST_F(Changes, WhatIsNotRetiredComesAgain) {
  save();
  write(outputs() / "first", "x");
  const auto failed = cut();
  EXPECT_TRUE(ToRead(failed).content_of("outputs/first"));
  write(outputs() / "second", "x");
  const auto again = cut();
  EXPECT_TRUE(ToRead(again).content_of("outputs/first"));
  EXPECT_TRUE(ToRead(again).content_of("outputs/second"));
  session().driver().retire_changes(again);
  EXPECT_FALSE(to_read().content_of("outputs/first"));
}

TEST_F(Changes, RetiringForgetsOnlyWhatWasInTheSet) {
  save();
  write(outputs() / "first", "x");
  const auto first = cut();
  fs::create_directory(outputs() / "later");
  write(outputs() / "second", "x");
  session().driver().retire_changes(first);
  const auto rest = to_read();
  EXPECT_TRUE(rest.content_of("outputs/second"));
  EXPECT_TRUE(rest.entry_of("outputs/later"));
}

TEST_F(Changes, MarkedPathsAreInTheNextCut) {
  write(outputs() / "file", "x");
  save();
  session().driver().mark_changed({value_of(RelPath::parse("outputs/file"))});
  EXPECT_TRUE(to_read().content_of("outputs/file"));
}

TEST_F(Changes, ZonesThatNoSnapshotHoldsAreNotRecorded) {
  ScratchDirectory host("workdir");
  start_with(
      [&](fusefs::MountConfig& config) { config.workdir = open_file(host.path(), O_RDONLY | O_DIRECTORY); });
  save();
  write(mount() / "workdir/file", "x");
  for (const auto& change : cut().changes) EXPECT_NE(change.path.top(), "workdir") << change.path.text();
}

TEST_F(Changes, TheRecordSurvivesAHandOver) {
  write(outputs() / "old", "x");
  save();
  write(outputs() / "file", "x");
  if (!session().driver().statistics().survives_daemon)
    GTEST_SKIP() << "mounts do not outlive their daemon here";
  session().hand_over();
  const auto seen = to_read();
  EXPECT_TRUE(seen.content_of("outputs/file"));
  EXPECT_FALSE(seen.content_of("outputs/old"));
}

TEST_F(Changes, TheRecordSurvivesACleanRemount) {
  write(outputs() / "old", "x");
  save();
  write(outputs() / "file", "x");
  session().unmount();
  session().remount();
  EXPECT_TRUE(to_read().content_of("outputs/file"));
}

TEST_F(Changes, AFilesNameThatGoesIsRecordedThoughAnotherIsInANewDirectory) {
  write(outputs() / "one", "x");
  save();
  ASSERT_OK(::mkdir((outputs() / "d").c_str(), 0755));
  ASSERT_OK(::link((outputs() / "one").c_str(), (outputs() / "d/two").c_str()));
  ASSERT_OK(::rename((outputs() / "one").c_str(), (outputs() / "three").c_str()));
  const auto seen = to_read();
  EXPECT_TRUE(seen.entry_of("outputs/one"));
  EXPECT_TRUE(seen.entry_of("outputs/three"));
}

TEST_F(Changes, WhatWasNotRecordedIsNotTakenForNoChange) {
  const auto recording = [](bool on) {
    return [on](fusefs::MountConfig& config) { config.record_changes = on; };
  };
  write(outputs() / "old", "x");
  save();
  session().unmount();
  session().remount(recording(false));
  write(outputs() / "file", "x");
  session().unmount();
  session().remount(recording(true));
  EXPECT_TRUE(to_read().content_of("outputs/file"));
}

TEST_F(Changes, WhatWasNotRecordedForAHandOverIsNotTakenForNoChange) {
  write(outputs() / "old", "x");
  save();
  if (!session().driver().statistics().survives_daemon) GTEST_SKIP() << "this kernel cannot resend requests";
  session().hand_over([](fusefs::MountConfig& config) { config.record_changes = false; });
  write(outputs() / "file", "x");
  session().hand_over([](fusefs::MountConfig& config) { config.record_changes = true; });
  EXPECT_TRUE(to_read().content_of("outputs/file"));
}

/// Bytes of memory that the record takes.
std::int64_t size_of_record(Session& session) {
  const auto config = session.config();
  return stat_of(config.runtime_dir / (config.id.text() + ".changes")).st_blocks * 512;
}

TEST_F(Changes, ARecordThatIsNeverAskedForStaysSmall) {
  const std::string name(250, 'n');
  write(outputs() / (name + "0"), "x");
  for (int i = 0; i < 40'000; ++i)
    ASSERT_OK(::rename((outputs() / (name + std::to_string(i % 2))).c_str(),
                       (outputs() / (name + std::to_string((i + 1) % 2))).c_str()));
  EXPECT_LE(size_of_record(session()), 9 << 20);
  const auto changes = cut();
  EXPECT_TRUE(changes.rescan);
  EXPECT_EQ(changes.rescan_reason, "the record of changes grew too long");
  retire(changes);
  EXPECT_FALSE(cut().rescan);
}

TEST_F(Changes, ARecordThatIsNeverEmptyDoesNotGrow) {
  const std::string name(250, 'n');
  for (int i = 0; i < 500; ++i) {
    const auto changes = cut();
    for (int k = 0; k < 20; ++k) write(outputs() / (name + std::to_string(k)), "x");
    retire(changes);  // of before, while the new ones stay
    ASSERT_OK(::unlink((outputs() / (name + "0")).c_str()));
  }
  EXPECT_LE(size_of_record(session()), 256 << 10);
  const auto last = cut();
  EXPECT_FALSE(last.rescan);
  EXPECT_TRUE(ToRead(last).entry_of("outputs/" + name + "0"));
}

/// Changes that race with renames of the directory that they happen in, or of the file itself.
class ChangesAndRenames : public Changes {
 protected:
  static constexpr int kRounds = 1500;

  void SetUp() override {
    Changes::SetUp();
    if (IsSkipped()) return;
    fs::create_directory(outputs() / "0");
    write(outputs() / "0" / "file", "content");
  }
  /// In each round `change` runs while `from` is renamed to `to` (below outputs/); then the record is given
  /// to `check`.
  void race(const std::function<std::string(int round)>& name, const std::function<void(int round)>& change,
            const std::function<bool(const ToRead& read, int round)>& check) {
    int lost = 0;
    for (int round = 0; round < kRounds; ++round) {
      save();
      std::atomic<bool> go{false};
      std::jthread changer([&] {
        while (!go) continue;
        for (std::atomic<int> spins = round * 61 % 6000; spins > 0; --spins) continue;
        change(round);
      });
      go = true;
      EXPECT_OK(::rename((outputs() / name(round)).c_str(), (outputs() / name(round + 1)).c_str()));
      changer.join();
      while (session().driver().statistics().open_files > 0) std::this_thread::yield();
      lost += !check(to_read(), round);
    }
    EXPECT_EQ(lost, 0) << "of " << kRounds;
  }
  static std::string number(int round) { return std::to_string(round % 2); }
};

TEST_F(ChangesAndRenames, AFileWrittenToInADirectoryThatMoves) {
  const auto directory = open_file(outputs() / "0", O_RDONLY | O_DIRECTORY);
  race(
      number,
      [&](int) {
        const FileDescriptor file(::openat(directory.get(), "file", O_WRONLY | O_CLOEXEC));
        write_all(file, "other");
      },
      [](const ToRead& read, int round) {
        return read.content_of("outputs/" + number(round + 1) + "/file");
      });
}

TEST_F(ChangesAndRenames, AFileMadeInADirectoryThatMoves) {
  const auto directory = open_file(outputs() / "0", O_RDONLY | O_DIRECTORY);
  const auto name = [](int round) { return "new" + std::to_string(round); };
  race(
      number,
      [&](int round) { EXPECT_OK(::mknodat(directory.get(), name(round).c_str(), S_IFREG | 0644, 0)); },
      [&](const ToRead& read, int round) {
        return read.entry_of("outputs/" + number(round + 1) + "/" + name(round));
      });
}

// A refusal is told with the path of its directory. The longer that is, the longer it takes to be found out.
TEST_F(ChangesAndRenames, AFileMadeInADirectoryThatMovedWhileSomethingWasRefusedInIt) {
  start_with(
      [](fusefs::MountConfig& config) { config.on_denial = [](std::string_view, const RelPath&, int) {}; });
  std::string below;
  for (int i = 0; i < 800; ++i) below += "/d";
  fs::create_directories(outputs().string() + "/0" + below);
  const auto directory = open_file(outputs().string() + "/0" + below, O_RDONLY | O_DIRECTORY);
  std::jthread refused([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) ::symlinkat("/etc/passwd", directory.get(), "link");
  });
  int lost = 0;
  for (int round = 0; round < kRounds; ++round) {
    for (const int step : {round, round + 1, round})
      EXPECT_OK(::rename((outputs() / number(step)).c_str(), (outputs() / number(step + 1)).c_str()));
    save_as_it_is();
    const auto name = "/new" + std::to_string(round);
    EXPECT_OK(::mknodat(directory.get(), name.c_str() + 1, S_IFREG | 0644, 0));
    lost += !to_read().entry_of("outputs/" + number(round + 1) + below + name);
  }
  EXPECT_EQ(lost, 0) << "of " << kRounds;
}

TEST_F(ChangesAndRenames, AFileThatMovesWhileItIsOpened) {
  const auto found = open_file(outputs() / "0" / "file", O_PATH);
  const auto name = [](int round) { return "0/file" + (round ? std::to_string(round) : ""); };
  race(
      name,
      [&](int) { write_all(open_file("/proc/self/fd/" + std::to_string(found.get()), O_WRONLY), "other"); },
      [&](const ToRead& read, int round) { return read.content_of("outputs/" + name(round + 1)); });
}

TEST_F(ChangesAndRenames, AFileThatMovesWhileItsModeIsSet) {
  const auto found = open_file(outputs() / "0" / "file", O_PATH);
  const auto name = [](int round) { return "0/file" + (round ? std::to_string(round) : ""); };
  race(
      name,
      [&](int round) {
        EXPECT_OK(::chmod(("/proc/self/fd/" + std::to_string(found.get())).c_str(), round % 2 ? 0600 : 0644));
      },
      [&](const ToRead& read, int round) { return read.attributes_of("outputs/" + name(round + 1)); });
}

}  // namespace
}  // namespace okcvm::test
