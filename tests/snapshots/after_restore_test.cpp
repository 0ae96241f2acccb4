// What is counted from the state that a restore left.

#include <sys/stat.h>
#include <unistd.h>

#include "tests/snapshots/fixture.h"

namespace okcvm::test {
namespace {

using namespace snapshots;
using ::testing::IsEmpty;

class AfterRestoreTest : public SnapshotTest {
 protected:
  void SetUp() override {
    make_zones();
    shell("echo x > outputs/f; chmod 644 outputs/f");
    closed_ = snapshot("closed");
    change_mode(0755);
    open_ = snapshot("open");
    restore(*closed_);
  }

  void change_mode(mode_t mode) {
    ASSERT_EQ(::chmod(in("outputs/f").c_str(), mode), 0);
    record_.note(ChangeKind::kAttributes, "outputs/f");
  }

  std::optional<Snapshot> closed_, open_;
};

TEST_F(AfterRestoreTest, ASessionThatWentForwardAgainByItselfIsCountedFromThere) {
  change_mode(0755);
  expect_exact(snapshot());
  expect_exact(snapshot());
  EXPECT_THAT(*store().diff("", {}, record_.source(), std::nullopt, nullptr), IsEmpty());
  restore(*closed_);
  EXPECT_EQ(mode_of(in("outputs/f")), 0644u);
}

TEST_F(AfterRestoreTest, SoItIsByARestoreThatFindsNothingToDo) {
  change_mode(0755);
  EXPECT_THAT(restore(*open_).applied, IsEmpty());
  restore(*closed_);
  EXPECT_EQ(mode_of(in("outputs/f")), 0644u);
}

TEST_F(AfterRestoreTest, ContentsThatCameBackWithTheirTimesAreNotTakenForThoseOfTheRestore) {
  shell("echo y > outputs/f; touch -d 2001-01-01 outputs/f outputs");
  const auto other = snapshot("other");
  restore(*closed_);
  shell("echo y > outputs/f; touch -d 2001-01-01 outputs/f outputs");
  usleep(50'000);  // past the tick within which a time stamp cannot tell two changes apart
  record_.lose_track();
  snapshot();
  record_.lose_track();
  const auto taken = snapshot();
  EXPECT_EQ(git("show " + taken.id.text() + ":workspace/outputs/f"), "y\n");
  expect_exact(taken);
}

}  // namespace
}  // namespace okcvm::test
