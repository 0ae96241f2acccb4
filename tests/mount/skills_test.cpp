#include <dirent.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <set>
#include <vector>

#include "tests/support/loop_disk.h"
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

TEST_F(Skills, AListingGoesOnWhereItWasWhateverIsUnloadedMeanwhile) {
  constexpr int kCount = 200;
  const auto name = [](int i) { return "m" + std::to_string(1000 + i); };
  for (int i = 0; i < kCount; ++i) {
    session().add_skill(name(i), {});
    session().load_skill(name(i));
  }
  const auto directory = open_file(skills(), O_RDONLY | O_DIRECTORY);
  std::array<char, 600> buffer;
  std::vector<std::string> seen;
  std::set<std::string> gone;
  while (const long size = ::syscall(SYS_getdents64, directory.get(), buffer.data(), buffer.size())) {
    ASSERT_GT(size, 0);
    for (long at = 0; at < size;) {
      const auto* row = reinterpret_cast<const dirent64*>(buffer.data() + at);
      seen.emplace_back(row->d_name);
      at += row->d_reclen;
    }
    for (std::size_t i = 0; gone.empty() && i < 3; ++i) {
      gone.insert(seen.at(i + 2));
      value_of(session().driver().unload_skill(value_of(Name::parse(seen.at(i + 2)))));
    }
  }
  for (int i = 0; i < kCount; ++i) {
    if (gone.contains(name(i))) continue;
    EXPECT_EQ(std::count(seen.begin(), seen.end(), name(i)), 1) << name(i);
  }
}

/// The numbers of these two are made of their names, and would be the same.
TEST_F(Skills, KeepTheirInodeNumbersWhoeverServesThem) {
  if (!session().driver().statistics().survives_daemon)
    GTEST_SKIP() << "mounts do not outlive their daemon here";
  const std::vector<std::string> names{"c728", " odd\nname", "c492"};
  for (const auto& name : names) {
    session().add_skill(name, {{"SKILL.md", name}});
    session().load_skill(name);
  }
  const auto numbers = [&] {
    std::map<std::string, ino_t> found;
    for (const auto& row : fs::directory_iterator(skills())) {
      const auto directory = open_file(row.path(), O_RDONLY | O_DIRECTORY);
      found[row.path().filename()] = stat_of(directory).st_ino;
    }
    return found;
  };
  const auto before = numbers();
  ASSERT_EQ(before.size(), 3u);
  EXPECT_NE(before.at("c728"), before.at("c492"));
  session().hand_over([&](fusefs::MountConfig& config) {
    for (const char* name : {" odd\nname", "c492", "c728"})
      config.skills.push_back(skill_of(session().scratch() / "state/skills" / name));
  });
  value_of(session().driver().unload_skill(value_of(Name::parse("c728"))));
  session().load_skill("c728");
  EXPECT_EQ(numbers(), before);
}

TEST_F(Skills, AnotherDiskThatTookASkillsPlaceIsShownThoughItsInodesHaveTheSameNumbers) {
  const ScratchDirectory place("disks");
  LoopDisk disk("ext4", "16M");
  for (const char* name : {"a/img", "b/img"}) fs::create_directories(place / name);
  if (const auto why = disk.mount_at(place / "a/img"); !why.empty()) GTEST_SKIP() << why;
  write(place / "a/img/SKILL.md", "former");
  fs::create_directory(place / "a/img/sub");
  ::sync();
  disk.copy_at(place / "b/img");
  write_all(open_file(place / "b/img/SKILL.md", O_WRONLY), "latter");
  value_of(session().driver().load_skill(skill_of(place / "a/img")));
  const auto file = open_file(skills() / "img/SKILL.md", O_RDONLY);
  const auto sub = open_file(skills() / "img/sub", O_RDONLY | O_DIRECTORY);
  EXPECT_TRUE(value_of(session().driver().renew_skill(skill_of(place / "b/img"))));
  EXPECT_EQ(read(skills() / "img/SKILL.md"), "latter");
  EXPECT_THAT(list(skills() / "img/sub"), ElementsAre());
  EXPECT_EQ(read(file), "former");
  EXPECT_EQ(stat_of(sub).st_nlink, 2u);
}

/// Where the file system has no handles, what the kernel knows is there by its descriptors alone.
TEST_F(Skills, StayTheSameWhenTheyAreUnloadedAndLoadedAgain) {
  start_with([](fusefs::MountConfig& config) { config.file_handles = false; });
  session().add_skill("pdf", {{"lib/code.py", "code"}});
  session().load_skill("pdf");
  const auto lib = open_file(skills() / "pdf/lib", O_RDONLY | O_DIRECTORY);
  value_of(session().driver().unload_skill(value_of(Name::parse("pdf"))));
  session().load_skill("pdf");
  struct stat status {};
  EXPECT_OK(::stat((skills() / "pdf/lib").c_str(), &status));
  EXPECT_EQ(read(skills() / "pdf/lib/code.py"), "code");
}

TEST_F(Skills, ThatAreUnloadedAreLetGoOf) {
  const ScratchDirectory registry("registry");
  fs::create_directory(registry / "disk");
  ASSERT_OK(::mount("none", (registry / "disk").c_str(), "tmpfs", 0, nullptr));
  write(registry / "disk/SKILL.md", "how to");
  const auto letting_go = [&] {
    for (int i = 0; i < 1000 && ::umount((registry / "disk").c_str()) != 0; ++i) {
      if (errno != EBUSY) break;
      ::usleep(10'000);
    }
    return ::umount((registry / "disk").c_str()) != 0 && errno == EINVAL;
  };
  value_of(session().driver().load_skill(skill_of(registry / "disk")));
  EXPECT_EQ(read(skills() / "disk/SKILL.md"), "how to");
  EXPECT_ERRNO(EBUSY, ::umount((registry / "disk").c_str()));
  value_of(session().driver().unload_skill(value_of(Name::parse("disk"))));
  EXPECT_TRUE(letting_go());
  ::umount2((registry / "disk").c_str(), MNT_DETACH);
}

TEST_F(Skills, AreNotLoadedWithTheDescriptorsThatSessionsNeed) {
  session().add_skill("pdf", {{"SKILL.md", "how to"}});
  rlimit usual{};
  ASSERT_OK(::getrlimit(RLIMIT_NOFILE, &usual));
  auto skill = skill_of(session().scratch() / "state/skills/pdf");
  const rlimit few{static_cast<rlim_t>(skill.directory.get()) + 2, usual.rlim_max};
  ASSERT_OK(::setrlimit(RLIMIT_NOFILE, &few));
  const auto refused = session().driver().load_skill(std::move(skill));
  ASSERT_OK(::setrlimit(RLIMIT_NOFILE, &usual));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kQuotaExceeded);
  EXPECT_ERRNO(ENOENT, ::access((skills() / "pdf").c_str(), F_OK));
}

}  // namespace
}  // namespace okcvm::test
