#include "policy/trees.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <functional>

namespace okcvm {
namespace {

constexpr int kDepth = 5'000;

class TreesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/dev/shm/okcvm-trees-XXXXXX";
    top_ = ::mkdtemp(name);
    ::getrlimit(RLIMIT_NOFILE, &limit_);
    rlimit few = limit_;
    few.rlim_cur = 128;
    ::setrlimit(RLIMIT_NOFILE, &few);
  }
  void TearDown() override {
    EXPECT_TRUE(remove_tree(AT_FDCWD, top_.c_str()));
    EXPECT_FALSE(std::filesystem::exists(top_));
    ::setrlimit(RLIMIT_NOFILE, &limit_);
  }

  FileDescriptor open() const { return FileDescriptor(::open(top_.c_str(), O_RDONLY | O_DIRECTORY)); }
  /// One directory in another, a file beside each.
  void make_chain() const {
    FileDescriptor at = open();
    for (int i = 0; i < kDepth; ++i) {
      ASSERT_EQ(::mkdirat(at.get(), "0", 0755), 0);
      ASSERT_TRUE(FileDescriptor(::openat(at.get(), "1", O_CREAT | O_WRONLY, 0644)));
      at = FileDescriptor(::openat(at.get(), "0", O_RDONLY | O_DIRECTORY));
    }
  }
  std::pair<int, int> counted(const std::function<void()>& meanwhile = [] {}) const {
    std::pair<int, int> counts;
    EXPECT_TRUE(visit_tree(open(), [&](const struct stat& status) {
      ++(S_ISDIR(status.st_mode) ? counts.first : counts.second);
      meanwhile();
      return true;
    }));
    return counts;
  }

  std::filesystem::path top_;
  rlimit limit_{};
};

TEST_F(TreesTest, AreNotCountedInPartForWantOfDescriptors) {
  std::filesystem::create_directories(top_ / "0/0");
  const auto visited = visit_tree(open(), [](const struct stat&) {
    rlimit none{};
    ::getrlimit(RLIMIT_NOFILE, &none);
    none.rlim_cur = 0;
    return ::setrlimit(RLIMIT_NOFILE, &none) == 0;
  });
  ::setrlimit(RLIMIT_NOFILE, &limit_);
  ASSERT_FALSE(visited);
  EXPECT_EQ(visited.error().errno_value, EMFILE);
}

TEST_F(TreesTest, MayBeDeeperThanThereAreDescriptors) {
  make_chain();
  EXPECT_EQ(counted(), std::pair(kDepth, kDepth));
}

TEST_F(TreesTest, AreLeftWhenTheVisitorHasSeenEnough) {
  make_chain();
  int seen = 0;
  const auto visited = visit_tree(open(), [&](const struct stat&) { return ++seen < 10; });
  ASSERT_FALSE(visited);
  EXPECT_EQ(visited.error().code, Code::kBusy);
  EXPECT_EQ(seen, 10);
}

TEST_F(TreesTest, MayBeWideAndHoldAnything) {
  for (int i = 0; i < 300; ++i) {
    const auto directory = top_ / ("d" + std::to_string(i)) / "d" / std::to_string(i);
    std::filesystem::create_directories(directory);
    std::ofstream(directory / "file");
    std::filesystem::create_symlink("/etc", directory / "link");
  }
  std::filesystem::permissions(top_ / "d0", std::filesystem::perms::none);
  EXPECT_EQ(counted(), std::pair(900, 600));
}

TEST_F(TreesTest, AreVisitedNoFurtherThanTheyReachWhenTheirPartsMoveAway) {
  const auto outside = top_.string() + ".outside";
  auto deep = top_ / "t";
  for (int i = 0; i < 100; ++i) deep /= "d";
  std::filesystem::create_directories(deep / "last");
  std::ofstream(deep / "file");
  // The walk is below what goes away, whose place another directory takes.
  const auto inside = deep.parent_path().parent_path();
  int visits = 0;
  const auto counts = counted([&] {
    if (++visits != 103) return;
    std::filesystem::rename(inside, outside);
    std::filesystem::create_directories(inside / "another");
  });
  EXPECT_EQ(counts, std::pair(102, 1));
  EXPECT_TRUE(remove_tree(AT_FDCWD, outside.c_str()));
}

TEST_F(TreesTest, AreGoneOnceTheyAreRemoved) {
  const auto file = top_ / "file";
  std::ofstream{file};
  std::filesystem::create_directory_symlink(top_, top_ / "link");
  EXPECT_TRUE(remove_tree(AT_FDCWD, file.c_str()));
  EXPECT_TRUE(remove_tree(AT_FDCWD, file.c_str()));
  EXPECT_TRUE(remove_tree(open().get(), "link"));
  EXPECT_TRUE(std::filesystem::is_empty(top_));
  EXPECT_FALSE(remove_tree(AT_FDCWD, "/proc/self"));
}

}  // namespace
}  // namespace okcvm
