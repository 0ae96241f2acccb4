// The process is killed at every system call of a snapshot, a restore, an undo, a fork and of the start after
// such a kill; the next start puts things right. strace does the killing, so this needs no help from the code
// that is tested.
//
//   OKCVM_SWEEP_STRIDE=1 kill_sweep [--gtest_filter=…]      every call; the default stride takes a sample

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>

#include "tests/snapshots/kill_sweep/works.h"
#include "tests/support/file_io.h"
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
