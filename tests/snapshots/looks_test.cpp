// Who only looks at what snapshots hold does not wait for those who are at work.

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "tests/snapshots/fixture.h"

namespace okcvm::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class LooksTest : public SnapshotTest {
 protected:
  /// Newest first.
  std::vector<std::string> ids() {
    const auto rows = store().list(0);
    if (!rows) ADD_FAILURE() << rows.error().message;
    std::vector<std::string> ids;
    for (const auto& row : rows.value_or(std::vector<snapshots::Snapshot>())) {
      EXPECT_FALSE(row.damaged) << row.id.text();
      ids.push_back(row.id.text());
    }
    return ids;
  }

  void two_states() {
    make_zones();
    shell("cd outputs; echo same > a; echo one > b");
    one_ = snapshot("one").id.text();
    shell("cd outputs; echo two > b");
    two_ = snapshot("two").id.text();
  }

  /// Everything that can be asked of two_states().
  void look() {
    ++looks_;
    EXPECT_THAT(ids(), ElementsAre(two_, one_));
    const auto found = store().find(one_.substr(0, 12));
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_EQ(found->label, "one");
    const auto expect_b = [](const Result<std::vector<snapshots::Difference>>& rows) {
      ASSERT_TRUE(rows) << rows.error().message;
      ASSERT_THAT(*rows, SizeIs(1));
      EXPECT_EQ(rows->front().path.text(), "outputs/b");
      EXPECT_THAT(rows->front().unified, HasSubstr("-one\n+two\n"));
    };
    expect_b(store().show(two_, Caller{}, {}));
    expect_b(store().diff(one_, two_, {}, Caller{}, nullptr));
    EXPECT_EQ(store().find("0123456").error().code, Code::kUnknownSnapshot);
  }

  std::string one_, two_;
  int looks_ = 0;
};

TEST_F(LooksTest, SeeNothingWhileTheFirstOneIsTaken) {
  make_zones();
  shell("echo x > outputs/a");
  auto source = record_.source();
  source.cut = [&, cut = source.cut] {
    ++looks_;
    EXPECT_THAT(ids(), IsEmpty());
    return cut();
  };
  EXPECT_TRUE(store().take("first", source, nullptr));
  EXPECT_GT(looks_, 0);
  EXPECT_THAT(ids(), SizeIs(1));
}

TEST_F(LooksTest, DoNotWaitForASnapshot) {
  two_states();
  shell("cd outputs; mkdir d; for i in $(seq 50); do echo $i > d/$i; done");
  auto source = record_.source();
  source.cut = [&, cut = source.cut] {
    look();
    return cut();
  };
  const auto at_work = [&](std::string_view, std::uint64_t, std::uint64_t) {
    look();
    return true;
  };
  EXPECT_TRUE(store().take("three", source, at_work));
  EXPECT_GT(looks_, 1);
  EXPECT_THAT(ids(), SizeIs(3));
}

TEST_F(LooksTest, DoNotWaitForARestoreOrAVerification) {
  two_states();
  auto hooks = this->hooks();
  hooks.hold = [&]() -> std::shared_ptr<void> {
    look();
    return nullptr;
  };
  hooks.invalidate = [&](const std::vector<RelPath>&) { look(); };
  EXPECT_TRUE(store().restore(one_, {}, false, hooks, nullptr));
  EXPECT_EQ(looks_, 2);
  EXPECT_TRUE(store().verify("", record_.source(), [&](std::string_view, std::uint64_t, std::uint64_t) {
    look();
    return true;
  }));
  EXPECT_GT(looks_, 2);
}

/// Packs come and go meanwhile.
TEST_F(LooksTest, AVerificationHoldsUpNobodyWhileItReads) {
  constexpr int kMany = 60;
  make_zones();
  shell("cd outputs; for i in a $(seq 1000); do echo $i > $i; done");
  auto newest = snapshot("many").id.text();
  int taken = 0;
  std::uint64_t told = 0;  // at least once for each file that is read
  const auto meanwhile = [&](std::string_view, std::uint64_t, std::uint64_t) {
    ++told;
    if (taken == kMany) return true;
    write(in("outputs/a"), std::to_string(++taken));
    record_.note(ChangeKind::kContent, "outputs/a");
    newest = snapshot(std::to_string(taken)).id.text();
    return true;
  };
  const auto report = store().verify("", record_.source(), meanwhile);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(taken, kMany);
  EXPECT_THAT(report->problems, IsEmpty());
  EXPECT_THAT(report->live_differences, IsEmpty());
  ASSERT_TRUE(report->snapshot);
  EXPECT_EQ(report->snapshot->text(), newest);
  const auto again = store().verify("", record_.source(), nullptr);
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(report->objects, again->objects);
  EXPECT_LT(told, report->objects);  // nothing was read twice
}

/// What was damaged meanwhile, too.
TEST_F(LooksTest, AVerificationReadsWhatCameMeanwhile) {
  two_states();
  bool is_done = false;
  const auto meanwhile = [&](std::string_view, std::uint64_t, std::uint64_t) {
    if (std::exchange(is_done, true)) return true;
    shell("cd outputs; head -c 9000000 /dev/urandom > large");
    snapshot("three");
    shell("f=$(find " + repository().string() +
          " -path '*/objects/*' -size +8000k); test -f $f; chmod u+w $f; "
          "dd if=/dev/zero of=$f bs=1 count=100 seek=5000000 conv=notrunc 2>/dev/null");
    return true;
  };
  const auto report = store().verify("", record_.source(), meanwhile);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_THAT(report->problems, ElementsAre(HasSubstr("outputs/large")));
}

/// Packs come and go meanwhile.
TEST_F(LooksTest, SeeWholeHistoriesWhileManyAreTaken) {
  constexpr std::size_t kMany = 80;
  make_zones();
  std::atomic<bool> done = false;
  static_cast<void>(store());
  std::thread worker([&] {
    for (std::size_t i = 0; i < kMany; ++i) {
      write(in("outputs/a"), std::to_string(i));
      record_.note(ChangeKind::kContent, "outputs/a");
      snapshot(std::to_string(i));
    }
    done = true;
  });
  std::vector<std::string> before;
  while (!done) {
    auto now = ids();
    EXPECT_TRUE(now.size() >= before.size() && std::equal(before.rbegin(), before.rend(), now.rbegin()));
    if (now.size() > 1) {
      const auto shown = store().show(now.front(), Caller{}, {});
      EXPECT_TRUE(shown) << shown.error().message;
    }
    before = std::move(now);
  }
  worker.join();
  EXPECT_THAT(ids(), SizeIs(kMany));
  expect_sound_repository();
}

}  // namespace
}  // namespace okcvm::test
