#include "tools/daemon/sessions/skill_registry.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <string>
#include <vector>

#include "tests/support/file_io.h"
#include "tests/support/process.h"
#include "tests/support/scratch.h"
#include "tests/support/unserved_mount.h"

namespace okcvm::test {
namespace {

class SkillRegistries : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* folder : {"a/pdf", "b/docx", "served"})
      std::filesystem::create_directories(scratch_ / folder);
  }
  void link(const std::string& from, const std::filesystem::path& to) const {
    std::filesystem::create_directory_symlink(to, scratch_ / from);
  }
  Code code_of(const std::string& name) const {
    const auto opened = registry_.open(*Name::parse(name));
    return opened ? Code::kInternal : opened.error().code;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& skill : registry_.list()) names.push_back(skill.name);
    return names;
  }

  const ScratchDirectory scratch_{"skills"};
  const daemon::SkillRegistry registry_{{scratch_ / "a", scratch_ / "b"}};
};

TEST_F(SkillRegistries, FollowLinksIntoOneAnother) {
  link("a/near", "../a/pdf");
  link("a/other", "../b/docx");
  link("a/way", scratch_ / "b");
  link("b/far", scratch_ / "a/way/docx");
  link("b/out", scratch_ / "served");
  write(scratch_ / "a/file", "no skill");
  std::filesystem::create_symlink("file", scratch_ / "a/to-file");
  EXPECT_THAT(names(), ::testing::ElementsAre("docx", "far", "near", "other", "pdf"));
}

TEST_F(SkillRegistries, DoNotWaitForWhatAUserServes) {
  if (::geteuid() != 0) GTEST_SKIP() << "mounting needs root";
  link("a/led-away", scratch_ / "served/skill");
  UnservedMount mount(scratch_ / "served", kAlice.uid);
  auto asked = std::async(std::launch::async, [&] {
    EXPECT_EQ(code_of("led-away"), Code::kNotFound);
    EXPECT_THAT(names(), ::testing::ElementsAre("docx", "pdf"));
  });
  EXPECT_EQ(asked.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  mount.end();
  asked.get();
}

}  // namespace
}  // namespace okcvm::test
