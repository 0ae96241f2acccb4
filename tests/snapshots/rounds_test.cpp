// Names change while a snapshot is taken. Whatever stands somewhere all the time is in it.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "tests/snapshots/fixture.h"

namespace okcvm::test {
namespace {

using namespace snapshots;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// A record that others write to while it is cut, as the driver's: each operation passes a gate, and is
/// recorded before it is made.
class SharedRecord {
 public:
  void change(ChangeKind kind, const std::string& path, const std::string& target,
              const std::function<void()>& make) {
    std::lock_guard pass(gate_);
    changes_.push_back({kind, rel(path), target.empty() ? RelPath() : rel(target)});
    make();
  }

  Store::ChangeSource source() {
    Store::ChangeSource source;
    source.cut = [this] {
      std::unique_lock closed(gate_, std::defer_lock);
      if (!held_) closed.lock();
      ++cuts;
      ChangeSet set;
      set.rescan = lost_at != 0;
      set.lost_at = lost_at;
      set.changes = changes_;
      set.end = retired + changes_.size();
      return set;
    };
    source.retire = [this](const ChangeSet& set) {
      std::lock_guard closed(gate_);
      changes_.erase(changes_.begin(), changes_.begin() + static_cast<std::ptrdiff_t>(set.end - retired));
      retired = set.end;
      if (set.lost_at == lost_at) lost_at = 0;
    };
    source.hold = [this]() -> std::shared_ptr<void> {
      gate_.lock();
      ++holds;
      held_ = true;
      return {this, [](SharedRecord* record) {
                record->held_ = false;
                record->gate_.unlock();
              }};
    };
    return source;
  }

  // Of the thread that takes snapshots.
  int cuts = 0, holds = 0;
  std::uint64_t lost_at = 0;
  std::uint64_t retired = 0;

 private:
  std::mutex gate_;
  std::vector<Change> changes_;
  bool held_ = false;
};

class RoundsTest : public SnapshotTest {
 protected:
  /// Every file of a snapshot, by name, with the folders that it is in.
  std::map<std::string, std::vector<std::string>> files_of(const Snapshot& taken) {
    std::map<std::string, std::vector<std::string>> files;
    const std::string all = git("ls-tree -r --name-only " + taken.id.text() + ":workspace");
    for (std::size_t start = 0; start < all.size();) {
      const auto end = all.find('\n', start);
      const std::filesystem::path path = all.substr(start, end - start);
      files[path.filename()].push_back(path.parent_path());
      start = end + 1;
    }
    return files;
  }

  Snapshot take(const Store::ChangeSource& source) {
    auto taken = store().take("under way", source, nullptr);
    if (!taken) throw std::runtime_error(taken.error().message + " " + taken.error().path);
    return *taken;
  }

  void move(const std::string& from, const std::string& to) {
    shared_.change(ChangeKind::kMoved, from, to,
                   [&] { EXPECT_EQ(::rename(in(from).c_str(), in(to).c_str()), 0) << from << " " << to; });
  }

  /// Calls `meddle` when the Nth cut has just been made, that is before anything of it is read, unless it was
  /// made under a hold.
  Store::ChangeSource meddled(const std::function<void(int)>& meddle) {
    auto source = shared_.source();
    source.cut = [this, cut = source.cut, meddle] {
      const int holds = shared_.holds;
      auto set = cut();
      if (holds == 0) meddle(shared_.cuts);
      return set;
    };
    return source;
  }

  SharedRecord shared_;
};

TEST_F(RoundsTest, AFileThatMovesAfterTheCutIsFoundWhereItCameTo) {
  make_zones();
  shell("mkdir outputs/a outputs/b; echo 1 > outputs/a/f; echo 2 > outputs/a/g");
  snapshot();
  shared_.change(ChangeKind::kContent, "outputs/a/f", "", [&] { write(in("outputs/a/f"), "changed\n"); });
  const auto taken = take(meddled([&](int cut) {
    if (cut == 1) move("outputs/a/f", "outputs/b/f");
  }));
  EXPECT_EQ(git("show " + taken.id.text() + ":workspace/outputs/b/f"), "changed\n");
  EXPECT_THAT(files_of(taken).at("f"), ElementsAre("outputs/b"));
  EXPECT_EQ(shared_.cuts, 3);
  EXPECT_EQ(shared_.holds, 0) << "the names stood still by themselves";
  EXPECT_EQ(shared_.retired, 2u);
  expect_exact(taken);
}

// What was written through the name that went is only recorded under that.
TEST_F(RoundsTest, WhatIsWrittenToAFileThroughANameThatGoesIsThereUnderTheOthers) {
  const auto expect_new_in = [this](const std::string& other, const std::function<void()>& meddle) {
    make_zones();
    shell(
        "rm -rf uploads/* temp/* outputs/b; mkdir temp/d; printf old > uploads/a; ln uploads/a temp/d/y; "
        "echo x > temp/x; ln temp/x temp/x2" +
        other);
    snapshot();
    shared_.change(ChangeKind::kAttributes, "temp/d/y", "", [&] { ::chmod(in("temp/d/y").c_str(), 0640); });
    const int before = shared_.cuts;
    const auto taken = take(meddled([&](int cut) {
      if (cut == before + 1) meddle();
    }));
    EXPECT_EQ(git("show " + taken.id.text() + ":workspace/uploads/a"), "new") << other;
    expect_exact(taken);
  };
  const auto write_to = [this](const std::string& path) {
    shared_.change(ChangeKind::kContent, path, "",
                   [&] { EXPECT_EQ(::pwrite(open_file(in(path), O_WRONLY).get(), "new", 3, 0), 3); });
  };
  const auto write_and_remove = [&] {
    write_to("temp/d/y");
    shared_.change(ChangeKind::kEntry, "temp/d/y", "", [&] { std::filesystem::remove(in("temp/d/y")); });
  };
  const auto move_and_remove = [&] {
    move("temp/d", "temp/e");
    write_to("temp/e/y");
    shared_.change(ChangeKind::kTree, "temp/e", "", [&] { std::filesystem::remove_all(in("temp/e")); });
  };
  const auto write_and_replace = [&] {  // by another file with several names
    write_to("temp/d/y");
    move("temp/x", "temp/d/y");
  };
  for (const std::string other : {"", "; ln uploads/a outputs/b"}) {
    expect_new_in(other, write_and_remove);
    expect_new_in(other, move_and_remove);
    expect_new_in(other, write_and_replace);
  }
}

// One that moves while all names are looked through is found nowhere.
TEST_F(RoundsTest, WhatIsWrittenThroughANameThatWasNotFoundAndGoesIsThereUnderTheOthers) {
  make_zones();
  shell("printf old > outputs/a");
  snapshot();
  const auto is_under_way = in("under way");  // where no snapshot looks
  shared_.change(ChangeKind::kContent, "outputs/a", "",
                 [&] { EXPECT_EQ(::link(in("outputs/a").c_str(), is_under_way.c_str()), 0); });
  auto source = shared_.source();
  const int before = shared_.cuts;
  source.cut = [&, cut = source.cut] {
    if (shared_.cuts == before + 1) {
      shared_.change(ChangeKind::kContent, "outputs/d/b", "",
                     [&] { EXPECT_EQ(::pwrite(open_file(is_under_way, O_WRONLY).get(), "new", 3, 0), 3); });
      shared_.change(ChangeKind::kEntry, "outputs/d/b", "", [&] { std::filesystem::remove(is_under_way); });
    }
    return cut();
  };
  const auto taken = take(source);
  EXPECT_EQ(git("show " + taken.id.text() + ":workspace/outputs/a"), "new");
  expect_exact(taken);
}

TEST_F(RoundsTest, WhatIsWrittenWhenOnlyAttributesAreReadIsFoundThoughTheRecordOfItIsLost) {
  make_zones();
  shell("printf old > outputs/f");
  snapshot();
  shared_.change(ChangeKind::kAttributes, "outputs/f", "", [&] { ::chmod(in("outputs/f").c_str(), 0600); });
  take(meddled([&](int cut) {
    if (cut != 1) return;
    EXPECT_EQ(::pwrite(open_file(in("outputs/f"), O_WRONLY).get(), "new", 3, 0), 3);
    const auto written = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - written < std::chrono::milliseconds(60))
      std::this_thread::yield();  // then times tell what was before and what after
  }));
  shared_.lost_at = 1;
  const auto taken = take(shared_.source());
  EXPECT_EQ(git("show " + taken.id.text() + ":workspace/outputs/f"), "new");
  expect_exact(taken);
}

TEST_F(RoundsTest, AWorkspaceMayComeToBeMeanwhile) {
  const auto taken = take(meddled([&](int cut) {
    if (cut != 1) return;
    shared_.change(ChangeKind::kEntry, "outputs/first", "", [&] {
      std::filesystem::create_directories(in("outputs"));
      write(in("outputs/first"), "1");
    });
  }));
  EXPECT_EQ(taken.stats.files, 1u);
  expect_exact(taken);
}

TEST_F(RoundsTest, OnlyTheLastRoundHoldsTheSession) {
  make_zones();
  shell("mkdir outputs/a outputs/b; echo 1 > outputs/a/f");
  snapshot();
  shared_.change(ChangeKind::kContent, "outputs/a/f", "", [&] { write(in("outputs/a/f"), "changed\n"); });
  bool away = false;
  const auto taken = take(meddled([&](int) {
    away = !away;
    away ? move("outputs/a/f", "outputs/b/f") : move("outputs/b/f", "outputs/a/f");
  }));
  EXPECT_EQ(shared_.holds, 1);
  EXPECT_EQ(shared_.cuts, 4);
  EXPECT_EQ(shared_.retired, 4u);
  expect_exact(taken);
}

TEST_F(RoundsTest, ContentAloneIsNoReasonToLookAgain) {
  make_zones();
  shell("echo 1 > outputs/f");
  snapshot();
  shared_.change(ChangeKind::kContent, "outputs/f", "", [&] { write(in("outputs/f"), "2"); });
  take(meddled([&](int) {
    shared_.change(ChangeKind::kContent, "outputs/f", "", [&] { write(in("outputs/f"), "3"); });
  }));
  EXPECT_EQ(shared_.cuts, 2);
  EXPECT_EQ(shared_.retired, 1u) << "the second change comes again";
  expect_exact(take(shared_.source()));
}

TEST_F(RoundsTest, FoldersThatChangePlacesMeanwhileAreReadAnew) {
  make_zones();
  shell(
      "mkdir outputs/a outputs/b outputs/c; for d in a b; do for i in 1 2 3; do echo $d$i > outputs/$d/$i; "
      "done; done");
  snapshot();
  shared_.change(ChangeKind::kMoved, "outputs/a", "outputs/c/a",
                 [&] { std::filesystem::rename(in("outputs/a"), in("outputs/c/a")); });
  const auto taken = take(meddled([&](int cut) {
    if (cut == 1) move("outputs/b", "outputs/a");
    if (cut == 2) {
      move("outputs/c/a", "outputs/b");
      shared_.change(ChangeKind::kTree, "outputs/c/new", "", [&] {
        std::filesystem::create_directories(in("outputs/c/new/deep"));
        write(in("outputs/c/new/deep/x"), "x");
      });
    }
  }));
  expect_exact(taken);
  expect_exact(take(shared_.source()));
}

TEST_F(RoundsTest, LosingTrackMeanwhileComparesEverythingAgain) {
  make_zones();
  shell("mkdir outputs/a outputs/b; echo 1 > outputs/a/f");
  snapshot();
  shared_.change(ChangeKind::kEntry, "outputs/new", "", [&] { write(in("outputs/new"), "n"); });
  const auto taken = take(meddled([&](int cut) {
    if (cut != 1) return;
    std::filesystem::rename(in("outputs/a/f"), in("outputs/b/f"));
    shared_.lost_at = 7;
  }));
  EXPECT_TRUE(taken.stats.rescanned);
  EXPECT_EQ(shared_.holds, 0);
  EXPECT_EQ(shared_.lost_at, 0u);
  expect_exact(taken);
}

TEST_F(RoundsTest, LosingTrackAgainAndAgainEndsInAHold) {
  make_zones();
  shell("mkdir outputs/a outputs/b; echo 1 > outputs/a/f");
  snapshot();
  bool away = false;
  shared_.lost_at = 1;
  const auto taken = take(meddled([&](int cut) {
    away = !away;
    std::filesystem::rename(in(away ? "outputs/a/f" : "outputs/b/f"),
                            in(away ? "outputs/b/f" : "outputs/a/f"));
    shared_.lost_at = static_cast<std::uint64_t>(cut) + 1;
  }));
  EXPECT_EQ(shared_.holds, 1);
  EXPECT_EQ(shared_.cuts, 4);
  EXPECT_EQ(shared_.lost_at, 0u);
  expect_exact(taken);
}

TEST_F(RoundsTest, AGapIsComparedWithoutHoldingTheSession) {
  make_zones();
  shell("mkdir outputs/a outputs/b; for i in 1 2 3; do echo $i > outputs/a/$i; done");
  snapshot();
  std::filesystem::rename(in("outputs/a/1"), in("outputs/b/1"));
  write(in("outputs/a/2"), "unrecorded");
  shared_.lost_at = 3;
  const auto taken = take(meddled([&](int cut) {
    if (cut == 1) move("outputs/b/1", "outputs/a/one");
    if (cut == 2)
      shared_.change(ChangeKind::kContent, "outputs/a/3", "", [&] { write(in("outputs/a/3"), "later"); });
  }));
  EXPECT_TRUE(taken.stats.rescanned);
  EXPECT_EQ(shared_.holds, 0);
  EXPECT_EQ(shared_.lost_at, 0u);
  EXPECT_THAT(files_of(taken).at("one"), ElementsAre("outputs/a"));
  EXPECT_FALSE(files_of(taken).contains("1"));
  const auto next = take(shared_.source());
  EXPECT_FALSE(next.stats.rescanned) << "what came meanwhile is in the record";
  EXPECT_EQ(git("show " + next.id.text() + ":workspace/outputs/a/3"), "later");
  expect_exact(next);
}

TEST_F(RoundsTest, AGapIsComparedBeforeARestoreHoldsTheSession) {
  make_zones();
  shell("mkdir outputs/a; echo 1 > outputs/a/1");
  const auto one = snapshot();
  write(in("outputs/a/1"), "unrecorded");
  shared_.lost_at = 3;
  auto source = meddled([&](int) {});
  bool compared_before = false;
  const Store::RestoreHooks hooks{[&, hold = source.hold] {
                                    compared_before = shared_.lost_at == 0;
                                    return hold();
                                  },
                                  {source.cut, source.retire},
                                  nullptr};
  ASSERT_TRUE(store().restore(one.id.text(), {}, false, hooks, nullptr));
  EXPECT_TRUE(compared_before);
  EXPECT_EQ(read(in("outputs/a/1")), "1\n");
  EXPECT_EQ(store().list(0)->size(), 2u) << "one snapshot of what was there";
}

/// Comparisons with the live workspace while names move: what stands somewhere all the time is in the answer
/// in one place, and nothing is called damaged.
TEST_F(RoundsTest, ComparisonsSeeFilesThatMoveMeanwhile) {
  make_zones();
  shell("mkdir outputs/a outputs/b; echo 1 > outputs/a/f");
  const auto one = snapshot();
  const auto move_once = [&](const char* from, const char* to) {
    const int first = shared_.cuts + 1;
    return meddled([=, this](int cut) {
      if (cut == first) move(from, to);
    });
  };
  const auto diff =
      store().diff("", std::nullopt, move_once("outputs/a/f", "outputs/b/f"), std::nullopt, nullptr);
  ASSERT_TRUE(diff) << diff.error().message;
  bool renamed = false;
  for (const auto& row : *diff) {
    EXPECT_NE(row.kind, DifferenceKind::kRemoved);
    renamed = renamed || row.kind == DifferenceKind::kRenamed;
  }
  EXPECT_TRUE(renamed);
  const auto report = store().verify("", move_once("outputs/b/f", "outputs/a/f"), nullptr);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_THAT(report->problems, IsEmpty());
  const auto hooks = Store::RestoreHooks{nullptr, move_once("outputs/a/f", "outputs/b/f"), nullptr};
  const auto planned = store().restore(one.id.text(), {}, true, hooks, nullptr);
  ASSERT_TRUE(planned) << planned.error().message;
  EXPECT_EQ(shared_.holds, 0);
}

TEST_F(RoundsTest, FilesRenamedBackAndForthAreInEverySnapshotOnce) {
  constexpr int kThreads = 3, kFiles = 40, kFolders = 4, kSnapshots = 25;
  make_zones();
  const auto place = [](int folder, int thread, int file) {
    return "outputs/d" + std::to_string(folder) + "/t" + std::to_string(thread) + "-" + std::to_string(file);
  };
  for (int folder = 0; folder < kFolders; ++folder)
    std::filesystem::create_directory(in("outputs/d" + std::to_string(folder)));
  for (int thread = 0; thread < kThreads; ++thread)
    for (int file = 0; file < kFiles; ++file)
      write(in(place(0, thread, file)), std::to_string(thread * kFiles + file));
  shell("true");
  snapshot();

  std::atomic<bool> done = false;
  std::vector<std::thread> renamers;
  for (int thread = 0; thread < kThreads; ++thread)
    renamers.emplace_back([&, thread] {
      std::mt19937 random(static_cast<unsigned>(thread));
      std::vector<int> at(kFiles, 0);
      while (!done) {
        const int file = static_cast<int>(random() % kFiles);
        const int to = static_cast<int>(random() % kFolders);
        if (to != at[file]) move(place(at[file], thread, file), place(to, thread, file));
        at[file] = to;
        std::this_thread::yield();
      }
    });
  std::vector<Snapshot> taken;
  for (int i = 0; i < kSnapshots; ++i) taken.push_back(take(shared_.source()));
  done = true;
  for (auto& thread : renamers) thread.join();

  for (const auto& each : taken) {
    EXPECT_EQ(each.stats.files, static_cast<std::uint64_t>(kThreads * kFiles));
    const auto files = files_of(each);
    EXPECT_EQ(files.size(), static_cast<std::size_t>(kThreads * kFiles));
    for (const auto& [name, folders] : files) EXPECT_EQ(folders.size(), 1u) << name;
  }
  expect_exact(take(shared_.source()));
  expect_sound_repository();
}

}  // namespace
}  // namespace okcvm::test
