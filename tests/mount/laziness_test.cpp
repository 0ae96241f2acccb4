#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>

#include "tests/support/mounted_session.h"

namespace okcvm::test {
namespace {

using ::testing::ElementsAre;

using Laziness = MountedSession;

TEST_F(Laziness, LookingAroundMakesNothing) {
  for (const auto& zone : {mount(), outputs(), uploads(), temp(), skills()}) {
    list(zone);
    stat_of(zone);
    EXPECT_OK(::access(zone.c_str(), R_OK | X_OK));
    struct statvfs space {};
    EXPECT_OK(::statvfs(zone.c_str(), &space));
    std::array<char, 256> names;
    EXPECT_OK(::listxattr(zone.c_str(), names.data(), names.size()));
    EXPECT_ERRNO(ENODATA, ::getxattr(zone.c_str(), "user.a", names.data(), names.size()));
    EXPECT_ERRNO(ENOENT, ::open((zone / "missing").c_str(), O_RDONLY));
    EXPECT_ERRNO(ENOENT, ::open((zone / "missing/deeper").c_str(), O_RDONLY));
  }
  read(mount() / ".metadata.json");
  EXPECT_ERRNO(ENOENT, ::unlink((outputs() / "missing").c_str()));
  EXPECT_ERRNO(ENOENT, ::rmdir((outputs() / "missing").c_str()));
  EXPECT_ERRNO(ENOENT, ::rename((outputs() / "missing").c_str(), (temp() / "b").c_str()));
  EXPECT_FALSE(there_is(session().workspace()));
}

TEST_F(Laziness, RefusedWritesMakeNothing) {
  EXPECT_ERRNO(EROFS, ::mkdir((mount() / "made").c_str(), 0755));
  EXPECT_ERRNO(EROFS, ::mkdir((skills() / "made").c_str(), 0755));
  EXPECT_ERRNO(EPERM, ::symlink("/etc", (outputs() / "etc").c_str()));
  EXPECT_ERRNO(EPERM, ::mknod((outputs() / "null").c_str(), S_IFCHR | 0666, 259));
  EXPECT_ERRNO(ENAMETOOLONG, ::mkdir((outputs() / std::string(256, 'n')).c_str(), 0755));
  EXPECT_ERRNO(EOPNOTSUPP, ::setxattr(outputs().c_str(), "trusted.a", "1", 1, 0));
  EXPECT_ERRNO(ENODATA, ::setxattr(outputs().c_str(), "user.a", "1", 1, XATTR_REPLACE));
  EXPECT_ERRNO(ENODATA, ::removexattr(outputs().c_str(), "user.a"));
  EXPECT_FALSE(there_is(session().workspace()));
}

TEST_F(Laziness, TheFirstWriteMakesExactlyTheFoldersNeeded) {
  write(outputs() / "file", "first");
  EXPECT_THAT(list(session().workspace()), ElementsAre("outputs"));
  EXPECT_THAT(list(session().workspace() / "outputs"), ElementsAre("file"));
  EXPECT_EQ(mode_of(session().workspace()), 0700u);
  EXPECT_EQ(stat_of(session().workspace()).st_uid, 0u);
  EXPECT_THAT(list(temp()), ElementsAre());
  EXPECT_THAT(list(session().workspace()), ElementsAre("outputs"));
  EXPECT_OK(::rename((outputs() / "file").c_str(), (uploads() / "file").c_str()));
  EXPECT_THAT(list(session().workspace()), ElementsAre("outputs", "uploads"));
}

TEST_F(Laziness, AZoneIsModifiedByWhatIsMadeInItAlone) {
  start_with([](fusefs::MountConfig& config) { config.created_at = {1'000'000'000, 0}; });
  EXPECT_OK(::chmod(outputs().c_str(), 0750));
  EXPECT_OK(::setxattr(outputs().c_str(), "user.a", "1", 1, 0));
  EXPECT_TRUE(there_is(session().workspace() / "outputs"));
  EXPECT_EQ(stat_of(outputs()).st_mtim.tv_sec, 1'000'000'000);
  write(outputs() / "file", "first");
  EXPECT_GT(stat_of(outputs()).st_mtim.tv_sec, 1'000'000'000);
}

TEST_F(Laziness, EveryKindOfFirstWriteWorks) {
  const auto first = [&](const auto& change) {
    start_with(nullptr);
    ASSERT_FALSE(there_is(session().workspace()));
    change();
    EXPECT_TRUE(there_is(session().workspace()));
  };
  first([&] { EXPECT_OK(::mkdir((outputs() / "d").c_str(), 0755)); });
  first([&] { EXPECT_OK(::symlink("a", (outputs() / "l").c_str())); });
  first([&] { EXPECT_OK(::mkfifo((outputs() / "p").c_str(), 0644)); });
  first([&] { EXPECT_OK(::chmod(outputs().c_str(), 0750)); });
  first([&] { EXPECT_OK(::setxattr(outputs().c_str(), "user.a", "1", 1, 0)); });
  first([&] { EXPECT_OK(::utimensat(AT_FDCWD, outputs().c_str(), nullptr, 0)); });
  first([&] { EXPECT_OK(::chown(outputs().c_str(), 5, 5)); });
}

TEST_F(Laziness, WhatALazyZoneShowsStaysWhenItIsMade) {
  start_with([](fusefs::MountConfig& config) {
    config.owner_uid = kAlice.uid;
    config.owner_gid = kAlice.gid;
  });
  const auto before = stat_of(outputs());
  write(outputs() / "file", "x");
  const auto after = stat_of(outputs());
  EXPECT_EQ(before.st_ino, after.st_ino);
  EXPECT_EQ(before.st_mode, after.st_mode);
  EXPECT_EQ(before.st_uid, after.st_uid);
  EXPECT_EQ(before.st_gid, after.st_gid);
  EXPECT_EQ(stat_of(session().workspace() / "outputs").st_uid, kAlice.uid);
}

TEST_F(Laziness, ADirectoryOpenedBeforeTheFirstWriteGoesOn) {
  const auto directory = open_file(outputs(), O_RDONLY | O_DIRECTORY);
  EXPECT_OK(::mkdirat(directory.get(), "made", 0755));
  EXPECT_OK(::faccessat(directory.get(), "made", R_OK, 0));
  EXPECT_THAT(list(outputs()), ElementsAre("made"));
}

TEST_F(Laziness, AMissingNameIsFoundOnceItIsThere) {
  struct stat found {};
  EXPECT_ERRNO(ENOENT, ::stat((outputs() / "later").c_str(), &found));
  EXPECT_ERRNO(ENOENT, ::stat((outputs() / "later").c_str(), &found));
  write(outputs() / "later", "now");
  EXPECT_OK(::stat((outputs() / "later").c_str(), &found));
}

TEST_F(Laziness, ConcurrentFirstWritesMakeTheFolderOnce) {
  for (int round = 0; round < 10; ++round) {
    start_with(nullptr);
    constexpr int kThreads = 8;
    std::atomic<bool> go{false};
    std::array<int, kThreads> errors{};
    std::vector<std::thread> writers;
    for (int i = 0; i < kThreads; ++i)
      writers.emplace_back([&, i] {
        while (!go) std::this_thread::yield();
        const auto zone = i % 2 ? outputs() : temp();
        const auto name = zone / std::to_string(i);
        errors[static_cast<std::size_t>(i)] =
            ERRNO_OF(i % 4 < 2 ? ::mkdir(name.c_str(), 0755) : ::mknod(name.c_str(), S_IFREG | 0644, 0));
      });
    go = true;
    for (auto& writer : writers) writer.join();
    for (const int error : errors) EXPECT_EQ(errno_name(error), "ok");
    EXPECT_THAT(list(outputs()), ElementsAre("1", "3", "5", "7"));
    EXPECT_THAT(list(temp()), ElementsAre("0", "2", "4", "6"));
    EXPECT_THAT(list(session().workspace()), ElementsAre("outputs", "temp"));
  }
}

TEST_F(Laziness, AnUnwrittenSessionHasNothingToCount) {
  const auto info = value_of(session().files().info());
  EXPECT_FALSE(info.materialized);
  EXPECT_EQ(info.files + info.directories + info.bytes, 0u);
  write(outputs() / "file", "12345");
  const auto written = value_of(session().files().info());
  EXPECT_TRUE(written.materialized);
  EXPECT_EQ(written.files, 1u);
  EXPECT_EQ(written.bytes, 5u);
}

}  // namespace
}  // namespace okcvm::test
