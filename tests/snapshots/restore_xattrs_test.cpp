#include "tests/snapshots/fixture.h"
#include "tests/support/loop_disk.h"

namespace okcvm::test {
namespace {

/// All extended attributes of a file share what its inode leaves free, and a block of 4 KiB.
class RestoreOnExt4 : public SnapshotTest {
 protected:
  void SetUp() override {
    if (const auto why = disk_.mount_at(scratch_ / "workspaces"); !why.empty()) GTEST_SKIP() << why;
  }
  /// In a script: `give FILE NAME SIZE`.
  static constexpr const char* kGive =
      "give() { setfattr -n user.$2 -v $(head -c $3 /dev/zero | tr '\\0' $2) $1; }; cd outputs; ";

 private:
  LoopDisk disk_{"ext4", "600M"};
};

TEST_F(RestoreOnExt4, AnAttributeThatGrowsHasTheRoomOfOneThatShrinks) {
  const std::string give = kGive;
  there_and_back(give + "echo 1 > f; give f a 3000; give f b 1", give + "give f a 1; give f b 3000");
}

TEST_F(RestoreOnExt4, SoItIsWithFilesThatExchangeTheirs) {
  const std::string give = kGive;
  there_and_back(
      give +
          "echo 1 > other; for f in a z; do echo $f > $f; done; give z a 1; give z b 3000; give a a "
          "3000; give a b 1",
      give + "echo 2 > other; give z b 1; give z a 3000; give a a 1; give a b 3000");
}

TEST_F(RestoreOnExt4, AttributesThatFillTheirRoomFindItAgain) {
  const std::string give = kGive;
  there_and_back(give + "echo 1 > f; give f b 68; give f z 3996; give f a 20", give + "rm f");
}

}  // namespace
}  // namespace okcvm::test
