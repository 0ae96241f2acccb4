// A daemon whose state directory is full, read-only or not its own.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sqlite3.h>
#include <sys/mount.h>
#include <unistd.h>

#include <array>
#include <csignal>

#include "policy/file_descriptor.h"
#include "tests/support/loop_disk.h"
#include "tests/support/process.h"
#include "tests/tools/daemon_fixture.h"

namespace okcvm::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

/// The state directory is a file system of its own, of a few megabytes.
class DaemonSpace : public DaemonFixture {
 protected:
  void SetUp() override {
    DaemonFixture::SetUp();
    if (IsSkipped()) return;
    std::filesystem::create_directory(root_ / "state");
    if (::mount("tmpfs", (root_ / "state").c_str(), "tmpfs", 0, "size=8m,mode=0700") != 0)
      GTEST_SKIP() << "a tmpfs cannot be mounted here";
  }
  void TearDown() override {
    DaemonFixture::TearDown();
    if (root_.empty()) return;
    ::umount2((root_ / "state").c_str(), MNT_DETACH);
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }

  /// Takes all the space there is; give_back() returns it.
  void fill() {
    const int file =
        ::open((root_ / "state/filler").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    ASSERT_GE(file, 0);
    for (std::size_t piece = 1 << 20; piece > 0; piece /= 2)
      while (::write(file, std::string(piece, 'f').data(), piece) == static_cast<ssize_t>(piece)) {
      }
    EXPECT_EQ(errno, ENOSPC);
    ::close(file);
  }
  void give_back() { EXPECT_TRUE(std::filesystem::remove(root_ / "state/filler")); }

  json listing(const std::string& id, const std::string& path) {
    return ask("GET", "/v1/sessions/" + id + "/files/" + path).json()["entries"];
  }
};

TEST_F(DaemonSpace, ThatIsFullIsToldToTheWriterInTheMount) {
  start();
  create({{"id", "s1"}});
  write(mount("s1") / "outputs/kept", "bytes");
  fill();
  const int file = ::open((mount("s1") / "outputs/kept").c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  ASSERT_GE(file, 0);
  const std::string much(64 * 1024, 'm');
  ssize_t written = 0;
  for (int i = 0; i < 64 && written >= 0; ++i) written = ::write(file, much.data(), much.size());
  EXPECT_EQ(written, -1);
  EXPECT_EQ(errno, ENOSPC);
  EXPECT_EQ(::ftruncate(file, 5), 0);
  give_back();
  EXPECT_EQ(::write(file, much.data(), much.size()), static_cast<ssize_t>(much.size()));
  ::close(file);
  EXPECT_EQ(read(mount("s1") / "outputs/kept"), "bytes" + much);
}

TEST_F(DaemonSpace, ThatIsFullIsToldToWhoForks) {
  start();
  create({{"id", "s1"}});
  for (int i = 0; i < 20; ++i)
    write(mount("s1") / "outputs" / std::to_string(i), std::string(10'000, static_cast<char>('a' + i)));
  ASSERT_EQ(ask("POST", "/v1/sessions/s1/snapshots").status, 201);
  const std::string id = ask("GET", "/v1/sessions/s1/snapshots").json()["snapshots"][0]["id"];
  // At each of its steps.
  for (const int left_kib : {0, 8, 16, 32, 64, 96, 128, 192}) {
    fill();
    std::filesystem::resize_file(root_ / "state/filler",
                                 std::filesystem::file_size(root_ / "state/filler") - left_kib * 1024);
    const auto forked = ask("POST", "/v1/sessions/s1/fork", json{{"id", "copy"}, {"snapshot", id}}.dump());
    EXPECT_EQ(forked.code(), "no_space") << left_kib << forked.body;
    give_back();
  }
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/fork", json{{"id", "copy"}, {"snapshot", id}}.dump()).status, 201);
}

/// While no daemon runs, what others write there may take the room that its small files had.
TEST_F(DaemonSpace, ThatIsFullKeepsNoDaemonFromItsSessions) {
  start();
  create({{"id", "s1"}});
  write(mount("s1") / "outputs/kept", "bytes");
  kill_daemon();
  for (const char* name : {"okcvmd.lock", "sessions.db-shm"})
    std::filesystem::resize_file(root_ / "state" / name, 0);
  fill();
  start();
  EXPECT_EQ(ask("GET", "/v1/sessions/s1").json()["state"], "mounted");
  EXPECT_EQ(read(mount("s1") / "outputs/kept"), "bytes");
  give_back();
  write(mount("s1") / "outputs/later", "more");
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/snapshots").status, 201);
}

TEST_F(DaemonSpace, ThatHasNoInodeLeftIsToldAtTheStart) {
  start();
  create({{"id", "s1"}});
  write(mount("s1") / "outputs/kept", "bytes");
  EXPECT_EQ(stop(), 0);
  const auto set_inodes = [&](const char* options) {
    return ::mount(nullptr, (root_ / "state").c_str(), nullptr, MS_REMOUNT, options);
  };
  ASSERT_EQ(set_inodes("size=8m,nr_inodes=64"), 0);
  int fillers = 0;
  while (::mknod((root_ / "state" / ("filler" + std::to_string(fillers))).c_str(), S_IFREG | 0600, 0) == 0)
    ++fillers;
  ASSERT_EQ(errno, ENOSPC);
  EXPECT_THAT(start_in_vain().second, HasSubstr("full, in bytes or in inodes"));
  while (fillers > 0) std::filesystem::remove(root_ / "state" / ("filler" + std::to_string(--fillers)));
  start();
  EXPECT_EQ(ask("GET", "/v1/sessions/s1").json()["state"], "mounted");
  EXPECT_EQ(read(mount("s1") / "outputs/kept"), "bytes");
}

TEST_F(DaemonSpace, ThatIsFullLetsSessionsBeUnmounted) {
  start();
  create({{"id", "s1"}});
  write(mount("s1") / "outputs/kept", "bytes");
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/snapshots").status, 201);
  write(mount("s1") / "outputs/later", "more");
  fill();
  const auto unmounted = ask("POST", "/v1/sessions/s1/unmount");
  EXPECT_EQ(unmounted.status, 200) << unmounted.body;
  EXPECT_FALSE(std::filesystem::exists(mount("s1")));
  give_back();
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/mount").status, 200);
  EXPECT_EQ(read(mount("s1") / "outputs/later"), "more");
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/snapshots").json()["stats"]["rescanned"], true);
}

TEST_F(DaemonSpace, ThatIsFullTakesNoFilesAndKeepsNoPartOfThem) {
  start();
  create({{"id", "s1"}});
  EXPECT_EQ(ask("PUT", "/v1/sessions/s1/files/outputs/kept", "bytes").status, 201);
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/uploads?name=first", "bytes").status, 201);
  fill();
  const std::string large(512 * 1024, 'l');
  for (const char* path : {"outputs/new", "outputs/kept", "outputs/a/b/c"}) {
    const auto answer = ask("PUT", std::string("/v1/sessions/s1/files/") + path, large);
    EXPECT_EQ(answer.status, 507) << path;
    EXPECT_EQ(answer.code(), "no_space") << path;
  }
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/uploads?name=second", large).code(), "no_space");
  EXPECT_EQ(ask("GET", "/v1/sessions/s1/files/outputs/kept").body, "bytes");
  EXPECT_EQ(listing("s1", "uploads").size(), 1u);
  give_back();
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root_ / "state/workspaces/s1"))
    if (entry.is_regular_file()) {
      EXPECT_EQ(entry.file_size(), 5u) << entry.path();
    }
  EXPECT_EQ(ask("PUT", "/v1/sessions/s1/files/outputs/new", large).status, 201);
}

TEST_F(DaemonSpace, ThatIsFullTakesNoSnapshotAndLosesNone) {
  start();
  create({{"id", "s1"}});
  write(mount("s1") / "outputs/f", std::string(300'000, '1'));
  const auto first = ask("POST", "/v1/sessions/s1/snapshots").json()["id"];
  std::string noise(1'500'000, '\0');
  for (std::size_t i = 0, bits = 1; i < noise.size(); ++i) {
    bits = bits * 6364136223846793005u + 1442695040888963407u;
    noise[i] = static_cast<char>(bits >> 56);
  }
  write(mount("s1") / "outputs/g", noise);
  fill();
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/snapshots").code(), "no_space");
  EXPECT_EQ(ask("GET", "/v1/sessions/s1/snapshots").json()["snapshots"].size(), 1u);
  give_back();
  EXPECT_EQ(ask("GET", "/v1/sessions/s1/verify").json()["ok"], true);
  const auto second = ask("POST", "/v1/sessions/s1/snapshots");
  EXPECT_EQ(second.status, 201) << second.body;
  EXPECT_EQ(second.json()["parent"], first);
  EXPECT_TRUE(ask("GET", "/v1/sessions/s1/verify").json()["live_differences"].empty());
}

TEST_F(DaemonSpace, ThatIsFullMakesNoSessionAndStillDeletesThem) {
  start();
  create({{"id", "old"}});
  write(mount("old") / "outputs/f", std::string(100'000, 'x'));
  fill();
  std::string refused;
  for (int i = 0; i < 200 && refused.empty(); ++i) {
    const auto id = "n" + std::to_string(i);
    const auto answer = ask("POST", "/v1/sessions", json{{"id", id}}.dump());
    if (answer.status == 201) continue;  // the registry's log had room left
    EXPECT_EQ(answer.code(), "no_space") << answer.body;
    refused = id;
  }
  ASSERT_NE(refused, "");
  EXPECT_FALSE(std::filesystem::exists(mount(refused)));
  EXPECT_EQ(ask("GET", "/v1/sessions/" + refused).code(), "not_found");
  const auto deleted = ask("DELETE", "/v1/sessions/old");
  EXPECT_EQ(deleted.status, 200) << deleted.body;
  EXPECT_FALSE(std::filesystem::exists(mount("old")));
  give_back();
  EXPECT_EQ(ask("POST", "/v1/sessions", json{{"id", refused}}.dump()).status, 201);
  EXPECT_EQ(stop(), 0);
  start();
  EXPECT_EQ(ask("GET", "/v1/sessions/" + refused).json()["state"], "mounted");
  EXPECT_EQ(ask("GET", "/v1/sessions/old").code(), "not_found");
}

TEST_F(DaemonSpace, ThatCannotBeWrittenIsRefused) {
  ASSERT_EQ(::mount(nullptr, (root_ / "state").c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0);
  const auto [status, said] = start_in_vain();
  EXPECT_EQ(status, 1);
  EXPECT_THAT(said, HasSubstr((root_ / "state").string()));
  EXPECT_THAT(said, HasSubstr("Read-only file system"));
}

/// The state directory is a subvolume of a btrfs, where nothing is written over in place.
class DaemonQuota : public DaemonFixture {
 protected:
  void SetUp() override {
    DaemonFixture::SetUp();
    if (IsSkipped()) return;
    for (const char* place : {"state", "disk"}) std::filesystem::create_directory(root_ / place);
    if (const auto why_not = disk_.mount_at(root_ / "disk"); !why_not.empty()) GTEST_SKIP() << why_not;
    const auto made = run_script(
        "btrfs -q subvolume create disk/state && btrfs quota enable disk && chmod 0700 disk/state && "
        "mount --bind disk/state state",
        root_);
    if (made.exit_code != 0) GTEST_SKIP() << "a btrfs with quotas cannot be had here: " << made.output;
  }
  void TearDown() override {
    DaemonFixture::TearDown();
    if (root_.empty()) return;
    for (const char* place : {"state", "disk"}) ::umount2((root_ / place).c_str(), MNT_DETACH);
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }
  void must(const std::string& script) {
    const auto done = run_script(script, root_);
    ASSERT_EQ(done.exit_code, 0) << done.output;
  }

 private:
  LoopDisk disk_{"btrfs", "300M"};
};

TEST_F(DaemonQuota, ThatIsUsedUpEndsNoDaemonAndKeepsNoneFromItsSessions) {
  start({"--keeper"});
  create({{"id", "s1"}});
  write(mount("s1") / "outputs/kept", "bytes");
  must("btrfs qgroup limit 1M disk/state && sync -f disk/state");
  const FileDescriptor reader(::open((mount("s1") / "outputs/kept").c_str(), O_RDONLY | O_CLOEXEC));
  const pid_t serving = serving_pid();
  for (int i = 0; i < 3; ++i) EXPECT_NE(ask("POST", "/v1/sessions").status, 201);
  EXPECT_EQ(serving_pid(), serving);
  ASSERT_EQ(::kill(serving, SIGKILL), 0);
  std::array<char, 8> bytes{};
  EXPECT_EQ(::pread(reader.get(), bytes.data(), bytes.size(), 0), 5);
  EXPECT_EQ(read(mount("s1") / "outputs/kept"), "bytes");
  EXPECT_EQ(ask("GET", "/v1/health").json()["kept_by"], "keeper");
  EXPECT_NE(serving_pid(), serving);
  must("btrfs quota disable disk");
  EXPECT_EQ(ask("POST", "/v1/sessions").status, 201);
}

class DaemonState : public DaemonFixture {};

TEST_F(DaemonState, OfANewerProgramIsLeftUntouched) {
  start();
  create({{"id", "s1"}});
  EXPECT_EQ(stop(), 0);
  const auto file = root_ / "state/sessions.db";
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(file.c_str(), &database), SQLITE_OK);
  EXPECT_EQ(sqlite3_exec(database, "PRAGMA user_version = 999; PRAGMA wal_checkpoint(TRUNCATE);", nullptr,
                         nullptr, nullptr),
            SQLITE_OK);
  sqlite3_close(database);
  const auto before = read(file);
  const auto [status, said] = start_in_vain();
  EXPECT_EQ(status, 1);
  EXPECT_THAT(said, HasSubstr("newer"));
  EXPECT_EQ(read(file), before);
}

TEST_F(DaemonState, CannotBeAFile) {
  write(root_ / "file", "");
  EXPECT_THAT(start_in_vain({"--state-dir", root_ / "file"}).second, HasSubstr("is not a directory"));
  EXPECT_THAT(start_in_vain({"--state-dir", root_ / "file/below"}).second, HasSubstr("Not a directory"));
}

TEST_F(DaemonState, NeedsFreeMountPoints) {
  start();
  std::filesystem::create_directory(mount("full"));
  write(mount("full") / "file", "x");
  std::filesystem::create_directory(mount("taken"));
  ASSERT_EQ(::mount("tmpfs", mount("taken").c_str(), "tmpfs", 0, "size=64k"), 0);
  write(mount("file"), "x");
  std::filesystem::create_directory(mount("empty"));
  for (const char* id : {"full", "taken", "file"}) {
    const auto answer = ask("POST", "/v1/sessions", json{{"id", id}}.dump());
    EXPECT_EQ(answer.code(), "busy") << id << answer.body;
    EXPECT_EQ(ask("GET", std::string("/v1/sessions/") + id).code(), "not_found") << id;
  }
  EXPECT_EQ(read(mount("full") / "file"), "x");
  EXPECT_EQ(::umount(mount("taken").c_str()), 0);
  for (const char* id : {"taken", "empty"}) EXPECT_EQ(create({{"id", id}})["state"], "mounted");
}

}  // namespace
}  // namespace okcvm::test
