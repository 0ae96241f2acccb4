// A folder of skills on a file system that does not answer, as a network's.

#include <gmock/gmock.h>
#include <sys/syscall.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/unserved_mount.h"
#include "tests/tools/daemon_fixture.h"

namespace okcvm::test {
namespace {

namespace fs = std::filesystem;

class HungSkills : public DaemonFixture {
 protected:
  void SetUp() override {
    DaemonFixture::SetUp();
    if (IsSkipped()) return;
    fs::create_directories(root_ / "net/skills");
    add_skill("pdf", "how to");
  }
  std::vector<std::string> options() const {
    return {"--skills-dir",         root_ / "skills", "--skills-dir",
            root_ / "state/skills", "--skills-dir",   root_ / "net/skills"};
  }
  /// Whether a thread of the daemon is within a system call of this number.
  bool is_within(long number) {
    const auto wanted = std::to_string(number) + " ";
    for (const auto& thread : fs::directory_iterator("/proc/" + std::to_string(keeper_pid()) + "/task")) {
      std::string line;
      std::getline(std::ifstream(thread.path() / "syscall"), line);
      if (line.starts_with(wanted)) return true;
    }
    return false;
  }
};

TEST_F(HungSkills, KeepNeitherTheDaemonNorItsEndWaiting) {
  start(options());
  create({{"id", "s1"}});
  const UnservedMount hung(root_ / "net");
  add_skill("new", "of which inotify tells");
  ASSERT_TRUE(comes_true([&] { return is_within(SYS_inotify_add_watch); }));
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/skills", R"({"name":"new"})").status, 201);
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/skills", R"({"name":"none"})").code(), "busy");
  EXPECT_EQ(ask("GET", "/v1/skills").json()["skills"].size(), 2u);
  EXPECT_EQ(stop(), 0);
}

TEST_F(HungSkills, KeepNoDaemonFromStarting) {
  start(options());
  create({{"id", "s1"}, {"skills", {"pdf"}}});
  EXPECT_EQ(stop(), 0);
  const UnservedMount below_one(root_ / "net"), at_one(root_ / "state/skills");
  start(options());
  EXPECT_EQ(read(mount("s1") / "skills/pdf/SKILL.md"), "how to");
  EXPECT_EQ(stop(), 0);
}

}  // namespace
}  // namespace okcvm::test
