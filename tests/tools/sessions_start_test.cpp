// What keeps a daemon from starting, or a session from being there, and what does not.

#include <gmock/gmock.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <new>
#include <string>
#include <thread>

#include "tests/support/broken_listing.h"
#include "tests/support/unserved_mount.h"
#include "tests/tools/fake_mounts.h"

namespace okcvm::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class SessionsStart : public SessionsOnFakes {
 protected:
  bool shows_skill(const std::string& id, const std::string& skill) const {
    const auto shown = mounts_.shown(id);
    return shown && shown->skills.contains(skill);
  }
};

TEST_F(SessionsStart, TakesOverOnceThereIsMemoryForIt) {
  create("s");
  int tries = 0;
  mounts_.at_take_over = [&]() -> Result<void> {
    if (++tries < 3) throw std::bad_alloc();
    return {};
  };
  mounts_.at_mount = [] { return Result<void>(fail(Code::kBusy, "its files are open")); };
  start_with_kept("s");
  EXPECT_EQ(tries, 3);
  EXPECT_TRUE(mounts_.shown("s"));
  EXPECT_THAT(sessions_->affected(), IsEmpty());
}

TEST_F(SessionsStart, TellsOfSessionsForWhichThereIsNoMemory) {
  for (const char* id : {"a", "b"}) create(id);
  mounts_.at_mount = []() -> Result<void> { throw std::bad_alloc(); };
  start();
  const auto affected = sessions_->affected();
  ASSERT_THAT(affected, SizeIs(2));
  EXPECT_THAT(affected[0].reason, HasSubstr("could not be mounted"));
}

TEST_F(SessionsStart, GoesOnWhereAFolderCannotBeReadToTheEnd) {
  const auto workspaces = top_ / "state/workspaces", discarded = top_ / "state/discarded";
  for (const auto& folder : {workspaces, discarded}) std::filesystem::create_directories(folder);
  const BrokenListing unknown(workspaces, "unknown"), put_away(discarded, "s.1600000000000.0");
  start();
  const auto affected = sessions_->affected();
  ASSERT_THAT(affected, SizeIs(1));
  EXPECT_EQ(affected[0].id.text(), "unknown");
}

TEST_F(SessionsStart, DoesNotWaitForAFolderWhoseFileSystemDoesNotAnswer) {
  std::filesystem::create_directory(top_ / "skills/pdf");
  daemon::CreateRequest request;
  request.id = "s";
  request.skills = {"pdf"};
  ASSERT_TRUE(sessions_->create(root_, request));
  for (const char* folder : {"projects", "skills"}) {
    UnservedMount hung(top_ / folder);
    auto started = std::async(std::launch::async, [&] { start(); });
    const bool is_back = started.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
    hung.end();
    started.get();
    EXPECT_TRUE(is_back) << folder;
    EXPECT_TRUE(mounts_.shown("s"));
  }
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!shows_skill("s", "pdf") && std::chrono::steady_clock::now() < until) {
    std::this_thread::yield();
    sessions_->renew_skills();
  }
  EXPECT_TRUE(shows_skill("s", "pdf"));
}

}  // namespace
}  // namespace okcvm::test
