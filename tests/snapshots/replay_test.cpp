// Random work on a folder, told to the store as the driver tells it: recorded before it is done, also when it
// is then refused. Whatever happened, each snapshot must be exactly what is there.

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <random>
#include <set>
#include <utility>

#include "tests/snapshots/fixture.h"

namespace okcvm::test {
namespace {

using namespace snapshots;

class ReplayTest : public SnapshotTest {
 protected:
  unsigned number(unsigned below) { return static_cast<unsigned>(random_()) % below; }

  /// Some path that exists, or nearly.
  std::string some_path() {
    static const char* const kNames[] = {"a", "b", "c", "d", ".git"};
    static const char* const kZones[] = {"uploads", "outputs", "temp"};
    std::string path = kZones[number(zones_)];
    for (unsigned depth = 1 + number(deepest_); depth > 0; --depth)
      path.append("/").append(kNames[number(names_)]);
    return path;
  }

  void note(ChangeKind kind, const std::string& path) { record_.note(kind, path); }
  /// Once its bytes are recorded, a file is not recorded again until the next cut, whatever its name.
  void note_file(ChangeKind kind, const std::string& path) {
    struct stat status {};
    const bool is_file = ::lstat(in(path).c_str(), &status) == 0 && !S_ISDIR(status.st_mode);
    const std::pair recorded(record_.cuts, status.st_ino);
    if (is_file && recorded_.count(recorded)) return;
    note(kind, path);
    if (is_file && kind == ChangeKind::kContent) recorded_.insert(recorded);
  }

  void step() {
    const std::string path = some_path();
    const std::string host = in(path);
    switch (number(10)) {
      case 0:
      case 1:
        note(ChangeKind::kTree, path);
        ::mkdir(host.c_str(), 0755);
        break;
      case 2:
      case 3: {
        if (there_is(host))
          note_file(ChangeKind::kContent, path);
        else
          note(ChangeKind::kEntry, path);
        if (const int fd = ::open(host.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW, 0644); fd >= 0) {
          const std::string bytes = std::to_string(random_());
          EXPECT_GT(::write(fd, bytes.data(), bytes.size()), 0);
          ::close(fd);
        }
        break;
      }
      case 4:
        note(ChangeKind::kEntry, path);
        ::unlink(host.c_str());
        break;
      case 5:
        note(ChangeKind::kEntry, path);
        ::rmdir(host.c_str());
        break;
      case 6:
      case 7: {
        const std::string target = some_path();
        record_.note(ChangeKind::kMoved, path, target);
        if (::rename(host.c_str(), in(target).c_str()) != 0)
          for (const auto& refused : {path, target}) note(ChangeKind::kTree, refused);
        break;
      }
      case 8:
        note_file(ChangeKind::kAttributes, path);
        if (struct stat status{}; ::lstat(host.c_str(), &status) == 0 && !S_ISLNK(status.st_mode))
          ::chmod(host.c_str(), 0700 + number(64));
        break;
      case 9: {
        const std::string target = some_path();
        note_file(ChangeKind::kContent, path);
        note(ChangeKind::kEntry, target);
        if (::link(host.c_str(), in(target).c_str()) != 0 && number(2)) {
          EXPECT_LE(::symlink("x/../y", in(target).c_str()), 0);
        }
        break;
      }
      default:
        break;
    }
  }

  void random_rounds() {
    std::vector<std::pair<Snapshot, Manifest>> taken;
    for (int round = 0; round < 8; ++round) {
      for (unsigned steps = number(25); steps > 0; --steps) step();
      if (number(6) == 0) reopen();
      if (number(12) == 0) record_.lose_track();
      if (number(8) == 0) {  // a snapshot that fails; its events come again
        const Fault fails("errno:repository.move_ref:1:EIO");
        EXPECT_FALSE(store().take("fails", record_.source(), nullptr));
      }
      if (number(8) == 0) {  // one that is kept, but not retired
        auto source = record_.source();
        source.retire = nullptr;
        EXPECT_TRUE(store().take("unretired", source, nullptr));
        reopen();
      }
      taken.emplace_back(snapshot("round " + std::to_string(round)), manifest());
      expect_exact(taken.back().first);
      if (HasFailure()) return;
      if (number(3) == 0) {
        const auto& [to, wanted] = taken[number(static_cast<unsigned>(taken.size()))];
        restore(to);
        expect_same(wanted, manifest());
        if (HasFailure()) return;
      }
    }
  }

  /// Runs `body` for each seed, or for that in OKCVM_TEST_SEED alone, on a fresh workspace and store, until
  /// one fails.
  void for_each_seed(unsigned last, const std::function<void()>& body) {
    const unsigned first = is_seed_given() ? static_cast<unsigned>(std::atoi(std::getenv(kSeed))) : 1;
    for (unsigned seed = first; seed <= (is_seed_given() ? first : last) && !HasFailure(); ++seed) {
      SCOPED_TRACE(std::string(kSeed) + "=" + std::to_string(seed));
      random_.seed(seed);
      reopen();
      std::filesystem::remove_all(workspace());
      std::filesystem::remove_all(repository());
      record_ = {};
      recorded_.clear();
      make_zones();
      body();
      if (!HasFailure()) expect_sound_repository();
    }
  }
  static bool is_seed_given() { return std::getenv(kSeed) != nullptr; }

  std::mt19937 random_;
  unsigned deepest_ = 4;
  unsigned names_ = 5;
  unsigned zones_ = 3;

 private:
  std::set<std::pair<int, ino_t>> recorded_;  // in which cut
  static constexpr const char* kSeed = "OKCVM_TEST_SEED";
};

TEST_F(ReplayTest, RandomChangesAreCapturedExactly) {
  for_each_seed(60, [&] { random_rounds(); });
}

/// So few paths that there are files with many names.
TEST_F(ReplayTest, SoAreThoseOfFilesWithManyNames) {
  deepest_ = 1;
  for_each_seed(60, [&] { random_rounds(); });
}

/// Two or three names, so that most renames are refused.
TEST_F(ReplayTest, SoAreThoseBetweenRefusedRenames) {
  deepest_ = 2;
  zones_ = 1;
  for (names_ = 2; names_ <= 3; ++names_) for_each_seed(150, [&] { random_rounds(); });
}

TEST_F(ReplayTest, WhatChangesInAFolderBetweenRefusedRenamesOfItIsCaptured) {
  for (const bool is_ring : {false, true}) {
    reopen();
    std::filesystem::remove_all(workspace());
    std::filesystem::remove_all(repository());
    record_ = {};
    make_zones();
    shell("cd outputs; mkdir a b c a/in b/in; for f in a b c a/in b/in; do echo 1 > $f/one; done");
    const auto refused = [&](const std::string& from, const std::string& to) {
      record_.note(ChangeKind::kMoved, "outputs/" + from, "outputs/" + to);
      EXPECT_EQ(::rename(in("outputs/" + from).c_str(), in("outputs/" + to).c_str()), -1);
      for (const auto& name : {from, to}) note(ChangeKind::kTree, "outputs/" + name);
    };
    snapshot("first");
    refused("a", "b");
    note(ChangeKind::kContent, "outputs/a/one");
    write(in("outputs/a/one"), "changed");
    note(ChangeKind::kEntry, "outputs/a/new");
    write(in("outputs/a/new"), "new");
    note(ChangeKind::kEntry, "outputs/a/in/new");
    write(in("outputs/a/in/new"), "new");
    if (is_ring) refused("b", "c");
    refused("b/in", "a/in");
    refused(is_ring ? "c" : "b", "a");
    expect_exact(snapshot("second"));
  }
}

/// The same while snapshots are taken: after each cut more happens, unless the session is held.
TEST_F(ReplayTest, SoAreThoseMadeWhileItIsTaken) {
  int held_in_the_end = 0;
  for_each_seed(40, [&] {
    const auto some_steps = [&] {
      for (unsigned steps = number(8); steps > 0; --steps) step();
    };
    for (int round = 0; round < 8; ++round) {
      some_steps();
      bool held = false;
      auto source = record_.source();
      source.cut = [&, cut = source.cut] {
        auto set = cut();
        if (number(30) == 0) record_.lose_track();
        if (!held) some_steps();
        return set;
      };
      source.hold = [&]() -> std::shared_ptr<void> {
        held = true;
        return std::make_shared<int>();
      };
      auto taken = store().take("meanwhile", source, nullptr);
      ASSERT_TRUE(taken) << taken.error().message << " " << taken.error().path;
      if (held) {
        ++held_in_the_end;
        expect_exact(*taken);
      }
      if (number(2)) expect_exact(snapshot("after"));
      if (HasFailure()) return;
    }
    expect_exact(snapshot("last"));
  });
  if (!is_seed_given()) {
    EXPECT_GT(held_in_the_end, 20);
  }
}

}  // namespace
}  // namespace okcvm::test
