// Packs are merged, so that they stay few, and nobody waits for that who need not.

#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/snapshots/fixture.h"

namespace okcvm::test {
namespace {

using snapshots::Snapshot;

class PackMerge : public SnapshotTest {
 protected:
  static constexpr std::size_t kMostPacks = 41;

  void SetUp() override { make_zones(); }
  std::vector<std::filesystem::path> packs() const {
    std::vector<std::filesystem::path> found;
    if (!std::filesystem::exists(repository())) return found;
    for (const auto& file : std::filesystem::directory_iterator(repository() / "objects/pack"))
      if (file.path().extension() == ".pack") found.push_back(file.path());
    return found;
  }
  /// What does not deflate.
  std::string noise(std::size_t size) {
    std::string bytes(size, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random_());
    return bytes;
  }
  void change(const std::string& path, const std::string& text) {
    write(in(path), text);
    record_.note(ChangeKind::kEntry, path);
  }
  Snapshot snapshot_of(const std::string& path, const std::string& text) {
    change(path, text);
    return snapshot("n");
  }
  /// Snapshots until the next one would merge.
  void take_until_full() {
    while (packs().size() < kMostPacks - 2) snapshot_of("outputs/f", noise(2000));
  }

 private:
  std::mt19937 random_{1};
};

TEST_F(PackMerge, KeepsThemFewAfterTwoTinyOnes) {
  snapshot("of nothing");
  snapshot_of("outputs/notes", "hello");
  for (int i = 0; i < 90; ++i) {
    snapshot_of("outputs/data" + std::to_string(i % 5), noise(20'000));
    ASSERT_LE(packs().size(), kMostPacks) << i;
  }
  expect_sound_repository();
  expect_exact(snapshot("last"));
}

TEST_F(PackMerge, KeepsThemFewThoughSeveralTimesTheNextOnesAreMuchLarger) {
  for (const auto& [count, size] : {std::pair(3, 0), std::pair(12, 20'000), std::pair(60, 600'000)})
    for (int i = 0; i < count; ++i) {
      snapshot_of("outputs/f" + std::to_string(i % 3), noise(static_cast<std::size_t>(size)));
      ASSERT_LE(packs().size(), kMostPacks) << i << " of " << size;
    }
  expect_sound_repository();
}

TEST_F(PackMerge, LeavesADamagedOneOut) {
  const Snapshot first = snapshot_of("outputs/lost", noise(20'000));
  const auto damaged = packs().at(0);
  auto bytes = read(damaged);
  bytes[bytes.size() / 2] ^= 1;
  write(damaged, bytes);
  std::filesystem::remove(in("outputs/lost"));
  record_.note(ChangeKind::kEntry, "outputs/lost");
  for (int i = 0; i < 60; ++i) snapshot_of("outputs/f", noise(2000));
  EXPECT_LE(packs().size(), kMostPacks);
  EXPECT_TRUE(std::filesystem::exists(damaged));
  const Snapshot last = snapshot("last");
  const auto before = manifest();
  reopen();
  change("outputs/f", "other");
  restore(last);
  expect_same(before, manifest());
  EXPECT_NE(store().verify(first.id.text(), record_.source(), nullptr)->problems.size(), 0u);
}

TEST_F(PackMerge, IsGivenUpWhenAsked) {
  take_until_full();
  const auto full = packs().size();
  bool was_packing = false;
  const auto stop = [&](std::string_view phase, std::uint64_t, std::uint64_t) {
    was_packing |= phase == "packing";
    return phase != "packing";
  };
  for (int i = 0; !was_packing; ++i) {
    ASSERT_LT(i, 5);
    change("outputs/f", noise(2000));
    const auto taken = store().take("stopped", record_.source(), stop);
    ASSERT_TRUE(taken) << taken.error().message;
  }
  EXPECT_GE(packs().size(), full);
  EXPECT_TRUE(list(repository() / "okcvm/incoming").empty());
  expect_exact(snapshot_of("outputs/f", "goes on"));
  EXPECT_LT(packs().size(), full);
}

/// Programs do not wait for it.
TEST_F(PackMerge, ComesAfterTheHoldOfARestore) {
  const Snapshot first = snapshot_of("outputs/f", "first");
  take_until_full();
  int held = 0;
  bool was_packing = false;
  const auto progress = [&](std::string_view phase, std::uint64_t, std::uint64_t) {
    if (phase != "packing") return true;
    was_packing = true;
    EXPECT_EQ(held, 0);
    return true;
  };
  for (int i = 0; !was_packing; ++i) {
    ASSERT_LT(i, 5);
    change("outputs/f", noise(2000));
    auto with_hold = hooks();
    with_hold.hold = [&]() -> std::shared_ptr<void> {
      ++held;
      return {nullptr, [&](void*) { --held; }};
    };
    const auto restored = store().restore(first.id.text(), {}, false, with_hold, progress);
    ASSERT_TRUE(restored) << restored.error().message;
    ASSERT_EQ(read(in("outputs/f")), "first");
  }
  EXPECT_LT(packs().size(), kMostPacks - 2);
  expect_sound_repository();
}

/// They take descriptors and memory maps, of which a process has only so many.
TEST_F(PackMerge, LetsGoOfPacksWhenAskedFor) {
  const auto mapped = [this] {
    return read("/proc/self/maps").find(repository().string()) != std::string::npos;
  };
  for (int i = 0; i < 3; ++i) snapshot_of("outputs/f", noise(2000));
  const Snapshot last = snapshot("last");
  expect_exact(last);
  ASSERT_TRUE(mapped());
  store().release_memory();
  EXPECT_FALSE(mapped());
  EXPECT_EQ(store().list(0)->size(), 4u);
  store().release_memory();
  restore(last);
  expect_exact(snapshot_of("outputs/f", "next"));
}

}  // namespace
}  // namespace okcvm::test
