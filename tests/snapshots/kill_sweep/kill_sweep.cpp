// The process is killed at every system call of a snapshot, a restore, an undo, a fork and of the start after
// such a kill; the next start puts things right. strace does the killing, so this needs no help from the code
// that is tested.
//
//   OKCVM_SWEEP_STRIDE=1 kill_sweep [--gtest_filter=…]      every call; the default stride takes a sample

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>

#include "policy/fault.h"
#include "snapshots/store.h"
#include "tests/support/file_io.h"
#include "tests/support/manifest.h"
#include "tests/support/process.h"
#include "tests/support/scratch.h"

namespace okcvm::test {
namespace {

namespace fs = std::filesystem;
using namespace snapshots;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr std::size_t kDefaultStride = 61;
constexpr const char* kMarker = "/okcvm-the-step-begins-here";
constexpr std::uint64_t kStreamed =
    (8 << 20) + 1;  // from 8 MiB on, a file is an object of its own (snapshots/batch.h)

/// A session's folders, and what its driver would remember: the record of changes is a file here, which is
/// removed when a snapshot is told to be safe.
class Place {
 public:
  explicit Place(fs::path folder) : folder_(std::move(folder)) {}

  fs::path workspace() const { return folder_ / "workspaces/s1"; }
  fs::path repository() const { return folder_ / "snapshots/s1.git"; }
  fs::path answer() const { return folder_ / "answer"; }
  fs::path in(const std::string& path) const { return workspace() / path; }
  StoreConfig config() const { return {repository(), workspace(), 0, 0}; }
  StoreConfig forked() const { return {folder_ / "snapshots/f.git", folder_ / "workspaces/f", 0, 0}; }

  void clear() const {
    fs::remove_all(folder_);
    for (const char* folder : {"workspaces", "snapshots"}) fs::create_directories(folder_ / folder);
  }
  void note(ChangeKind kind, const std::string& path, const std::string& target = "-") const {
    std::ofstream(record(), std::ios::app) << static_cast<int>(kind) << ' ' << path << ' ' << target << '\n';
  }
  Store::ChangeSource source() const {
    ChangeSet set;
    std::ifstream lines(record());
    int kind = 0;
    for (std::string path, target; lines >> kind >> path >> target;)
      set.changes.push_back({static_cast<ChangeKind>(kind), *RelPath::parse(path),
                             target == "-" ? RelPath() : *RelPath::parse(target)});
    return {[set] { return set; }, [file = record()](const ChangeSet&) { ::unlink(file.c_str()); }};
  }

 private:
  fs::path record() const { return folder_ / "changes"; }
  fs::path folder_;
};

template <typename T>
T value_of(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message + " " + result.error().path);
  return std::move(*result);
}

std::unique_ptr<Store> open(const Place& place) {
  return value_of(Store::open(place.config()));
}
std::string take(const Place& place, const std::string& label) {
  return value_of(open(place)->take(label, place.source(), nullptr)).id.text();
}
Store::RestoreHooks hooks(const Place& place) {
  return {nullptr, place.source(), nullptr};
}

// -- What is in the workspace
// -----------------------------------------------------------------------------------------

void set_time(const fs::path& path, time_t seconds) {
  const timespec times[] = {{seconds, 1}, {seconds, 123'456'789}};
  ::utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW);
}

void first_state(const Place& place, bool with_large = false) {
  for (const char* folder : {"uploads", "outputs/a/deep", "outputs/gone/b", "outputs/empty",
                             "outputs/moves/x", "outputs/closed", "outputs/.git", "temp"})
    fs::create_directories(place.in(folder));
  for (const char* name : {"a/1", "a/2", "a/deep/3", "gone/g", "gone/b/h", "kind", "moves/m", "moves/x/n",
                           "secret", "closed/c", ".git/config", "not\377utf8", "same", ".gitattributes"})
    write(place.in(std::string("outputs/") + name), std::string("one ") + name);
  ::setxattr(place.in("outputs/a/2").c_str(), "user.origin", "here", 4, 0);
  fs::create_hard_link(place.in("outputs/a/1"), place.in("uploads/one"));
  fs::create_hard_link(place.in("outputs/same"), place.in("temp/same"));
  fs::create_symlink("a", place.in("outputs/l"));
  fs::create_symlink("nowhere", place.in("outputs/dangling"));
  if (with_large) write(place.in("outputs/large"), std::string(kStreamed, 'x'));
  ::chmod(place.in("outputs/secret").c_str(), 0);
  ::chmod(place.in("outputs/closed").c_str(), 0);
  ::chmod(place.in("outputs/kind").c_str(), 04751);
  for (const char* path : {"outputs/a/2", "outputs/l", "outputs/a/deep", "outputs/a", "outputs"})
    set_time(place.in(path), 1'000'000'000);
  for (const char* zone : {"uploads", "outputs", "temp"}) place.note(ChangeKind::kTree, zone);
}

void second_state(const Place& place) {
  const auto changed = [&](ChangeKind kind, const std::string& path) { place.note(kind, "outputs/" + path); };
  changed(ChangeKind::kContent, "a/2");
  write(place.in("outputs/a/2"), "two");
  changed(ChangeKind::kAttributes, "a/2");
  ::removexattr(place.in("outputs/a/2").c_str(), "user.origin");
  changed(ChangeKind::kEntry, "gone");
  fs::remove_all(place.in("outputs/gone"));
  changed(ChangeKind::kTree, "came");
  fs::create_directories(place.in("outputs/came/d"));
  write(place.in("outputs/came/d/f"), "two");
  changed(ChangeKind::kTree, "kind");
  fs::remove(place.in("outputs/kind"));
  fs::create_directory(place.in("outputs/kind"));
  write(place.in("outputs/kind/k"), "two");
  changed(ChangeKind::kEntry, "l");
  fs::remove(place.in("outputs/l"));
  fs::create_symlink("kind", place.in("outputs/l"));
  place.note(ChangeKind::kMoved, "outputs/moves", "uploads/moved");
  fs::rename(place.in("outputs/moves"), place.in("uploads/moved"));
  place.note(ChangeKind::kContent, "uploads/moved/m");
  write(place.in("uploads/moved/m"), "two");
  place.note(ChangeKind::kMoved, "uploads/moved/x", "outputs/came/x");
  fs::rename(place.in("uploads/moved/x"), place.in("outputs/came/x"));
  place.note(ChangeKind::kEntry, "temp/same");
  fs::remove(place.in("temp/same"));
  changed(ChangeKind::kEntry, "joined");
  fs::create_hard_link(place.in("outputs/secret"), place.in("outputs/joined"));
  changed(ChangeKind::kAttributes, "closed");
  ::chmod(place.in("outputs/closed").c_str(), 0711);
  if (fs::exists(place.in("outputs/large"))) {
    changed(ChangeKind::kContent, "large");
    write(place.in("outputs/large"), std::string(kStreamed, 'y'));
  }
  for (const char* path : {"outputs/a", "outputs", "uploads"}) {
    place.note(ChangeKind::kAttributes, path);
    set_time(place.in(path), 1'100'000'000);
  }
}

void third_state(const Place& place) {
  place.note(ChangeKind::kContent, "outputs/a/deep/3");
  write(place.in("outputs/a/deep/3"), "three");
  place.note(ChangeKind::kEntry, "temp/new");
  write(place.in("temp/new"), "three");
}

Manifest manifest_of_zones(const fs::path& workspace) {
  Manifest manifest = manifest_of(workspace);
  manifest.erase(".");  // the backing folder itself is no part of a session
  return manifest;
}

// -- What is swept
// ----------------------------------------------------------------------------------------------------

/// What there is before the step, what there may be after it, and which snapshots were answered.
struct Expected {
  Manifest before, after;
  std::vector<std::string> answered;
};

struct Work {
  const char* name;
  std::function<Expected(const Place&)> prepare;
  std::function<std::string(const Place&)>
      step;  // answers the id of a snapshot that must then be there, or nothing
  bool forks = false;
};

/// One snapshot, more changes, another one, and changes that are in none.
Expected prepare_changes(const Place& place, bool with_large = false) {
  Expected expected;
  first_state(place, with_large);
  expected.answered.push_back(take(place, "one"));
  second_state(place);
  expected.before = expected.after = manifest_of_zones(place.workspace());
  return expected;
}

Expected prepare_restore(const Place& place, bool with_large = false) {
  Expected expected;
  first_state(place, with_large);
  expected.after = manifest_of_zones(place.workspace());
  expected.answered.push_back(take(place, "one"));
  second_state(place);
  expected.answered.push_back(take(place, "two"));
  third_state(place);
  expected.before = manifest_of_zones(place.workspace());
  return expected;
}

std::string oldest(Store& store) {
  return value_of(store.list(0)).back().id.text();
}

std::string restore_first(const Place& place, const std::vector<std::string>& paths) {
  std::vector<RelPath> scope;
  for (const auto& path : paths) scope.push_back(*RelPath::parse(path));
  const auto store = open(place);
  return value_of(store->restore(oldest(*store), scope, false, hooks(place), nullptr)).before->id.text();
}

/// As many packs as there may be before the small ones are merged.
Expected prepare_merge(const Place& place) {
  Expected expected;
  first_state(place);
  const auto store = open(place);
  const auto packs = [&] {
    const auto folder = place.repository() / "objects/pack";
    return fs::exists(folder) ? list(folder).size() / 2 : 0;
  };
  for (std::size_t most = 0, number = 0;; ++number) {
    if (number > 0) {
      write(place.in("outputs/a/2"), "number " + std::to_string(number));
      place.note(ChangeKind::kContent, "outputs/a/2");
    }
    if (packs() == 39) break;
    expected.answered.push_back(value_of(store->take("n", place.source(), nullptr)).id.text());
    if (packs() < most) throw std::runtime_error("packs were merged before there were 40");
    most = packs();
  }
  expected.before = expected.after = manifest_of_zones(place.workspace());
  return expected;
}

/// A restore that died half-way. Where that is, is found out once.
Expected prepare_half_restore(const Place& place) {
  const auto died_at = [&](int step) {
    ChildProcess child([&](ChildProcess&) {
      ::setenv("OKCVM_FAULT", ("kill:" + std::to_string(step)).c_str(), 1);
      fault_reset();
      restore_first(place, {});
      return 0;
    });
    return child.join() != 0;
  };
  static const int half = [&] {
    for (int step = 30;; ++step) {
      place.clear();
      prepare_restore(place);
      if (!died_at(step)) throw std::runtime_error("the restore came to its end");
      if (fs::exists(place.repository() / "okcvm/journal")) return step + 6;
    }
  }();
  place.clear();
  Expected expected = prepare_restore(place);
  if (!died_at(half)) throw std::runtime_error("the restore came to its end");
  return expected;
}

const std::vector<Work>& works() {
  static const std::vector<Work> all{
      {"FirstSnapshot",
       [](const Place& place) {
         first_state(place);
         return Expected{manifest_of_zones(place.workspace()), manifest_of_zones(place.workspace()), {}};
       },
       [](const Place& place) { return take(place, "first"); }},
      {"Snapshot", [](const Place& place) { return prepare_changes(place); },
       [](const Place& place) { return take(place, "next"); }},
      {"SnapshotOfALargeFile", [](const Place& place) { return prepare_changes(place, true); },
       [](const Place& place) { return take(place, "next"); }},
      {"SnapshotThatMerges", prepare_merge, [](const Place& place) { return take(place, "merges"); }},
      {"Restore", [](const Place& place) { return prepare_restore(place); },
       [](const Place& place) { return restore_first(place, {}); }},
      {"RestoreOfALargeFile", [](const Place& place) { return prepare_restore(place, true); },
       [](const Place& place) { return restore_first(place, {}); }},
      {"RestoreOfPaths",
       [](const Place& place) {
         Expected expected = prepare_restore(place);
         const Manifest one = expected.after;
         expected.after = expected.before;
         for (const char* path :
              {"outputs/gone", "outputs/gone/g", "outputs/gone/b", "outputs/gone/b/h", "outputs/a/2"})
           expected.after[path] = one.at(path);
         expected.after.at("outputs").links += 1;
         return expected;
       },
       [](const Place& place) {
         return restore_first(place, {"outputs/gone", "outputs/a/2"});
       }},
      {"Undo",
       [](const Place& place) {
         Expected expected = prepare_restore(place);
         expected.answered.push_back(restore_first(place, {}));
         std::swap(expected.before, expected.after);
         third_state(place);
         expected.before = manifest_of_zones(place.workspace());
         return expected;
       },
       [](const Place& place) {
         return value_of(open(place)->undo(hooks(place), nullptr)).before->id.text();
       }},
      {"Fork",
       [](const Place& place) {
         Expected expected = prepare_changes(place);
         expected.answered.push_back(take(place, "two"));
         return expected;
       },
       [](const Place& place) {
         const auto store = open(place);
         for (const auto& snapshot : value_of(store->list(0)))
           if (snapshot.label == "two") value_of(store->fork(snapshot.id.text(), place.forked(), nullptr));
         return std::string();
       },
       true},
      {"StartAfterACrash", prepare_half_restore,
       [](const Place& place) {
         open(place);
         return std::string();
       }},
  };
  return all;
}

/// In a process of its own, which strace kills: does the step, and then says that it is done.
int run_step(const std::string& name, const fs::path& folder) {
  const Place place(folder);
  for (const auto& work : works()) {
    if (work.name != name) continue;
    ::access(kMarker, F_OK);
    write(place.answer(), work.step(place));
    return 0;
  }
  return 2;
}

// -- The sweep
// --------------------------------------------------------------------------------------------------------

std::string self() {
  return fs::read_symlink("/proc/self/exe");
}

class KillSweep : public ::testing::TestWithParam<std::size_t> {
 protected:
  void SetUp() override {
    if (!have_program("strace") || !have_program("git")) GTEST_SKIP() << "strace and git are needed";
    const auto tried = run({{"strace", "-o", "/dev/null", "-e", "inject=getpid:retval=1:when=1", "true"}});
    if (tried.exit_code != 0) GTEST_SKIP() << "strace cannot trace here: " << tried.output;
  }

  struct Call {
    std::string name;
    int number;
  };

  const Work& work() const { return works()[GetParam()]; }
  CommandResult step_under_strace(const std::vector<std::string>& options) const {
    Command command{{"strace", "-f", "-o", scratch_ / "trace"}};
    command.arguments.insert(command.arguments.end(), options.begin(), options.end());
    for (const std::string& argument :
         {self(), std::string("--step"), std::string(work().name), place_.string()})
      command.arguments.push_back(argument);
    return run(command);
  }
  /// The calls of the step: each by its name and by how often the process has made a call of that name by
  /// then, which is what strace counts.
  std::vector<Call> calls_of_step() const {
    const auto done = step_under_strace({});
    EXPECT_EQ(done.exit_code, 0) << done.output;
    std::ifstream trace(scratch_ / "trace");
    std::map<std::string, int> made;
    std::vector<Call> calls;
    bool has_begun = false;
    for (std::string line; std::getline(trace, line);) {
      const auto start = line.find_first_not_of("0123456789 "), end = line.find('(');
      if (start == line.npos || end == line.npos || line[start] == '+' || line[start] == '-') continue;
      const std::string name = line.substr(start, end - start);
      ++made[name];
      if (has_begun) calls.push_back({name, made[name]});
      has_begun = has_begun || line.find(kMarker) != line.npos;
    }
    EXPECT_TRUE(has_begun);
    return calls;
  }
  /// The last line of the trace that is a call.
  std::string killed_call() const {
    std::ifstream trace(scratch_ / "trace");
    std::string last;
    for (std::string line; std::getline(trace, line);)
      if (line.find("+++ killed") == line.npos) last = line;
    return last.substr(0, 120);
  }

  void expect_sound(const fs::path& repository) const {
    const auto done = run_script(
        "git --git-dir=" + repository.string() + " fsck --strict --full --no-dangling --no-progress", "/");
    EXPECT_EQ(done.exit_code, 0) << done.output;
    EXPECT_THAT(done.output, Not(AnyOf(HasSubstr("error"), HasSubstr("warning"))));
  }
  void expect_nothing_left_over(const Place& place) const {
    EXPECT_FALSE(fs::exists(place.in(".restore")));
    EXPECT_FALSE(fs::exists(draft_of(place.workspace())));
    EXPECT_FALSE(fs::exists(draft_of(place.repository())));
    if (!fs::exists(place.repository())) return;
    EXPECT_FALSE(fs::exists(place.repository() / "okcvm/journal"));
    EXPECT_THAT(list(place.repository() / "okcvm/incoming"), IsEmpty());
    const auto drafts =
        run_script("find . -name '*.lock' -o -name 'tmp_*' -o -name '*.new'", place.repository());
    EXPECT_EQ(drafts.output, "");
    const auto garbage = run_script("git --git-dir=. count-objects -v", place.repository());
    EXPECT_NE(garbage.output.find("garbage: 0"), std::string::npos) << garbage.output;
  }
  /// Answers whether the step had its effect.
  bool expect_old_or_new(const Place& place, const Expected& expected) const {
    const Manifest now = manifest_of_zones(place.workspace());
    const auto to_before = differences(expected.before, now), to_after = differences(expected.after, now);
    EXPECT_TRUE(to_before.empty() || to_after.empty()) << ::testing::PrintToString(to_before) << "\n"
                                                       << ::testing::PrintToString(to_after);
    return to_after.empty();
  }
  void expect_fork(const Place& place, const Expected& expected) const {
    const auto target = place.forked();
    value_of(Store::open(target));  // clears the draft
    EXPECT_FALSE(fs::exists(draft_of(target.workspace)));
    if (fs::exists(target.workspace)) {
      EXPECT_THAT(differences(expected.before, manifest_of_zones(target.workspace)), IsEmpty());
      expect_sound(target.repository);
    }
    fs::remove_all(target.workspace);
    fs::remove_all(target.repository);
    work().step(place);
    EXPECT_THAT(differences(expected.before, manifest_of_zones(target.workspace)), IsEmpty());
  }

  /// After the kill: starts again, and looks at everything.
  void expect_all_is_well(const Place& place, const Expected& expected, bool came_to_its_end) const {
    auto store = open(place);
    if (fs::exists(place.repository())) expect_sound(place.repository());
    expect_nothing_left_over(place);
    const bool is_after = expect_old_or_new(place, expected);
    EXPECT_TRUE(is_after || !came_to_its_end);
    std::vector<std::string> there;
    for (const auto& snapshot : value_of(store->list(0))) there.push_back(snapshot.id.text());
    auto answered = expected.answered;
    if (fs::exists(place.answer()) && !read(place.answer()).empty()) answered.push_back(read(place.answer()));
    for (const auto& id : answered) EXPECT_THAT(there, ::testing::Contains(id));
    EXPECT_LE(there.size(), answered.size() + 1);

    // And it goes on from there: what is in the workspace can be captured exactly, by what the record says.
    const Manifest now = manifest_of_zones(place.workspace());
    const auto next = value_of(store->take("after all", place.source(), nullptr));
    EXPECT_FALSE(fs::exists(place.in("../../changes")));
    const auto report = value_of(store->verify(next.id.text(), place.source(), nullptr));
    EXPECT_THAT(report.problems, IsEmpty());
    EXPECT_EQ(report.live_differences.size(), 0u) << report.live_differences.front().path.text();
    const auto restored = value_of(
        store->restore(there.empty() ? next.id.text() : there.back(), {}, false, hooks(place), nullptr));
    if (!restored.applied.empty()) value_of(store->undo(hooks(place), nullptr));
    EXPECT_THAT(differences(now, manifest_of_zones(place.workspace())), IsEmpty());
    if (work().forks) expect_fork(place, expected);
  }

  ScratchDirectory scratch_{"kill_sweep"};
  const fs::path place_ = scratch_ / "place";
};

TEST_P(KillSweep, LeavesTheOldOrTheNewState) {
  const char* wanted = std::getenv("OKCVM_SWEEP_STRIDE");
  const std::size_t stride =
      wanted ? std::max<std::size_t>(1, std::strtoull(wanted, nullptr, 10)) : kDefaultStride;
  const Place place(place_);
  place.clear();
  work().prepare(place);
  const auto calls = calls_of_step();
  ASSERT_GT(calls.size(), 60u);
  std::size_t kills = 0;
  for (std::size_t i = 0; i <= calls.size() && !HasFailure();
       i = i == calls.size() ? i + 1 : std::min(i + stride, calls.size())) {
    place.clear();
    const Expected expected = work().prepare(place);
    std::vector<std::string> options;  // in the end it is left alone
    if (i < calls.size())
      options = {"-e", "inject=" + calls[i].name + ":signal=SIGKILL:when=" + std::to_string(calls[i].number)};
    const auto ended = step_under_strace(options);
    const bool done = ended.exit_code == 0;
    EXPECT_TRUE(done || ended.exit_code == 128 + SIGKILL) << ended.exit_code << ended.output;
    SCOPED_TRACE("killed at call " + std::to_string(i) + ": " + killed_call());
    expect_all_is_well(place, expected, done);
    if (!done) ++kills;
  }
  std::cout << work().name << ": " << calls.size() << " calls, killed at " << kills << " of them\n";
  // The number of a call may differ by a few from one run to the next, so that one at the very end may not be
  // reached.
  EXPECT_GE(kills * stride, calls.size() * 9 / 10);
}

INSTANTIATE_TEST_SUITE_P(Of, KillSweep, ::testing::Range(std::size_t{0}, works().size()),
                         [](const auto& tested) { return std::string(works()[tested.param].name); });

}  // namespace
}  // namespace okcvm::test

int main(int count, char** arguments) try {
  if (count == 4 && std::string(arguments[1]) == "--step")
    return okcvm::test::run_step(arguments[2], arguments[3]);
  ::testing::InitGoogleTest(&count, arguments);
  return RUN_ALL_TESTS();
} catch (const std::exception& error) {
  std::cerr << "kill_sweep: " << error.what() << "\n";
  return 2;
}
