#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fstream>

#include "tests/support/mounted_session.h"

namespace okcvm::test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

using Skills = MountedSession;

TEST_F(Skills, ALoadedSkillIsThereAndAnUnloadedOneIsNot) {
  session().add_skill("pdf", {{"SKILL.md", "how to"}, {"a/b/c.txt", "deep"}});
  EXPECT_ERRNO(ENOENT, ::access((skills() / "pdf").c_str(), F_OK));
  session().load_skill("pdf");
  EXPECT_THAT(list(skills()), ElementsAre("pdf"));
  EXPECT_EQ(read(skills() / "pdf/a/b/c.txt"), "deep");
  EXPECT_FALSE(there_is(session().workspace()));

  value_of(session().driver().unload_skill(value_of(Name::parse("pdf"))));
  EXPECT_THAT(list(skills()), ElementsAre());
  EXPECT_ERRNO(ENOENT, ::open((skills() / "pdf/SKILL.md").c_str(), O_RDONLY));
  EXPECT_ERRNO(ENOENT, ::access((skills() / "pdf").c_str(), F_OK));
  session().load_skill("pdf");
  EXPECT_EQ(read(skills() / "pdf/SKILL.md"), "how to");
}

TEST_F(Skills, NamesAreTakenOnce) {
  session().add_skill("pdf", {{"SKILL.md", "how to"}});
  session().load_skill("pdf");
  const auto again = session().driver().load_skill(skill_of(session().scratch() / "state/skills/pdf"));
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, Code::kAlreadyExists);
  const auto missing = session().driver().unload_skill(value_of(Name::parse("none")));
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::kNotFound);
}

TEST_F(Skills, SkillsOfTheConfigurationAreLoadedAtTheStart) {
  ScratchDirectory registry("registry");
  fs::create_directory(registry / "csv");
  std::ofstream(registry / "csv" / "SKILL.md") << "tables";
  start_with([&](fusefs::MountConfig& config) { config.skills.push_back(skill_of(registry / "csv")); });
  EXPECT_EQ(read(skills() / "csv/SKILL.md"), "tables");
}

TEST_F(Skills, TheViewIsLive) {
  const auto top = session().add_skill("pdf", {{"SKILL.md", "old"}});
  session().load_skill("pdf");
  EXPECT_EQ(read(skills() / "pdf/SKILL.md"), "old");
  list(skills() / "pdf");

  write(top / "SKILL.md", "new and longer");
  write(top / "added", "added");
  // Cache times in skills/ are short; until they have passed the old view is right as well.
  const auto becomes = [&](const auto& holds) {
    for (int i = 0; i < 1000 && !holds(); ++i) ::usleep(10'000);
    return holds();
  };
  EXPECT_TRUE(becomes([&] { return read(skills() / "pdf/SKILL.md") == "new and longer"; }));
  EXPECT_TRUE(becomes([&] { return list(skills() / "pdf").size() == 2; }));
  EXPECT_EQ(read(skills() / "pdf/added"), "added");
  fs::remove(top / "added");
  EXPECT_TRUE(becomes([&] { return !there_is(skills() / "pdf/added"); }));
}

TEST_F(Skills, AnOpenFileStaysReadableAfterTheUnload) {
  session().add_skill("pdf", {{"SKILL.md", pattern(100'000)}});
  session().load_skill("pdf");
  const auto file = open_file(skills() / "pdf/SKILL.md", O_RDONLY);
  const auto directory = open_file(skills() / "pdf", O_RDONLY | O_DIRECTORY);
  value_of(session().driver().unload_skill(value_of(Name::parse("pdf"))));
  EXPECT_EQ(read(file), pattern(100'000));
  EXPECT_EQ(stat_of(file).st_size, 100'000);
  void* const memory = ::mmap(nullptr, 100'000, PROT_READ, MAP_PRIVATE, file.get(), 0);
  ASSERT_NE(memory, MAP_FAILED);
  EXPECT_EQ(std::string_view(static_cast<char*>(memory), 100'000), pattern(100'000));
  ::munmap(memory, 100'000);
}

TEST_F(Skills, ProgramsCanBeRunFromASkill) {
  const auto top = session().add_skill("tool", {{"run.sh", "#!/bin/sh\necho ran\n"}});
  fs::permissions(top / "run.sh", fs::perms(0755));
  session().load_skill("tool");
  const auto result = run({.arguments = {(skills() / "tool/run.sh").string()}});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(result.output, "ran\n");
}

TEST_F(Skills, OrdinaryUsersReadWhatTheHostsPermissionsAllow) {
  const auto top = session().add_skill("pdf", {{"open", "open"}, {"closed", "closed"}});
  fs::permissions(top / "closed", fs::perms(0600));
  session().load_skill("pdf");
  as_user(kAlice, [&] {
    EXPECT_EQ(read(skills() / "pdf/open"), "open");
    EXPECT_ERRNO(EACCES, ::open((skills() / "pdf/closed").c_str(), O_RDONLY));
  });
}

}  // namespace
}  // namespace okcvm::test
