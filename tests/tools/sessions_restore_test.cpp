// A session of which a restore was broken off and could not be settled since.

#include <fstream>

#include "tests/tools/fake_mounts.h"

namespace okcvm::test {
namespace {

class HalfRestoredSession : public SessionsOnFakes {
 protected:
  std::filesystem::path journal() const { return top_ / "state/snapshots/s.git/okcvm/journal"; }
  void break_off_a_restore() {
    std::filesystem::create_directories(journal().parent_path());
    std::ofstream(journal()) << "of a restore";
  }
};

TEST_F(HalfRestoredSession, IsNotMountedUntilThatIsSettled) {
  create("s");
  break_off_a_restore();
  start();
  EXPECT_FALSE(mounts_.shown("s"));
  ASSERT_EQ(sessions_->affected().size(), 1u);
  auto& session = **sessions_->find(root_, "s");
  const auto refused = sessions_->mount(session);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kBusy);
  EXPECT_FALSE(mounts_.shown("s"));
  std::filesystem::remove(journal());
  EXPECT_TRUE(sessions_->mount(session));
  EXPECT_TRUE(mounts_.shown("s"));
}

TEST_F(HalfRestoredSession, IsDeletedAsAnyOther) {
  create("s");
  break_off_a_restore();
  start();
  const auto removed = sessions_->remove(root_, "s");
  EXPECT_TRUE(removed && *removed);
  EXPECT_FALSE(row("s"));
}

}  // namespace
}  // namespace okcvm::test
