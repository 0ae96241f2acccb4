// The folder in which objects wait until they come in: on a full disk it could not be made again.

#include <fcntl.h>
#include <unistd.h>

#include "tests/snapshots/fixture.h"

namespace okcvm::test {
namespace {

using namespace snapshots;
using ::testing::IsEmpty;

class WaitingRoomTest : public SnapshotTest {
 protected:
  void SetUp() override {
    make_zones();
    shell("echo 1 > outputs/f");
    snapshot();
    first_ = open_file(room(), O_RDONLY | O_DIRECTORY);
  }

  std::filesystem::path room() const { return repository() / "okcvm/incoming"; }
  void expect_the_first_and_empty() {
    EXPECT_GT(stat_of(first_).st_nlink, 0u) << "it was removed";
    EXPECT_THAT(list(room()), IsEmpty());
  }

  FileDescriptor first_;
};

TEST_F(WaitingRoomTest, StaysWhenASnapshotFails) {
  shell("echo 2 > outputs/f");
  const auto taken =
      under_fault("errno:batch.pack:1:ENOSPC", [&] { return store().take("", record_.source(), nullptr); });
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code, Code::kNoSpace);
  expect_the_first_and_empty();
  expect_exact(snapshot());
}

TEST_F(WaitingRoomTest, StaysAfterASnapshotOfALargeFile) {
  shell("head -c 9000000 /dev/urandom > outputs/large; cp outputs/large outputs/copy");
  snapshot();
  expect_the_first_and_empty();
}

TEST_F(WaitingRoomTest, StaysWhenAStartEmptiesIt) {
  write(room() / "new.pack", "half a pack");
  std::filesystem::create_directory(room() / "folder");
  reopen();
  store();
  expect_the_first_and_empty();
}

TEST_F(WaitingRoomTest, IsMadeAgainWhereItIsGone) {
  ASSERT_EQ(::rmdir(room().c_str()), 0);
  shell("echo 2 > outputs/f");
  expect_exact(snapshot());
}

TEST_F(WaitingRoomTest, AnIntentOfAnOlderSnapshotTakesNothingFromTheHistory) {
  const auto intent = repository() / "okcvm/intent";
  std::string of_the_second;
  auto source = record_.source();
  const auto retire = source.retire;
  source.retire = [&](const ChangeSet& set) {
    of_the_second = read(intent);
    retire(set);
  };
  shell("echo 2 > outputs/second");
  ASSERT_TRUE(store().take("second", source, nullptr));
  shell("echo 3 > outputs/third");
  const auto third = snapshot("third");
  write(intent, of_the_second);  // as after a loss of power that brought it back
  reopen();
  EXPECT_EQ(store().list(0)->size(), 3u);
  EXPECT_FALSE(there_is(intent));
  expect_sound_repository();
  expect_exact(third);
}

}  // namespace
}  // namespace okcvm::test
