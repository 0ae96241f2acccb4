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

TEST_F(Skills, AnotherDirectoryTakesThePlaceOfOne) {
  const auto top = session().add_skill("pdf", {{"SKILL.md", "old"}, {"gone", "x"}});
  session().load_skill("pdf");
  const auto file = open_file(skills() / "pdf/SKILL.md", O_RDONLY);
  const auto name = value_of(Name::parse("pdf"));
  EXPECT_FALSE(value_of(session().driver().renew_skill(skill_of(top))));

  fs::rename(top, session().scratch() / "state/former");
  session().add_skill("pdf", {{"SKILL.md", "new"}, {"come", "y"}});
  EXPECT_TRUE(value_of(session().driver().renew_skill(skill_of(top))));
  EXPECT_EQ(read(skills() / "pdf/SKILL.md"), "new");
  EXPECT_THAT(list(skills() / "pdf"), ElementsAre("SKILL.md", "come"));
  EXPECT_ERRNO(ENOENT, ::access((skills() / "pdf/gone").c_str(), F_OK));
  EXPECT_EQ(read(file), "old");
  EXPECT_ERRNO(EROFS, ::open((skills() / "pdf/SKILL.md").c_str(), O_WRONLY));

  value_of(session().driver().unload_skill(name));
  EXPECT_FALSE(session().driver().shows_skill(name));
  const auto unloaded = session().driver().renew_skill(skill_of(top));
  ASSERT_FALSE(unloaded);
  EXPECT_EQ(unloaded.error().code, Code::kNotFound);
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

TEST_F(Skills, AnOpenFileIsReadAsTheHostChangedIt) {
  const auto top = session().add_skill("log", {{"lines", "one\n"}});
  session().load_skill("log");
  const auto file = open_file(skills() / "log/lines", O_RDONLY);
  EXPECT_EQ(read(file), "one\n");
  std::string all = "one\n";
  for (const char* const line : {"two\n", "three\n", "four\n"}) {
    write_all(open_file(top / "lines", O_WRONLY | O_APPEND), line);
    all += line;
    // As long as the size is believed that was told before.
    for (int i = 0; i < 200 && stat_of(file).st_size != static_cast<off_t>(all.size()); ++i) ::usleep(10'000);
    EXPECT_EQ(read(file), all);
  }
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

TEST_F(Skills, AnOwnerReadsWhatTheHostsPermissionsAllowToo) {
  start_with([](fusefs::MountConfig& config) {
    config.owner_uid = kAlice.uid;
    config.owner_gid = kAlice.gid;
  });
  const auto top = session().add_skill(
      "pdf", {{"open", "open"}, {"roots", "x"}, {"groups", "x"}, {"own", "own"}, {"of group", "group's"}});
  fs::permissions(top / "roots", fs::perms(0600));
  fs::permissions(top / "groups", fs::perms(0640));
  fs::permissions(top / "own", fs::perms(0600));
  ASSERT_OK(::chown((top / "own").c_str(), kAlice.uid, 0));
  fs::permissions(top / "of group", fs::perms(0640));
  ASSERT_OK(::chown((top / "of group").c_str(), 0, kAlice.gid));
  session().load_skill("pdf");
  as_user(kAlice, [&] {
    const auto pdf = skills() / "pdf";
    EXPECT_EQ(read(pdf / "open"), "open");
    EXPECT_EQ(read(pdf / "own"), "own");
    EXPECT_EQ(read(pdf / "of group"), "group's");
    EXPECT_ERRNO(EACCES, ::open((pdf / "roots").c_str(), O_RDONLY));
    EXPECT_ERRNO(EACCES, ::open((pdf / "groups").c_str(), O_RDONLY));
    EXPECT_ERRNO(EROFS, ::open((pdf / "roots").c_str(), O_WRONLY));
    EXPECT_ERRNO(EROFS, ::open((pdf / "open").c_str(), O_WRONLY));
  });
}

TEST_F(Skills, TheListingIsOfWhatTheServingDaemonHasLoaded) {
  if (!session().driver().statistics().survives_daemon)
    GTEST_SKIP() << "mounts do not outlive their daemon here";
  for (const char* name : {"a", "b"}) session().add_skill(name, {{"SKILL.md", name}});
  const auto with = [this](std::initializer_list<const char*> names) {
    return [this, names = std::vector<std::string>(names.begin(), names.end())](fusefs::MountConfig& config) {
      for (const auto& name : names)
        config.skills.push_back(skill_of(session().scratch() / "state/skills" / name));
    };
  };
  session().hand_over(with({"a", "b"}));
  EXPECT_THAT(list(skills()), ElementsAre("a", "b"));
  session().hand_over(with({"a"}));
  EXPECT_THAT(list(skills()), ElementsAre("a"));
  session().hand_over(with({"a", "b"}));
  EXPECT_THAT(list(skills()), ElementsAre("a", "b"));
}

}  // namespace
}  // namespace okcvm::test
