#include "fusefs/going_names.h"

#include <gtest/gtest.h>

#include "tests/support/scratch.h"

namespace okcvm::fusefs {
namespace {

class GoingNamesTest : public ::testing::Test {
 protected:
  GoingNames next_daemons() { return {scratch_ / "going", Start::kTakeOver}; }
  static RelPath path(const std::string& text) { return *RelPath::parse(text); }

  test::ScratchDirectory scratch_{"going-names"};
  GoingNames names_{scratch_ / "going", Start::kAnew};
};

TEST_F(GoingNamesTest, AreToldToTheNextDaemon) {
  EXPECT_TRUE(names_.has_all());
  EXPECT_TRUE(next_daemons().has_all());
  EXPECT_TRUE(names_.note(path("outputs/a")));
  EXPECT_TRUE(names_.note(path("outputs/b\n")));
  EXPECT_EQ(next_daemons().all(), (std::vector{path("outputs/a"), path("outputs/b\n")}));
  EXPECT_TRUE(next_daemons().has_all());
  names_.clear();
  EXPECT_TRUE(next_daemons().all().empty());
}

TEST_F(GoingNamesTest, AreNotAllWhereOneHasNoPath) {
  EXPECT_TRUE(names_.note(RelPath()));
  EXPECT_FALSE(next_daemons().has_all());
  names_.clear();
  EXPECT_TRUE(names_.note(path("outputs/a")));
  EXPECT_TRUE(names_.note(RelPath()));
  EXPECT_FALSE(next_daemons().has_all());
  names_.clear();
  EXPECT_TRUE(next_daemons().has_all());
}

TEST_F(GoingNamesTest, AreNotAllWhereThereAreMoreThanFit) {
  const std::string folder = "outputs/" + std::string(240, 'd') + "/";
  for (int i = 0; i < 5000; ++i) EXPECT_TRUE(names_.note(path(folder + std::to_string(i))));
  EXPECT_LT(next_daemons().all().size(), 5000u);
  EXPECT_FALSE(next_daemons().has_all());
}

TEST_F(GoingNamesTest, AreSaidNotToBeNotedWhereThereIsNoRoom) {
  GoingNames nowhere(scratch_ / "absent/going", Start::kAnew);
  EXPECT_FALSE(nowhere.note(path("outputs/a")));
}

}  // namespace
}  // namespace okcvm::fusefs
