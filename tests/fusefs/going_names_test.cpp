#include "fusefs/going_names.h"

#include <gtest/gtest.h>

#include "tests/support/scratch.h"

namespace okcvm::fusefs {
namespace {

class GoingNamesTest : public ::testing::Test {
 protected:
  GoingNames next_daemons() { return {scratch_ / "going", Start::kTakeOver}; }
  static RelPath path(const std::string& text) { return *RelPath::parse(text); }
  static std::vector<RelPath> paths(const std::vector<std::string>& texts) {
    std::vector<RelPath> parsed;
    for (const auto& text : texts) parsed.push_back(path(text));
    return parsed;
  }

  test::ScratchDirectory scratch_{"going-names"};
  GoingNames names_{scratch_ / "going", Start::kAnew};
};

TEST_F(GoingNamesTest, AreToldToTheNextDaemon) {
  EXPECT_TRUE(names_.has_all());
  EXPECT_TRUE(next_daemons().has_all());
  EXPECT_TRUE(names_.note(paths({"outputs/a"})));
  EXPECT_TRUE(names_.note(paths({"outputs/b\n"})));
  EXPECT_EQ(next_daemons().all(), (std::vector{path("outputs/a"), path("outputs/b\n")}));
  EXPECT_TRUE(next_daemons().has_all());
  names_.clear();
  EXPECT_TRUE(next_daemons().all().empty());
}

TEST_F(GoingNamesTest, AreNotAllWhereOneHasNoPath) {
  EXPECT_TRUE(names_.note(std::vector{RelPath()}));
  EXPECT_FALSE(next_daemons().has_all());
  names_.clear();
  EXPECT_TRUE(names_.note(paths({"outputs/a"})));
  EXPECT_TRUE(names_.note(std::vector{RelPath()}));
  EXPECT_FALSE(next_daemons().has_all());
  names_.clear();
  EXPECT_TRUE(next_daemons().has_all());
}

TEST_F(GoingNamesTest, AreNotAllWhereThereAreMoreThanFit) {
  const std::string folder = "outputs/" + std::string(240, 'd') + "/";
  std::vector<RelPath> many;
  for (int i = 0; i < 5000; ++i) many.push_back(path(folder + std::to_string(i)));
  EXPECT_TRUE(names_.note(many));
  EXPECT_TRUE(names_.note(paths({"outputs/one more"})));
  EXPECT_LT(next_daemons().all().size(), 5000u);
  EXPECT_FALSE(next_daemons().has_all());
}

TEST_F(GoingNamesTest, AreSaidNotToBeNotedWhereThereIsNoRoom) {
  GoingNames nowhere(scratch_ / "absent/going", Start::kAnew);
  EXPECT_FALSE(nowhere.note(paths({"outputs/a"})));
}

TEST_F(GoingNamesTest, HaveTheLastStatusOfWhatStoodThere) {
  const NodeId id{(std::uint64_t{7} << 32) | 9};
  struct stat status {};
  ASSERT_EQ(::stat("/", &status), 0);
  names_.note({{id, status}});
  EXPECT_TRUE(next_daemons().statuses().empty());  // of no name
  EXPECT_TRUE(names_.note(paths({"outputs/a"})));
  names_.note({{id, status}});
  EXPECT_TRUE(names_.note(paths({"outputs/b"})));
  EXPECT_TRUE(next_daemons().has_all());
  EXPECT_EQ(next_daemons().all(), (std::vector{path("outputs/a"), path("outputs/b")}));
  const auto statuses = next_daemons().statuses();
  ASSERT_EQ(statuses.size(), 1u);
  EXPECT_EQ(statuses[0].first.value, id.value);
  const auto& [noted, got] = statuses[0];
  EXPECT_EQ(got.st_ino, status.st_ino);
  EXPECT_EQ(got.st_mode, status.st_mode);
  EXPECT_EQ(got.st_uid, status.st_uid);
  EXPECT_EQ(got.st_gid, status.st_gid);
  EXPECT_EQ(got.st_size, status.st_size);
  EXPECT_EQ(got.st_blocks, status.st_blocks);
  EXPECT_EQ(got.st_mtim.tv_sec, status.st_mtim.tv_sec);
  EXPECT_EQ(got.st_ctim.tv_nsec, status.st_ctim.tv_nsec);
}

}  // namespace
}  // namespace okcvm::fusefs
