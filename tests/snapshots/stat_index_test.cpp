// The logs of how entries looked stay in proportion to what there is, and useful.

#include "snapshots/stat_index.h"

#include <fcntl.h>

#include <limits>

#include "snapshots/repository.h"
#include "tests/snapshots/fixture.h"

namespace okcvm::test {
namespace {

using namespace snapshots;

constexpr std::int64_t kLongAgo = 1'000'000'000'000'000'000;
constexpr std::int64_t kNow = kLongAgo + 1'000'000'000;

class StatIndexTest : public ::testing::Test {
 protected:
  std::filesystem::path files() const { return scratch_ / "files.index"; }
  std::filesystem::path folders() const { return scratch_ / "folders.index"; }
  static Oid snapshot(std::uint64_t number) { return hash_object(ObjectKind::kBlob, std::to_string(number)); }
  static std::string path(std::uint64_t number) {
    return "outputs/modules/" + std::string(200, 'n') + std::to_string(number);
  }
  static FileStamp stamp(std::uint64_t inode) { return {inode, 7, kLongAgo, kLongAgo}; }

  /// A snapshot in which so many files and folders were replaced.
  void replace(std::uint64_t count) {
    index_.set_base(snapshot(taken_++));
    for (std::uint64_t i = 0; i < count; ++i) {
      index_.saw_file(path(i), stamp(taken_ * count + i), kNow);
      index_.saw_folder(path(i), {taken_ * count + i, kLongAgo});
    }
    index_.commit(snapshot(taken_), taken_ == 1 ? StatIndex::Seen::kAll : StatIndex::Seen::kChanges);
  }
  void expect_known(StatIndex& index, std::uint64_t count) const {
    index.set_base(snapshot(taken_));
    for (std::uint64_t i = 0; i < count; ++i) {
      EXPECT_EQ(index.file(path(i)), stamp(taken_ * count + i));
      EXPECT_EQ(index.folder(path(i)), (Identity{taken_ * count + i, kLongAgo}));
    }
    EXPECT_FALSE(index.file(path(count)));
  }

  ScratchDirectory scratch_{"index"};
  FileDescriptor folder_ = open_file(scratch_.path(), O_RDONLY | O_DIRECTORY);
  StatIndex index_{folder_.get()};
  std::uint64_t taken_ = 0;
};

TEST_F(StatIndexTest, DoesNotGrowWithWhatIsReplacedAgainAndAgain) {
  constexpr std::uint64_t kCount = 500;
  for (int i = 0; i < 60; ++i) {
    replace(kCount);
    for (const auto& log : {files(), folders()}) ASSERT_LT(std::filesystem::file_size(log), 1'500'000u) << i;
  }
  expect_known(index_, kCount);
  StatIndex of_the_next_daemon(folder_.get());
  expect_known(of_the_next_daemon, kCount);
}

TEST_F(StatIndexTest, IsNotWrittenAnewForEverySnapshot) {
  replace(10'000);
  const auto first = stat_of(files()).st_ino;
  for (int i = 0; i < 5; ++i) {
    StatIndex of_the_next_daemon(folder_.get());
    of_the_next_daemon.set_base(snapshot(taken_++));
    of_the_next_daemon.saw_file(path(0), stamp(1), kNow);
    of_the_next_daemon.commit(snapshot(taken_), StatIndex::Seen::kChanges);
    EXPECT_EQ(stat_of(files()).st_ino, first);
  }
}

TEST_F(StatIndexTest, ThatIsTooLargeToBeReadCountsAsAbsentAndGoes) {
  replace(10);
  std::filesystem::resize_file(files(), std::uint64_t{1} << 40);  // with a hole
  index_.set_base(snapshot(taken_));
  EXPECT_FALSE(index_.file(path(0)));
  replace(10);
  EXPECT_FALSE(there_is(files()));
  EXPECT_FALSE(index_.file(path(0)));
  EXPECT_TRUE(there_is(folders()));
}

/// As though the host had been started anew since.
void say_another_boot(const std::filesystem::path& log) {
  const auto boot = read("/proc/sys/kernel/random/boot_id").substr(0, 36);
  auto text = read(log);
  for (auto at = text.find(boot); at != text.npos; at = text.find(boot)) text.replace(at, 1, "?");
  write(log, text);
}

TEST_F(StatIndexTest, KnowsWhetherItWasNotedSinceTheHostStarted) {
  replace(2);
  index_.set_base(snapshot(taken_));
  EXPECT_TRUE(index_.is_of_this_boot());
  say_another_boot(files());
  StatIndex of_the_next_daemon(folder_.get());
  expect_known(of_the_next_daemon, 2);
  EXPECT_FALSE(of_the_next_daemon.is_of_this_boot());
  replace(2);
  StatIndex of_the_one_after(folder_.get());
  expect_known(of_the_one_after, 2);
  EXPECT_TRUE(of_the_one_after.is_of_this_boot());
}

/// A disk may have a file's new times and its old bytes then.
TEST_F(SnapshotTest, LooksIntoFilesThatOnlyLookTheSameSinceTheHostStoppedWithoutWarning) {
  make_zones();
  shell("echo one > outputs/file");
  const auto before = snapshot("before");
  write(in("outputs/file"), "two\n");
  const auto own = open_file(repository() / "okcvm", O_RDONLY | O_DIRECTORY);
  StatIndex index(own.get());
  index.set_base(*Oid::parse(before.id.text()));
  constexpr std::int64_t kLater = std::numeric_limits<std::int64_t>::max() / 2;
  index.saw_file("outputs/file", stamp_of(stat_of(in("outputs/file"))), kLater);
  index.commit(*Oid::parse(before.id.text()), StatIndex::Seen::kAll);
  say_another_boot(repository() / "okcvm/files.index");
  reopen();
  record_.lose_track();
  expect_exact(snapshot("after"));
}

}  // namespace
}  // namespace okcvm::test
