// A folder of skills on a file system that does not answer, as a network's.

#include <gmock/gmock.h>

#include <filesystem>
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
};

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
