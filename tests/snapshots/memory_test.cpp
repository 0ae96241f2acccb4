// What a store keeps in memory between two calls.

#include <malloc.h>
#include <sys/xattr.h>

#include "tests/snapshots/fixture.h"

namespace okcvm::test {
namespace {

class MemoryTest : public SnapshotTest {
 protected:
  static std::size_t in_use() { return ::mallinfo2().uordblks; }
};

TEST_F(MemoryTest, OfASnapshotIsLetGoWhenAskedFor) {
  if (in_use() == 0) GTEST_SKIP() << "a sanitizer's allocator does not say how much is in use";
  make_zones();
  shell("cd outputs; for d in 1 2 3; do mkdir $d; for i in $(seq 1000); do echo $i > $d/$i; done; done");
  snapshot();
  const auto before = in_use();
  store().release_memory();
  EXPECT_LT(in_use() + 300'000, before);
  write(in("outputs/2/7"), "changed");
  record_.note(ChangeKind::kContent, "outputs/2/7");
  const auto taken = snapshot();
  EXPECT_EQ(taken.stats.changed, 1u);
  expect_exact(taken);
}

TEST_F(MemoryTest, OfExtendedAttributesIsThatOfTheirBytes) {
  if (in_use() == 0) GTEST_SKIP() << "a sanitizer's allocator does not say how much is in use";
  make_zones();
  constexpr int kFiles = 500, kAttributes = 4;
  for (int i = 0; i < kFiles; ++i) {
    const auto file = in("outputs/" + std::to_string(i));
    write(file, "x");
    for (int n = 0; n < kAttributes; ++n)
      if (::setxattr(file.c_str(), ("user." + std::to_string(n)).c_str(), "v", 1, 0) != 0)
        GTEST_SKIP() << "no extended attributes on this file system";
  }
  const auto before = in_use();
  snapshot();
  EXPECT_LT(in_use(), before + kFiles * kAttributes * 4096);
}

TEST_F(MemoryTest, IsNotWaitedForWhereASnapshotIsAtWork) {
  make_zones();
  shell("echo 1 > outputs/f");
  auto source = record_.source();
  const auto cut = source.cut;
  source.cut = [&] {
    store().release_memory();
    return cut();
  };
  const auto taken = store().take("", source, nullptr);
  ASSERT_TRUE(taken);
  expect_exact(*taken);
}

}  // namespace
}  // namespace okcvm::test
