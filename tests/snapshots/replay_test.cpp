// Random work on a folder, told to the store as the driver tells it: recorded before it is done, also when it
// is then refused. Whatever happened, each snapshot must be exactly what is there.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <map>
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
  /// Not of a name in a directory that is read whole.
  void note_name(ChangeKind kind, const std::string& path) {
    if (!is_covered(parent_of(path))) note(kind, path);
  }
  /// Once its bytes are recorded, a file is not recorded again until the next cut, whatever its name.
  void note_file(ChangeKind kind, const std::string& path) {
    struct stat status {};
    const bool is_file = ::lstat(in(path).c_str(), &status) == 0 && !S_ISDIR(status.st_mode);
    const std::pair recorded(record_.cuts, status.st_ino);
    if (is_file ? recorded_.count(recorded) != 0 : is_covered(path)) return;
    note(kind, path);
    if (is_file && kind == ChangeKind::kContent) recorded_.insert(recorded);
  }

  void step() {
    const std::string path = some_path();
    const std::string host = in(path);
    switch (number(covers_ ? 12 : 10)) {
      case 0:
      case 1:
        note_name(ChangeKind::kTree, path);
        if (::mkdir(host.c_str(), 0755) == 0) set_coverage(path, true);
        break;
      case 2:
      case 3: {
        if (there_is(host))
          note_file(ChangeKind::kContent, path);
        else
          note_name(ChangeKind::kEntry, path);
        if (const int fd = ::open(host.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW, 0644); fd >= 0) {
          const std::string bytes = std::to_string(random_());
          EXPECT_GT(::write(fd, bytes.data(), bytes.size()), 0);
          ::close(fd);
        }
        break;
      }
      case 4:
        note_name(ChangeKind::kEntry, path);
        ::unlink(host.c_str());
        break;
      case 5:
        note_name(ChangeKind::kEntry, path);
        ::rmdir(host.c_str());
        break;
      case 6:
      case 7:
        rename(path, some_path());
        break;
      case 8:
        note_file(ChangeKind::kAttributes, path);
        if (struct stat status{}; ::lstat(host.c_str(), &status) == 0 && !S_ISLNK(status.st_mode))
          ::chmod(host.c_str(), 0700 + number(64));
        break;
      case 9: {
        const std::string target = some_path();
        note_file(ChangeKind::kContent, path);
        note_name(ChangeKind::kEntry, target);
        if (::link(host.c_str(), in(target).c_str()) != 0 && number(2)) {
          EXPECT_LE(::symlink("x/../y", in(target).c_str()), 0);
        }
        break;
      }
      default:
        exchange(path, some_path());
        break;
    }
  }

  void rename(const std::string& from, const std::string& to) {
    struct stat source {};
    const bool is_there = ::lstat(in(from).c_str(), &source) == 0;
    const bool is_directory = is_there && S_ISDIR(source.st_mode);
    const bool from_covered = is_covered(is_directory ? from : parent_of(from));
    const bool to_covered = is_covered(parent_of(to));
    if (!from_covered || is_directory || source.st_nlink > 1) record_.note(ChangeKind::kMoved, from, to);
    if (from_covered && !to_covered) note(is_directory ? ChangeKind::kTree : ChangeKind::kEntry, to);
    if (::rename(in(from).c_str(), in(to).c_str()) != 0) {
      for (const auto& refused : {from, to}) note(ChangeKind::kTree, refused);
    } else if (from_covered != to_covered) {
      set_coverage(to, from_covered);
      if (from_covered && !is_directory && source.st_nlink == 1)
        recorded_.emplace(record_.cuts, source.st_ino);
    }
  }

  /// Often there and back, which only leaves that nothing below is recorded; then something changes there,
  /// and moves.
  void exchange(const std::string& one, const std::string& other) {
    const unsigned times = 1 + number(2);
    for (const auto& path : {one, other}) note(ChangeKind::kTree, path);
    for (unsigned i = 0; i < times; ++i)
      if (::renameat2(AT_FDCWD, in(one).c_str(), AT_FDCWD, in(other).c_str(), RENAME_EXCHANGE) == 0)
        for (const auto& path : {one, other}) set_coverage(path, true);
    const std::string inside = one + "/a";
    note_name(ChangeKind::kEntry, inside + "/b");
    std::filesystem::create_symlink(std::to_string(random_()), in(inside + "/b"), ignored_);
    rename(inside, one + "/c");
  }

  /// Until the next cut, nothing is recorded below such a directory; or, though it is in one, everything is.
  void set_coverage(const std::string& path, bool is_whole) {
    struct stat status {};
    if (covers_ && ::lstat(in(path).c_str(), &status) == 0 && S_ISDIR(status.st_mode))
      coverage_[{record_.cuts, status.st_ino}] = is_whole;
  }
  bool is_covered(std::string path) const {
    for (struct stat status{}; !path.empty(); path = parent_of(path)) {
      if (::lstat(in(path).c_str(), &status) != 0) continue;
      const auto found = coverage_.find({record_.cuts, status.st_ino});
      if (found != coverage_.end()) return found->second;
    }
    return false;
  }
  static std::string parent_of(const std::string& path) {
    return std::filesystem::path(path).parent_path().string();
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
      coverage_.clear();
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
  bool covers_ = false;

 private:
  std::error_code ignored_;
  std::set<std::pair<int, ino_t>> recorded_;        // in which cut
  std::map<std::pair<int, ino_t>, bool> coverage_;  // from which cut on; true: it is read whole
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
  for (names_ = 2; names_ <= 3; ++names_) for_each_seed(50, [&] { random_rounds(); });
}

/// Of what is in a new directory, or in two that change places, the driver records nothing more.
TEST_F(ReplayTest, SoAreThoseInDirectoriesThatAreReadWhole) {
  covers_ = true;
  zones_ = 1;
  names_ = deepest_ = 3;
  for_each_seed(60, [&] { random_rounds(); });
}

TEST_F(ReplayTest, WhatChangesInAFolderThatMovesOutOfOneThatIsReadWholeIsCaptured) {
  make_zones();
  shell("cd outputs; mkdir -p a/in b; for f in one two; do echo 1 > a/in/$f; done");
  snapshot("first");
  for (const char* name : {"outputs/a", "outputs/b"}) note(ChangeKind::kTree, name);
  shell("cd outputs; mv a c; mv b a; mv a b; mv c a");  // as if exchanged, and back
  shell("cd outputs/a/in; echo 2 > new; rm one; chmod 700 .");
  record_.note(ChangeKind::kMoved, "outputs/a/in", "outputs/a/out");
  std::filesystem::rename(in("outputs/a/in"), in("outputs/a/out"));
  expect_exact(snapshot("second"));
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
