// How much room a snapshot needs while it is taken.

#include "tests/snapshots/fixture.h"

namespace okcvm::test {
namespace {

using RoomTest = SnapshotTest;

/// Files of their own object (snapshots/batch.h) are read into the repository before it is known whether they
/// changed.
TEST_F(RoomTest, IsNotTakenByAllLargeFilesThatDidNotChange) {
  constexpr std::size_t kSize = 9 << 20;
  constexpr int kFiles = 4;
  make_zones();
  for (int i = 0; i < kFiles; ++i)
    write(in("outputs/" + std::to_string(i)), std::string(kSize, static_cast<char>('a' + i)));
  const auto one = snapshot("one");
  for (int i = 0; i < kFiles; ++i) {
    write(in("outputs/" + std::to_string(i)), std::string(kSize, static_cast<char>('a' + i)));
    record_.note(ChangeKind::kContent, "outputs/" + std::to_string(i));
  }
  write(in("outputs/new"), "x");
  record_.note(ChangeKind::kEntry, "outputs/new");
  std::size_t most = 0;
  const auto taken =
      store().take("two", record_.source(), [&](std::string_view, std::uint64_t, std::uint64_t) {
        most = std::max(most, list(repository() / "okcvm/incoming").size());
        return true;
      });
  ASSERT_TRUE(taken) << taken.error().message;
  EXPECT_LE(most, 2u);
  expect_exact(*taken);
}

}  // namespace
}  // namespace okcvm::test
