#include <fcntl.h>
#include <gmock/gmock.h>
#include <linux/capability.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <memory>

#include "tests/support/mounted_session.h"

namespace okcvm::test {
namespace {

namespace fs = std::filesystem;

class Permissions : public MountedSession {
 protected:
  void belongs_to(const User& user, mode_t mode) {
    start_with([&](fusefs::MountConfig& config) {
      config.owner_uid = user.uid;
      config.owner_gid = user.gid;
      config.root_mode = mode;
    });
  }
};

TEST_F(Permissions, TheRootIsTheOwnersAlone) {
  belongs_to(kAlice, 0700);
  EXPECT_EQ(stat_of(mount()).st_uid, kAlice.uid);
  EXPECT_EQ(stat_of(mount()).st_gid, kAlice.gid);
  EXPECT_EQ(mode_of(mount()), 0700u);
  as_user(kAlice, [&] {
    write(outputs() / "mine", "mine");
    EXPECT_EQ(read(outputs() / "mine"), "mine");
    EXPECT_EQ(stat_of(outputs() / "mine").st_uid, kAlice.uid);
    EXPECT_EQ(stat_of(outputs() / "mine").st_gid, kAlice.gid);
    write(uploads() / "too", "too");
    write(temp() / "three", "three");
  });
  as_user(kBob, [&] {
    struct stat found {};
    EXPECT_ERRNO(EACCES, ::stat((outputs() / "mine").c_str(), &found));
    EXPECT_ERRNO(EACCES, ::open(mount().c_str(), O_RDONLY | O_DIRECTORY));
    EXPECT_ERRNO(EACCES, ::open((mount() / ".metadata.json").c_str(), O_RDONLY));
  });
}

TEST_F(Permissions, TheMetadataFileIsReadOnlyForItsOwnerAsForRoot) {
  belongs_to(kAlice, 0700);
  as_user(kAlice, [&] {
    const auto file = mount() / ".metadata.json";
    for (const int flags : {O_WRONLY, O_RDWR, O_WRONLY | O_TRUNC, O_WRONLY | O_APPEND})
      EXPECT_ERRNO(EROFS, ::open(file.c_str(), flags)) << flags;
    EXPECT_ERRNO(EROFS, ::truncate(file.c_str(), 0));
    EXPECT_ERRNO(EROFS, ::setxattr(file.c_str(), "user.a", "1", 1, 0));
    EXPECT_FALSE(read(file).empty());
  });
}

TEST_F(Permissions, TheBackingFolderIsClosedToUsers) {
  belongs_to(kAlice, 0755);
  as_user(kAlice, [&] { write(outputs() / "file", "x"); });
  as_user(kAlice,
          [&] { EXPECT_ERRNO(EACCES, ::open((session().workspace() / "outputs").c_str(), O_RDONLY)); });
}

/// Not first root's and then given away: that would show in the times.
TEST_F(Permissions, FilesAreTheirCreatorsFromTheFirstMoment) {
  const auto here = shared_in_session();
  as_user(kAlice, [&] {
    for (int i = 0; i < 100; ++i) {
      const auto name = std::to_string(i);
      write(here / ("file" + name), "");
      EXPECT_OK(::mkdir((here / ("directory" + name)).c_str(), 0755));
      EXPECT_OK(::mkfifo((here / ("pipe" + name)).c_str(), 0644));
    }
  });
  for (const auto& entry : fs::directory_iterator(here)) {
    const auto status = stat_of(entry.path());
    EXPECT_EQ(status.st_mtim.tv_nsec, status.st_ctim.tv_nsec) << entry.path();
  }
}

TEST_F(Permissions, CreatorsInTurnEachGetTheirOwn) {
  const auto here = shared_in_session();
  const User root{0, 0, {}};
  const std::array makers{kAlice, root, kBob, kBob, root, kAlice, kBob, kAlice};
  for (std::size_t i = 0; i < makers.size(); ++i)
    as_user(makers[i], [&] {
      write(here / ("file" + std::to_string(i)), "x");
      EXPECT_OK(::mkdir((here / ("directory" + std::to_string(i))).c_str(), 0755));
    });
  for (std::size_t i = 0; i < makers.size(); ++i)
    for (const char* kind : {"file", "directory"}) {
      const auto status = stat_of(here / (kind + std::to_string(i)));
      EXPECT_EQ(status.st_uid, makers[i].uid) << kind << i;
      EXPECT_EQ(status.st_gid, makers[i].gid) << kind << i;
    }
}

TEST_F(Permissions, WhatTheDaemonMakesItselfIsNeverACallers) {
  const ScratchDirectory host{"denials"};
  const auto denials = std::make_shared<std::atomic<int>>(0);
  start_with([&](fusefs::MountConfig& config) {
    config.root_mode = 0755;
    config.on_denial = [denials, folder = host.path()](std::string_view, const RelPath&, int) {
      write(folder / std::to_string((*denials)++), "denied");
    };
  });
  const auto here = shared_in_session();
  constexpr int kRounds = 20;
  as_user(kAlice, [&] {
    for (int i = 0; i < kRounds; ++i) {
      write(here / std::to_string(i), "x");
      EXPECT_ERRNO(EPERM, ::symlink("/etc/passwd", (here / "link").c_str()));
    }
  });
  ASSERT_EQ(*denials, kRounds);
  for (int i = 0; i < kRounds; ++i) {
    EXPECT_EQ(stat_of(here / std::to_string(i)).st_uid, kAlice.uid);
    EXPECT_EQ(stat_of(host / std::to_string(i)).st_uid, 0u);
  }
}

TEST_F(Permissions, SetIdBitsAreNotClearedByStrangers) {
  expect_as_native([](const fs::path& here, std::ostream& log) {
    write(here / "file", "x");
    for (const mode_t mode : {04755, 02755, 06711, 02644, 0755}) {
      ::chown((here / "file").c_str(), kAlice.uid, kAlice.gid);
      ::chmod((here / "file").c_str(), mode);
      as_user(kBob, [&] { log << ANSWER_OF(::chown((here / "file").c_str(), -1, -1)); });
      log << std::oct << stat_of(here / "file").st_mode << "\n";
      as_user(kAlice, [&] { log << ANSWER_OF(::chown((here / "file").c_str(), -1, -1)); });
      log << std::oct << stat_of(here / "file").st_mode << "\n";
    }
  });
}

TEST_F(Permissions, FilesBelongToWhoCreatesThem) {
  const auto here = shared_in_session();
  as_user(kAlice, [&] {
    write(here / "file", "x");
    EXPECT_OK(::mkdir((here / "directory").c_str(), 0755));
    EXPECT_OK(::symlink("file", (here / "link").c_str()));
    EXPECT_OK(::mkfifo((here / "pipe").c_str(), 0644));
    EXPECT_OK(::mknod((here / "node").c_str(), S_IFREG | 0644, 0));
  });
  for (const char* name : {"file", "directory", "link", "pipe", "node"}) {
    EXPECT_EQ(stat_of(here / name).st_uid, kAlice.uid) << name;
    EXPECT_EQ(stat_of(here / name).st_gid, kAlice.gid) << name;
    EXPECT_EQ(stat_of(session().workspace() / "outputs/shared" / name).st_uid, kAlice.uid) << name;
  }
}

TEST_F(Permissions, StrangersAreRefusedAsOnAnyFileSystem) {
  expect_as_native([](const fs::path& here, std::ostream& log) {
    as_user(kAlice, [&] {
      write(here / "file", "alice", 0640);
      ::mkdir((here / "closed").c_str(), 0700);
      write(here / "closed/file", "x");
      ::mkdir((here / "readable").c_str(), 0744);
      write(here / "readable/file", "x");
    });
    as_user(kBob, [&] {
      log << ANSWER_OF(::open((here / "file").c_str(), O_RDONLY))
          << ANSWER_OF(::open((here / "file").c_str(), O_WRONLY))
          << ANSWER_OF(::truncate((here / "file").c_str(), 0))
          << ANSWER_OF(::chmod((here / "file").c_str(), 0777))
          << ANSWER_OF(::chown((here / "file").c_str(), kBob.uid, kBob.gid))
          << ANSWER_OF(::utimensat(AT_FDCWD, (here / "file").c_str(), nullptr, 0))
          << ANSWER_OF(::setxattr((here / "file").c_str(), "user.a", "1", 1, 0))
          << ANSWER_OF(::access((here / "file").c_str(), R_OK))
          << ANSWER_OF(::access((here / "file").c_str(), F_OK))
          << ANSWER_OF(::link((here / "file").c_str(), (here / "hard").c_str()))
          << ANSWER_OF(::open((here / "closed/file").c_str(), O_RDONLY))
          << ANSWER_OF(::open((here / "closed").c_str(), O_RDONLY))
          << ANSWER_OF(::rmdir((here / "closed").c_str()))
          << ANSWER_OF(::unlink((here / "closed/file").c_str()))
          << ANSWER_OF(::open((here / "readable").c_str(), O_RDONLY))
          << ANSWER_OF(::open((here / "readable/file").c_str(), O_RDONLY))
          << ANSWER_OF(::mkdir((here / "readable/d").c_str(), 0755))
          << ANSWER_OF(::unlink((here / "file").c_str()));
    });
  });
}

// Nothing but the name is checked by the kernel before a CREATE, and nothing at all of what that opens.
TEST_F(Permissions, AFileThatAppearsBeforeItIsCreatedIsOpenedLikeAnyOther) {
  const auto here = shared_in_session();
  const auto appear = [&](const char* name, mode_t mode) {
    struct stat found {};
    EXPECT_ERRNO(ENOENT, ::stat((here / name).c_str(), &found));  // which the kernel believes from now on
    write(session().workspace() / "outputs/shared" / name, "root's", mode);
  };
  appear("secret", 0600);
  appear("public", 0644);
  as_user(kAlice, [&] {
    EXPECT_ERRNO(EACCES, ::open((here / "secret").c_str(), O_CREAT | O_RDWR | O_TRUNC, 0644));
    EXPECT_ERRNO(EACCES, ::open((here / "public").c_str(), O_CREAT | O_RDWR, 0644));
    EXPECT_EQ(read(open_file(here / "public", O_CREAT | O_RDONLY)), "root's");
  });
  appear("owned", 0600);
  EXPECT_EQ(read(open_file(here / "owned", O_CREAT | O_RDWR)), "root's");
  EXPECT_EQ(read(here / "secret"), "root's");
}

TEST_F(Permissions, SupplementaryGroupsCount) {
  const User member{kBob.uid, kBob.gid, {60001}};
  expect_as_native([&](const fs::path& here, std::ostream& log) {
    write(here / "file", "group", 0660);
    ::chmod((here / "file").c_str(), 0660);
    ::chown((here / "file").c_str(), 0, 60001);
    ::mkdir((here / "directory").c_str(), 0770);
    ::chmod((here / "directory").c_str(), 0770);
    ::chown((here / "directory").c_str(), 0, 60001);
    as_user(kBob, [&] { log << ANSWER_OF(::open((here / "file").c_str(), O_RDWR)); });
    as_user(member, [&] {
      log << ANSWER_OF(::open((here / "file").c_str(), O_RDWR));
      write(here / "directory/made", "made");
      log << ANSWER_OF(::chown((here / "directory/made").c_str(), -1, 60001))
          << ANSWER_OF(::chown((here / "directory/made").c_str(), -1, 60002));
      const auto found = stat_of(here / "directory/made");
      log << found.st_uid << ":" << found.st_gid;
    });
  });
}

TEST_F(Permissions, TheUmaskApplies) {
  expect_as_native([](const fs::path& here, std::ostream& log) {
    for (const mode_t mask : {0U, 022U, 077U, 0777U})
      as_user(kAlice, [&] {
        ::umask(mask);
        const auto name = here / std::to_string(mask);
        const FileDescriptor file(
            ::open((name.string() + "f").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0666));
        ::mkdir((name.string() + "d").c_str(), 01777);
        ::mknod((name.string() + "n").c_str(), S_IFREG | 0666, 0);
        ::mkfifo((name.string() + "p").c_str(), 0666);
        for (const char* kind : {"f", "d", "n", "p"}) log << std::oct << mode_of(name.string() + kind) << " ";
      });
  });
}

TEST_F(Permissions, ASetgidDirectoryHandsItsGroupDown) {
  expect_as_native([](const fs::path& here, std::ostream& log) {
    const auto team = here / "team";
    ::mkdir(team.c_str(), 0777);
    ::chown(team.c_str(), 0, 60001);
    ::chmod(team.c_str(), 02777);
    as_user(kAlice, [&] {
      ::umask(0);
      write(team / "file", "x");
      ::mkdir((team / "sub").c_str(), 0755);
      ::mknod((team / "exec").c_str(), S_IFREG | 02775, 0);
      FileDescriptor(::open((team / "create").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 06777));
      ::symlink("file", (team / "link").c_str());
      ::mkdir((team / "sub/subsub").c_str(), 0700);
    });
    for (const char* name : {"file", "sub", "exec", "create", "link", "sub/subsub"})
      log << name << ":" << stat_of(team / name).st_gid << ":" << std::oct << stat_of(team / name).st_mode
          << std::dec << " ";
  });
}

TEST_F(Permissions, AStickyDirectoryKeepsWhatOthersOwn) {
  expect_as_native([](const fs::path& here, std::ostream& log) {
    const auto sticky = here / "sticky";
    ::mkdir(sticky.c_str(), 0777);
    ::chmod(sticky.c_str(), 01777);
    as_user(kAlice, [&] {
      write(sticky / "alice", "x");
      ::mkdir((sticky / "directory").c_str(), 0777);
    });
    as_user(kBob, [&] {
      write(sticky / "bob", "x");
      log << ANSWER_OF(::unlink((sticky / "alice").c_str()))
          << ANSWER_OF(::rmdir((sticky / "directory").c_str()))
          << ANSWER_OF(::rename((sticky / "alice").c_str(), (here / "taken").c_str()))
          << ANSWER_OF(::rename((sticky / "bob").c_str(), (sticky / "alice").c_str()))
          << ANSWER_OF(::unlink((sticky / "bob").c_str()));
    });
    as_user(kAlice, [&] { log << ANSWER_OF(::unlink((sticky / "alice").c_str())); });
  });
}

TEST_F(Permissions, ChangingOwnersFollowsTheRules) {
  expect_as_native([](const fs::path& here, std::ostream& log) {
    as_user(kAlice, [&] {
      write(here / "file", "x");
      log << ANSWER_OF(::chown((here / "file").c_str(), kBob.uid, -1))
          << ANSWER_OF(::chown((here / "file").c_str(), -1, kBob.gid))
          << ANSWER_OF(::chown((here / "file").c_str(), kAlice.uid, kAlice.gid))
          << ANSWER_OF(::chown((here / "file").c_str(), -1, -1));
    });
    log << ANSWER_OF(::chown((here / "file").c_str(), 1, 2)) << stat_of(here / "file").st_uid;
  });
}

/// Set-uid and set-gid bits after a change made by an ordinary user, by root, and by root with less rights.
TEST_F(Permissions, SetIdBitsAreClearedAsOnAnyFileSystem) {
  using Change = std::string (*)(const fs::path& file);
  static constexpr std::pair<const char*, Change> kChanges[] = {
      {"write",
       [](const fs::path& file) { return ANSWER_OF(::write(open_file(file, O_WRONLY).get(), "more", 4)); }},
      {"truncate", [](const fs::path& file) { return ANSWER_OF(::truncate(file.c_str(), 1)); }},
      {"ftruncate",
       [](const fs::path& file) { return ANSWER_OF(::ftruncate(open_file(file, O_WRONLY).get(), 1)); }},
      {"open-truncate",
       [](const fs::path& file) {
         return std::string(open_file(file, O_WRONLY | O_TRUNC) ? "ok" : "not opened");
       }},
      {"fallocate",
       [](const fs::path& file) {
         return ANSWER_OF(::fallocate(open_file(file, O_WRONLY).get(), 0, 0, 9000));
       }},
      {"chown", [](const fs::path& file) { return ANSWER_OF(::chown(file.c_str(), -1, kAlice.gid)); }},
      {"chown-nothing", [](const fs::path& file) { return ANSWER_OF(::chown(file.c_str(), -1, -1)); }},
      {"utimens",
       [](const fs::path& file) { return ANSWER_OF(::utimensat(AT_FDCWD, file.c_str(), nullptr, 0)); }},
      {"read", [](const fs::path& file) { return read(file); }},
  };
  using As = void (*)(const std::function<void()>& body);
  static constexpr std::pair<const char*, As> kMakers[] = {
      {"root", [](const std::function<void()>& body) { as_user({}, body); }},
      {"alice", [](const std::function<void()>& body) { as_user(kAlice, body); }},
      {"root without CAP_FSETID",
       [](const std::function<void()>& body) { as_root_without({CAP_FSETID}, body); }},
      {"root without CAP_FOWNER",
       [](const std::function<void()>& body) { as_root_without({CAP_FOWNER}, body); }},
  };
  static constexpr std::pair<const char*, As> kStrangers[] = {
      {"bob", [](const std::function<void()>& body) { as_user(kBob, body); }},
      {"bob with CAP_FSETID",
       [](const std::function<void()>& body) { as_user_with(kBob, {CAP_FSETID}, body); }},
      {"bob with CAP_FOWNER",
       [](const std::function<void()>& body) { as_user_with(kBob, {CAP_FOWNER}, body); }},
      {"bob with CAP_CHOWN",
       [](const std::function<void()>& body) { as_user_with(kBob, {CAP_CHOWN}, body); }},
      {"bob with CAP_CHOWN and CAP_FOWNER",
       [](const std::function<void()>& body) {
         as_user_with(kBob, {CAP_CHOWN, CAP_FOWNER}, body);
       }},
  };
  expect_as_native([](const fs::path& here, std::ostream& log) {
    const auto log_all = [&](const auto& makers, std::initializer_list<mode_t> modes) {
      for (const auto& [maker, as] : makers)
        for (const auto& [name, change] : kChanges)
          for (const mode_t mode : modes) {
            const auto file = here / "file";
            write(file, "content");
            ::chown(file.c_str(), kAlice.uid, kAlice.gid);
            ::chmod(file.c_str(), mode);
            as([&, change = change] { log << change(file) << " "; });
            log << name << " by " << maker << " of 0" << std::oct << mode << ": 0" << mode_of(file)
                << std::dec << "\n";
            ::unlink(file.c_str());
          }
    };
    log_all(kMakers, {06777, 04755, 02755, 02644, 06666});
    log_all(kStrangers, {06777, 04767, 02767, 02666, 06666});  // they can write to it
  });
}

TEST_F(Permissions, SetIdProgramsDoNotGainAnything) {
  const auto tool = shared_in_session() / "id";
  ASSERT_EQ(run_script("cp \"$(command -v id)\" " + tool.string() + " && chmod 4755 " + tool.string(), "/")
                .exit_code,
            0);
  EXPECT_EQ(mode_of(tool), 04755u);
  const auto result = run({.arguments = {tool.string(), "-u"}, .user = kAlice});
  EXPECT_EQ(result.output, std::to_string(kAlice.uid) + "\n");
}

TEST_F(Permissions, AnOpenFileKeepsItsRights) {
  const auto here = shared_in_session();
  as_user(kAlice, [&] {
    const FileDescriptor file(::open((here / "file").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0000));
    ASSERT_TRUE(file);
    EXPECT_OK(::pwrite(file.get(), "data", 4, 0));
    EXPECT_EQ(read(file), "data");
    EXPECT_OK(::ftruncate(file.get(), 2));
    EXPECT_ERRNO(EACCES, ::open((here / "file").c_str(), O_RDONLY));
  });
}

// Whether the bit stays depends on the group that the file had, not on the one that it gets, and pipes count
// too.
TEST_F(Permissions, GivingAFileToAnotherGroupClearsSetGroupIdAsNativeDoes) {
  expect_as_native([](const fs::path& here, std::ostream& log) {
    const User member{kAlice.uid, kAlice.gid, {kBob.gid}};
    write(here / "file", "x");
    EXPECT_OK(::mkfifo((here / "pipe").c_str(), 0644));
    for (const char* name : {"file", "pipe"}) {
      for (const gid_t from : {gid_t{0}, kAlice.gid, kBob.gid}) {
        for (const gid_t to : {kAlice.gid, kBob.gid, static_cast<gid_t>(-1)}) {
          for (const mode_t mode : {02644u, 02654u, 04644u, 06755u}) {
            const auto path = here / name;
            EXPECT_OK(::chown(path.c_str(), member.uid, from));
            EXPECT_OK(::chmod(path.c_str(), mode));
            as_user(member, [&] { log << ANSWER_OF(::chown(path.c_str(), member.uid, to)); });
            log << mode_of(path) << " " << stat_of(path).st_gid << "\n";
          }
        }
      }
    }
  });
}

/// stat(2) has the kernel ask again; who asks for the mode alone is told what it remembers.
TEST_F(Permissions, SetIdBitsThatGoWithTheContentAreGoneForWhoOnlyAsksForTheMode) {
  const auto file = outputs() / "file";
  write(file, "x");
  ASSERT_OK(::chown(file.c_str(), kAlice.uid, kAlice.gid));
  ASSERT_OK(::chmod(file.c_str(), 06755));
  const auto mode = [&] {
    struct statx status {};
    EXPECT_OK(::statx(AT_FDCWD, file.c_str(), 0, STATX_MODE, &status));
    return status.stx_mode & 07777;
  };
  EXPECT_EQ(mode(), 06755);
  as_user(kAlice, [&] { open_file(file, O_WRONLY | O_TRUNC); });
  EXPECT_EQ(mode(), 0755);
}

}  // namespace
}  // namespace okcvm::test
