#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <functional>
#include <thread>

#include "tests/support/mounted_session.h"

namespace okcvm::test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Zones = MountedSession;

/// Every call that changes what stands at a path, or makes something below it.
void expect_every_change_of(const fs::path& file, int error) {
  EXPECT_ERRNO(error, ::open(file.c_str(), O_WRONLY));
  EXPECT_ERRNO(error, ::open(file.c_str(), O_RDWR));
  EXPECT_ERRNO(error, ::open(file.c_str(), O_RDONLY | O_TRUNC));
  EXPECT_ERRNO(error, ::truncate(file.c_str(), 0));
  EXPECT_ERRNO(error, ::chmod(file.c_str(), 0777));
  EXPECT_ERRNO(error, ::lchown(file.c_str(), 1, 1));
  EXPECT_ERRNO(error, ::utimensat(AT_FDCWD, file.c_str(), nullptr, AT_SYMLINK_NOFOLLOW));
  EXPECT_ERRNO(error, ::setxattr(file.c_str(), "user.a", "1", 1, 0));
  EXPECT_ERRNO(error, ::removexattr(file.c_str(), "user.a"));
  EXPECT_ERRNO(error, ::unlink(file.c_str()));
}

void expect_nothing_can_be_made_in(const fs::path& directory, int error) {
  const auto name = directory / "made";
  EXPECT_ERRNO(error, ::open(name.c_str(), O_CREAT | O_WRONLY, 0644));
  EXPECT_ERRNO(error, ::open(name.c_str(), O_CREAT | O_EXCL | O_RDONLY, 0644));
  EXPECT_ERRNO(error, ::mkdir(name.c_str(), 0755));
  EXPECT_ERRNO(error, ::symlink("a", name.c_str()));
  EXPECT_ERRNO(error, ::mknod(name.c_str(), S_IFREG | 0644, 0));
  EXPECT_ERRNO(error, ::mkfifo(name.c_str(), 0644));
  EXPECT_ERRNO(error, ::mknod(name.c_str(), S_IFSOCK | 0644, 0));
  EXPECT_ERRNO(error, ::mknod(name.c_str(), S_IFCHR | 0644, makedev(1, 3)));
  EXPECT_ERRNO(error, ::mknod(name.c_str(), S_IFBLK | 0644, makedev(7, 0)));
  EXPECT_FALSE(there_is(name));
}

void expect_directory_cannot_be_changed(const fs::path& directory, int error) {
  EXPECT_ERRNO(error, ::chmod(directory.c_str(), 0777));
  EXPECT_ERRNO(error, ::chown(directory.c_str(), 1, 1));
  EXPECT_ERRNO(error, ::utimensat(AT_FDCWD, directory.c_str(), nullptr, 0));
  EXPECT_ERRNO(error, ::setxattr(directory.c_str(), "user.a", "1", 1, 0));
}

TEST_F(Zones, ASessionHasExactlyItsParts) {
  EXPECT_THAT(list(mount()), ElementsAre(".metadata.json", "outputs", "skills", "temp", "uploads"));
  for (const auto& zone : {outputs(), uploads(), temp(), skills()}) {
    EXPECT_TRUE(S_ISDIR(stat_of(zone).st_mode)) << zone;
    EXPECT_THAT(list(zone), ElementsAre()) << zone;
  }
}

TEST_F(Zones, TheRootCannotBeChangedByAnyCall) {
  expect_nothing_can_be_made_in(mount(), EROFS);
  expect_directory_cannot_be_changed(mount(), EROFS);
  expect_every_change_of(mount() / ".metadata.json", EROFS);
}

TEST_F(Zones, ZoneDirectoriesStayWhereTheyAre) {
  for (const char* zone : {"uploads", "outputs", "temp", "skills"}) {
    EXPECT_ERRNO(EROFS, ::rmdir((mount() / zone).c_str())) << zone;
    EXPECT_ERRNO(EROFS, ::rename((mount() / zone).c_str(), (mount() / "other").c_str())) << zone;
    const auto other = zone == std::string_view("temp") ? outputs() : temp();
    EXPECT_ERRNO(EROFS, ::rename((mount() / zone).c_str(), (other / "inside").c_str())) << zone;
  }
  write(outputs() / "file", "x");
  EXPECT_ERRNO(EROFS, ::rename((outputs() / "file").c_str(), (mount() / "file").c_str()));
  EXPECT_ERRNO(EROFS, ::link((outputs() / "file").c_str(), (mount() / "file").c_str()));
  EXPECT_EQ(read(outputs() / "file"), "x");
}

TEST_F(Zones, TheMetadataFileCannotGoAnywhere) {
  const auto file = mount() / ".metadata.json";
  EXPECT_ERRNO(EROFS, ::rename(file.c_str(), (outputs() / "m").c_str()));
  EXPECT_ERRNO(EROFS, ::link(file.c_str(), (outputs() / "m").c_str()));
  write(outputs() / "mine", "mine");
  EXPECT_ERRNO(EROFS, ::rename((outputs() / "mine").c_str(), file.c_str()));
  EXPECT_THAT(list(outputs()), ElementsAre("mine"));
}

TEST_F(Zones, TheMetadataFileShowsItsBytesAndTheirReplacement) {
  const auto file = mount() / ".metadata.json";
  EXPECT_EQ(read(file), "{\"session_id\":\"12ab34cd\"}\n");
  EXPECT_EQ(static_cast<std::size_t>(stat_of(file).st_size), read(file).size());
  EXPECT_TRUE(S_ISREG(stat_of(file).st_mode));
  EXPECT_EQ(mode_of(file), 0644u);  // to its owner, too, it is the mount that is read-only

  const std::string longer = "{\"skills\":[\"" + std::string(10000, 'x') + "\"]}\n";
  session().driver().set_metadata(longer);
  EXPECT_EQ(static_cast<std::size_t>(stat_of(file).st_size), longer.size());
  EXPECT_EQ(read(file), longer);
  session().driver().set_metadata("{}\n");
  EXPECT_EQ(read(file), "{}\n");
}

TEST_F(Zones, ASkillCannotBeChangedByAnyCall) {
  session().add_skill("pdf", {{"SKILL.md", "how to"}, {"scripts/run.sh", "echo"}});
  session().load_skill("pdf");
  const auto skill = skills() / "pdf";

  EXPECT_EQ(read(skill / "SKILL.md"), "how to");
  expect_every_change_of(skill / "SKILL.md", EROFS);
  for (const auto& directory : {skills(), skill, skill / "scripts"}) {
    expect_nothing_can_be_made_in(directory, EROFS);
    expect_directory_cannot_be_changed(directory, EROFS);
  }
  EXPECT_ERRNO(EROFS, ::rmdir((skill / "scripts").c_str()));
  EXPECT_ERRNO(EROFS, ::rmdir(skill.c_str()));
  EXPECT_ERRNO(EROFS, ::rename(skill.c_str(), (skills() / "other").c_str()));
  EXPECT_ERRNO(EROFS, ::rename((skill / "SKILL.md").c_str(), (skill / "other").c_str()));
  EXPECT_EQ(read(skill / "SKILL.md"), "how to");
}

TEST_F(Zones, ASkillCannotBeMovedOrLinkedOut) {
  session().add_skill("pdf", {{"SKILL.md", "how to"}});
  session().load_skill("pdf");
  const auto file = skills() / "pdf/SKILL.md";
  write(outputs() / "mine", "mine");

  EXPECT_ERRNO(EROFS, ::rename(file.c_str(), (outputs() / "taken").c_str()));
  EXPECT_ERRNO(EXDEV, ::link(file.c_str(), (outputs() / "taken").c_str()));
  EXPECT_ERRNO(EROFS, ::link(file.c_str(), (skills() / "pdf/again").c_str()));
  EXPECT_ERRNO(EROFS, ::rename((outputs() / "mine").c_str(), (skills() / "pdf/mine").c_str()));
  EXPECT_ERRNO(EROFS, ::link((outputs() / "mine").c_str(), (skills() / "pdf/mine").c_str()));
  EXPECT_ERRNO(EROFS,
               ::renameat2(AT_FDCWD, file.c_str(), AT_FDCWD, (outputs() / "mine").c_str(), RENAME_EXCHANGE));
  EXPECT_THAT(list(outputs()), ElementsAre("mine"));
}

class WritableZone : public MountedSession, public ::testing::WithParamInterface<const char*> {
 protected:
  fs::path zone() const { return mount() / GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Zones, WritableZone, ::testing::Values("uploads", "outputs", "temp"),
                         [](const auto& zone) { return std::string(zone.param); });

TEST_P(WritableZone, TakesEveryChange) {
  const auto file = zone() / "file";
  write(file, "first");
  EXPECT_OK(::chmod(file.c_str(), 0600));
  EXPECT_OK(::chown(file.c_str(), 7, 8));
  EXPECT_OK(::truncate(file.c_str(), 3));
  EXPECT_OK(::setxattr(file.c_str(), "user.a", "1", 1, 0));
  EXPECT_OK(::utimensat(AT_FDCWD, file.c_str(), nullptr, 0));
  EXPECT_OK(::link(file.c_str(), (zone() / "hard").c_str()));
  EXPECT_OK(::symlink("file", (zone() / "soft").c_str()));
  EXPECT_OK(::rename((zone() / "hard").c_str(), (zone() / "moved").c_str()));
  EXPECT_OK(::mkdir((zone() / "directory").c_str(), 0755));
  EXPECT_THAT(list(zone()), ElementsAre("directory", "file", "moved", "soft"));
  EXPECT_EQ(read(zone() / "soft"), "fir");
  EXPECT_EQ(stat_of(file).st_uid, 7u);
  EXPECT_EQ(stat_of(file).st_nlink, 2u);
  for (const char* name : {"file", "moved", "soft"}) EXPECT_OK(::unlink((zone() / name).c_str()));
  EXPECT_OK(::rmdir((zone() / "directory").c_str()));
  EXPECT_THAT(list(zone()), ElementsAre());
}

TEST_P(WritableZone, TakesPipesAndSocketsButNoDevices) {
  EXPECT_ERRNO(EPERM, ::mknod((zone() / "null").c_str(), S_IFCHR | 0666, makedev(1, 3)));
  EXPECT_ERRNO(EPERM, ::mknod((zone() / "disk").c_str(), S_IFBLK | 0666, makedev(7, 0)));
  EXPECT_ERRNO(EPERM, ::mknod((zone() / "whiteout").c_str(), S_IFCHR, makedev(0, 0)));
  EXPECT_OK(::mkfifo((zone() / "pipe").c_str(), 0644));
  EXPECT_OK(::mknod((zone() / "socket").c_str(), S_IFSOCK | 0600, 0));
  EXPECT_TRUE(S_ISFIFO(stat_of(zone() / "pipe").st_mode));
  EXPECT_TRUE(S_ISSOCK(stat_of(zone() / "socket").st_mode));
  EXPECT_THAT(list(zone()), ElementsAre("pipe", "socket"));
}

TEST_P(WritableZone, ExchangesFilesWithTheOtherTwo) {
  for (const char* name : {"uploads", "outputs", "temp"}) {
    if (name == std::string_view(GetParam())) continue;
    const auto other = mount() / name;
    write(zone() / "file", "bytes");
    EXPECT_OK(::rename((zone() / "file").c_str(), (other / "file").c_str()));
    EXPECT_OK(::link((other / "file").c_str(), (zone() / "linked").c_str()));
    EXPECT_EQ(stat_of(other / "file").st_ino, stat_of(zone() / "linked").st_ino);
    EXPECT_EQ(read(zone() / "linked"), "bytes");
    EXPECT_OK(::unlink((zone() / "linked").c_str()));
    EXPECT_OK(::mkdir((zone() / "tree").c_str(), 0755));
    write(zone() / "tree/leaf", "leaf");
    EXPECT_OK(::rename((zone() / "tree").c_str(), (other / "tree").c_str()));
    EXPECT_EQ(read(other / "tree/leaf"), "leaf");
  }
}

class BoundWorkdir : public MountedSession {
 protected:
  void SetUp() override {
    MountedSession::SetUp();
    if (IsSkipped()) return;
    fs::create_directory(host_.path() / "project");
    write(host_ / "project/main.c", "int main;");
    start_with([&](fusefs::MountConfig& config) {
      config.workdir = open_file(host_ / "project", O_RDONLY | O_DIRECTORY);
    });
  }

  ScratchDirectory host_{"workdir"};
};

TEST_F(BoundWorkdir, ShowsTheUsersOwnDirectory) {
  EXPECT_EQ(stat_of(mount()).st_nlink, 7u);
  EXPECT_THAT(list(mount()),
              ElementsAre(".metadata.json", "outputs", "skills", "temp", "uploads", "workdir"));
  EXPECT_EQ(read(mount() / "workdir/main.c"), "int main;");
  write(mount() / "workdir/new", "made inside");
  EXPECT_EQ(read(host_ / "project/new"), "made inside");
  write(host_ / "project/outside", "made outside");
  EXPECT_EQ(read(mount() / "workdir/outside"), "made outside");
  EXPECT_OK(::mkdir((mount() / "workdir/d").c_str(), 0755));
  EXPECT_OK(::rename((mount() / "workdir/new").c_str(), (mount() / "workdir/d/new").c_str()));
  EXPECT_EQ(read(host_ / "project/d/new"), "made inside");
  EXPECT_FALSE(there_is(session().workspace()));
}

TEST_F(BoundWorkdir, IsAnotherFileSystemToTheOtherZones) {
  const auto inside = mount() / "workdir/main.c";
  write(outputs() / "file", "x");
  EXPECT_ERRNO(EXDEV, ::rename(inside.c_str(), (outputs() / "main.c").c_str()));
  EXPECT_ERRNO(EXDEV, ::link(inside.c_str(), (outputs() / "main.c").c_str()));
  EXPECT_ERRNO(EXDEV, ::rename((outputs() / "file").c_str(), (mount() / "workdir/file").c_str()));
  EXPECT_ERRNO(EXDEV, ::link((outputs() / "file").c_str(), (mount() / "workdir/file").c_str()));
  EXPECT_ERRNO(
      EXDEV, ::renameat2(AT_FDCWD, inside.c_str(), AT_FDCWD, (outputs() / "file").c_str(), RENAME_EXCHANGE));
}

TEST_F(BoundWorkdir, TakesPipesButNoDevicesAndStays) {
  EXPECT_ERRNO(EPERM, ::mknod((mount() / "workdir/null").c_str(), S_IFCHR | 0666, makedev(1, 3)));
  EXPECT_OK(::mkfifo((mount() / "workdir/pipe").c_str(), 0644));
  EXPECT_ERRNO(EROFS, ::rename((mount() / "workdir").c_str(), (mount() / "w").c_str()));
  EXPECT_ERRNO(EROFS, ::rmdir((mount() / "workdir").c_str()));
}

// What was looked up at different times would say that two directories lie in each other.
TEST_F(BoundWorkdir, DirectoriesThatTheHostTurnedInsideOutCanBeWorkedIn) {
  const auto project = host_ / "project";
  fs::create_directories(project / "b/a");
  const auto inside = open_file(mount() / "workdir/b/a", O_RDONLY | O_DIRECTORY);
  fs::rename(project / "b/a", project / "a");
  fs::rename(project / "b", project / "a/b");
  struct stat found {};
  EXPECT_OK(::fstatat(inside.get(), "b", &found, 0));
  EXPECT_OK(::symlinkat("b", inside.get(), "link"));
  EXPECT_ERRNO(EPERM, ::symlinkat("../../b", inside.get(), "out"));
  EXPECT_OK(::renameat(inside.get(), "link", inside.get(), "renamed"));
  EXPECT_EQ(link_text(project / "a/renamed"), "b");
}

TEST_F(BoundWorkdir, WhatTheHostMakesFirstIsNotOpenedWithoutItsLeave) {
  EXPECT_OK(::chmod(host_.path().c_str(), 0755));
  EXPECT_OK(::chmod((host_ / "project").c_str(), 0777));
  int strange = 0;
  for (int round = 0; round < 300; ++round) {
    const auto name = std::to_string(round);
    std::atomic<bool> go{false};
    std::jthread host([&] {
      while (!go) continue;
      for (std::atomic<int> spins = round * 61 % 10'000; spins > 0; --spins) continue;
      FileDescriptor(
          ::open((host_ / "project" / name).c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600));
    });
    as_user(kAlice, [&] {
      go = true;
      const FileDescriptor file(
          ::open((mount() / "workdir" / name).c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644));
      strange += file && stat_of(file).st_uid != kAlice.uid;
      if (!file) {
        EXPECT_EQ(errno_name(errno), "EACCES");
      }
    });
  }
  EXPECT_EQ(strange, 0);
}

/// A file that the host removes gives its space back. (The RELEASE comes after the close.)
TEST_F(BoundWorkdir, KeepsNothingOpenThatIsClosed) {
  write(mount() / "workdir/main.c", "int main() {}");
  const auto file = open_file(host_ / "project/main.c", O_RDWR);
  int tries = 0;
  while (::fcntl(file.get(), F_SETLEASE, F_WRLCK) != 0 && ++tries < 100'000) std::this_thread::yield();
  EXPECT_LT(tries, 100'000);
}

// Programs of the host are run from there. Bits that a write must clear keep a file from being passed
// through. Each has a name of its own: for a moment the kernel may take it for what stood there before.
TEST_F(BoundWorkdir, AFileOpenForReadingCanBeRunByTheHost) {
  for (const mode_t mode : {0755, 04755}) {
    const auto name = "workdir/program" + std::to_string(mode);
    const auto program = host_ / "project" / fs::path(name).filename();
    fs::copy_file("/bin/true", program);
    EXPECT_OK(::chmod(program.c_str(), mode));
    const auto file = open_file(mount() / name, O_RDONLY);
    EXPECT_EQ(run({{program}}).exit_code, 0) << std::oct << mode;
    const auto releases = count_of("RELEASE");
    open_file(mount() / name, O_WRONLY).reset();
    while (count_of("RELEASE") == releases) std::this_thread::yield();
    EXPECT_EQ(run({{program}}).exit_code, 0) << std::oct << mode;
    EXPECT_EQ(read(file).size(), fs::file_size(program));
  }
}

TEST_F(BoundWorkdir, AFileOpenedForReadingWhileItRanCanBeWrittenLater) {
  for (const mode_t mode : {0755, 04755}) {
    const auto name = "workdir/program" + std::to_string(mode);
    const auto program = host_ / "project" / fs::path(name).filename();
    fs::copy_file("/usr/bin/tail", program);
    EXPECT_OK(::chmod(program.c_str(), mode));
    write(host_ / "input", "x");
    write(host_ / "output", "");
    const pid_t running = start_program({program, "-f", host_ / "input"}, host_ / "output");
    while (read(host_ / "output").empty()) std::this_thread::yield();
    const auto file = open_file(mount() / name, O_RDONLY);
    EXPECT_FALSE(FileDescriptor(::open((mount() / name).c_str(), O_WRONLY)));
    ::kill(running, SIGKILL);
    ::waitpid(running, nullptr, 0);
    const auto writer = open_file(mount() / name, O_WRONLY);
    write_all(writer, "changed");
    EXPECT_EQ(read(file).substr(0, 7), "changed") << std::oct << mode;
  }
}

TEST_F(BoundWorkdir, TellsOfTheSpaceOfItsOwnFileSystem) {
  fs::path disk;
  start_with([&](fusefs::MountConfig& config) {
    disk = config.mount_point.parent_path() / "disk";
    fs::create_directory(disk);
    EXPECT_OK(::mount("none", disk.c_str(), "tmpfs", 0, "size=4m"));
    fs::create_directory(disk / "project");
    write(disk / "project/file", "x");
    config.workdir = open_file(disk / "project", O_RDONLY | O_DIRECTORY);
    config.skills.push_back(skill_of(disk));
  });
  const auto blocks = [](const fs::path& path) {
    struct statvfs found {};
    EXPECT_OK(::statvfs(path.c_str(), &found));
    return found.f_blocks;
  };
  for (const char* path : {"workdir", "workdir/file", "skills/disk", "skills/disk/project/file"})
    EXPECT_EQ(blocks(mount() / path), blocks(disk)) << path;
  for (const char* path : {"", "outputs", "skills", ".metadata.json"})
    EXPECT_EQ(blocks(mount() / path), blocks(session().scratch())) << path;
}

/// The names in a folder whose owner, mode or times changed while `body` ran.
std::vector<std::string> attribute_changes(const fs::path& folder, const std::function<void()>& body) {
  const FileDescriptor watch(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  EXPECT_OK(::inotify_add_watch(watch.get(), folder.c_str(), IN_ATTRIB | IN_ONLYDIR));
  body();
  std::vector<std::string> names;
  alignas(inotify_event) std::array<char, 16 * 1024> events{};
  const ssize_t size = ::read(watch.get(), events.data(), events.size());
  for (ssize_t at = 0; at < size;) {
    const auto* event = reinterpret_cast<const inotify_event*>(events.data() + at);
    names.emplace_back(event->len ? event->name : "");
    at += static_cast<ssize_t>(sizeof *event + event->len);
  }
  return names;
}

// Given away later, by name, another file that was moved there meanwhile would change hands.
TEST_F(BoundWorkdir, WhatIsMadeIsTheCallersFromTheFirstMoment) {
  const auto project = host_ / "project";
  EXPECT_OK(::chmod(host_.path().c_str(), 0755));
  EXPECT_OK(::chmod(project.c_str(), 02777));
  EXPECT_OK(::chown(project.c_str(), 0, kBob.gid));
  const auto changed = attribute_changes(project, [&] {
    as_user(kAlice, [&] {
      const auto here = mount() / "workdir";
      ::close(::open((here / "file").c_str(), O_CREAT | O_EXCL | O_WRONLY, 0640));
      EXPECT_OK(::mkdir((here / "directory").c_str(), 0750));
      EXPECT_OK(::symlink("file", (here / "link").c_str()));
      EXPECT_OK(::mkfifo((here / "pipe").c_str(), 0600));
    });
  });
  EXPECT_THAT(changed, IsEmpty());
  for (const char* name : {"file", "directory", "link", "pipe"}) {
    EXPECT_EQ(stat_of(project / name).st_uid, kAlice.uid) << name;
    EXPECT_EQ(stat_of(project / name).st_gid, kBob.gid) << name;
  }
  EXPECT_EQ(mode_of(project / "file"), 0640u);
  EXPECT_EQ(mode_of(project / "directory"), 02750u);
}

TEST_F(BoundWorkdir, TheBackingFolderIsTheDaemonsWhoeverCreatedBefore) {
  EXPECT_OK(::chmod(host_.path().c_str(), 0755));
  EXPECT_OK(::chmod((host_ / "project").c_str(), 0777));
  as_user(kAlice, [&] { write(mount() / "workdir/file", "x"); });
  write(outputs() / "first", "x");
  EXPECT_EQ(stat_of(session().workspace()).st_uid, 0u);
  EXPECT_EQ(stat_of(outputs() / "first").st_uid, 0u);
  EXPECT_EQ(stat_of(mount() / "workdir/file").st_uid, kAlice.uid);
}

TEST_F(BoundWorkdir, AGroupThatOnlyTheCallerIsInIsEnough) {
  const auto project = host_ / "project";
  EXPECT_OK(::chmod(host_.path().c_str(), 0755));
  EXPECT_OK(::chown(project.c_str(), 0, kBob.gid));
  EXPECT_OK(::chmod(project.c_str(), 0770));
  as_user({kAlice.uid, kAlice.gid, {kBob.gid}}, [&] { write(mount() / "workdir/file", "x"); });
  EXPECT_EQ(stat_of(project / "file").st_uid, kAlice.uid);
  EXPECT_EQ(stat_of(project / "file").st_gid, kAlice.gid);
}

TEST_F(Zones, MetadataCanBeCopied) {
  const auto metadata = open_file(mount() / ".metadata.json", O_RDONLY);
  const auto copy = open_file(outputs() / "copy", O_CREAT | O_RDWR);
  const off_t size = stat_of(metadata).st_size;
  EXPECT_EQ(::lseek(metadata.get(), 1, SEEK_DATA), 1);
  EXPECT_EQ(::lseek(metadata.get(), 1, SEEK_HOLE), size);
  EXPECT_ERRNO(ENXIO, static_cast<int>(::lseek(metadata.get(), size, SEEK_DATA)));
  off_t from = 0;
  EXPECT_EQ(::copy_file_range(metadata.get(), &from, copy.get(), nullptr, 4096, 0), size)
      << errno_name(errno);
  EXPECT_EQ(read(copy), read(metadata));
  EXPECT_EQ(run_script("cp -a .metadata.json outputs/another && cmp .metadata.json outputs/another", mount())
                .exit_code,
            0);
}

TEST_F(Zones, DenialsAreReported) {
  std::vector<std::string> denials;
  start_with([&](fusefs::MountConfig& config) {
    config.on_denial = [&](std::string_view, const RelPath& path, int error) {
      denials.push_back(path.text() + ":" + errno_name(error));
    };
  });
  EXPECT_ERRNO(EROFS, ::mkdir((mount() / "made").c_str(), 0755));
  EXPECT_ERRNO(EPERM, ::mknod((outputs() / "null").c_str(), S_IFCHR | 0666, makedev(1, 3)));
  session().add_skill("pdf", {{"forms/f", "text"}});
  session().load_skill("pdf");
  EXPECT_ERRNO(EROFS, ::mkdir((skills() / "pdf/forms/made").c_str(), 0755));
  session().unmount();
  EXPECT_THAT(denials, ElementsAre("made:EROFS", "outputs/null:EPERM", "skills/pdf/forms/made:EROFS"));
}

}  // namespace
}  // namespace okcvm::test
