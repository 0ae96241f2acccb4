// What of sessions outlives their daemon.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <vector>

#include "tests/support/file_io.h"
#include "tests/tools/daemon_fixture.h"
#include "tools/daemon/host/host_setup.h"
#include "tools/daemon/sessions/registry.h"

namespace okcvm::test {
namespace {

using nlohmann::json;

class DaemonLives : public DaemonFixture {};

TEST_F(DaemonLives, ComeBackAfterARestart) {
  start();
  create({{"id", "kept"}, {"labels", {{"a", "b"}}}});
  create({{"id", "away"}});
  write(mount("kept") / "outputs/f", "bytes");
  EXPECT_EQ(ask("POST", "/v1/sessions/away/unmount").json()["state"], "unmounted");
  EXPECT_EQ(stop(), 0);
  EXPECT_FALSE(std::filesystem::exists(mount("kept")));
  start();
  EXPECT_EQ(read(mount("kept") / "outputs/f"), "bytes");
  EXPECT_EQ(ask("GET", "/v1/sessions/kept").json()["labels"]["a"], "b");
  EXPECT_EQ(ask("GET", "/v1/sessions/away").json()["state"], "unmounted");
  EXPECT_EQ(ask("GET", "/v1/sessions/away/files/").code(), "busy");
  EXPECT_EQ(ask("GET", "/v1/sessions/away/info").json()["files"], 0);
  EXPECT_EQ(ask("GET", "/v1/health").json()["status"], "ok");
}

TEST_F(DaemonLives, AreMountedAnewAfterACrashWithoutAKeeper) {
  start();
  create({{"id", "s1"}});
  write(mount("s1") / "outputs/f", "bytes");
  kill_daemon();
  start();
  EXPECT_EQ(read(mount("s1") / "outputs/f"), "bytes");
  const auto health = ask("GET", "/v1/health").json();
  EXPECT_EQ(health["status"], "degraded");
  EXPECT_EQ(health["affected"][0]["id"], "s1");
}

TEST_F(DaemonLives, EndWithoutTheirSocketButNotWithAnothersInItsPlace) {
  start();
  EXPECT_EQ(stop(), 0);
  EXPECT_FALSE(std::filesystem::exists(socket()));
  start();
  std::filesystem::remove(socket());
  const auto others = daemon::listen_at(socket());
  ASSERT_TRUE(others);
  EXPECT_EQ(stop(), 0);
  EXPECT_TRUE(HttpClient(socket()).is_connected());
}

TEST_F(DaemonLives, DoNotEndBySignalsThatMeanNothing) {
  for (const auto& options : {std::vector<std::string>{}, {"--keeper"}}) {
    start(options);
    const pid_t serving = serving_pid();
    for (const int signal : {SIGUSR1, SIGUSR2, SIGPIPE})
      for (const pid_t process : {serving, keeper_pid()}) EXPECT_EQ(::kill(process, signal), 0);
    EXPECT_EQ(serving_pid(), serving);
    EXPECT_EQ(stop(), 0);
  }
}

TEST_F(DaemonLives, ShowWhatIsWrittenThroughAMountThatWasLost) {
  start({"--keeper"});
  create({{"id", "s1"}});
  const auto log = mount("s1") / "outputs/log";
  const auto file = open_file(log, O_CREAT | O_WRONLY | O_APPEND);
  write_all(file, "1\n");
  const pid_t daemon = serving_pid();
  ASSERT_EQ(::kill(keeper_pid(), SIGKILL), 0);
  wait_for_end();
  ASSERT_EQ(::kill(daemon, SIGKILL), 0);
  start({"--keeper"});
  kill_daemon();  // the next one takes over, and has to know
  ASSERT_TRUE(comes_true([&] { return ask("GET", "/v1/health").status == 200; }));
  EXPECT_EQ(stat_of(log).st_size, 2);
  if (::write(file.get(), "2\n", 2) != 2) GTEST_SKIP() << "what is open ends with its mount";
  EXPECT_EQ(stat_of(log).st_size, 4);
}

/// As /mnt is on some systems.
TEST_F(DaemonLives, MayBeMountedInADirectoryThatIsALink) {
  std::filesystem::create_directory(root_ / "var");
  std::filesystem::remove(root_ / "mnt");
  std::filesystem::create_directory_symlink("var", root_ / "mnt");
  start();
  create({{"id", "s1"}});
  write(mount("s1") / "outputs/f", "bytes");
  const auto real = root_ / "var/okcvm-s1/outputs";
  for (const auto& [name, text] :
       {std::pair("real", real / "f"), std::pair("named", mount("s1") / "outputs/f")}) {
    std::filesystem::create_symlink(text, real / name);
    EXPECT_EQ(read(real / name), "bytes");
    EXPECT_EQ(ask("GET", "/v1/sessions/s1/files/outputs/" + std::string(name)).status, 200);
  }
  EXPECT_THROW(std::filesystem::create_symlink(root_ / "var", real / "out"),
               std::filesystem::filesystem_error);
  kill_daemon();
  start();
  EXPECT_EQ(read(mount("s1") / "outputs/f"), "bytes");
  EXPECT_EQ(ask("DELETE", "/v1/sessions/s1").status, 200);
  EXPECT_TRUE(std::filesystem::is_empty(root_ / "var"));
}

TEST_F(DaemonLives, OutliveADaemonThatIsKept) {
  start({"--keeper"});
  create({{"id", "s1"}});
  std::ofstream open_file(mount("s1") / "outputs/f");
  open_file << "one " << std::flush;
  for (int i = 0; i < 3; ++i) {
    const pid_t before = serving_pid();
    kill_daemon();
    open_file << i << std::flush;
    EXPECT_EQ(ask("GET", "/v1/sessions/s1").json()["state"], "mounted");
    EXPECT_NE(serving_pid(), before);
  }
  const pid_t before = serving_pid();
  signal(SIGHUP);
  open_file << " two";
  open_file.close();
  EXPECT_TRUE(open_file);
  while (serving_pid() == before) ::usleep(1000);
  EXPECT_EQ(read(mount("s1") / "outputs/f"), "one 012 two");
  EXPECT_EQ(ask("GET", "/v1/health").json()["affected"].size(), 0u);
  EXPECT_EQ(stop(), 0);
  EXPECT_FALSE(std::filesystem::exists(mount("s1")));
  EXPECT_FALSE(std::filesystem::exists(socket()));
}

TEST_F(DaemonLives, TakeNoMoreThreadsOnceTheyRest) {
  constexpr std::size_t kSessions = 24;
  start({"--keeper"});
  for (std::size_t i = 0; i < kSessions; ++i) create({{"id", "s" + std::to_string(i)}});
  const auto threads = [&] { return count_in_proc(serving_pid(), "task"); };
  kill_daemon();
  ASSERT_TRUE(comes_true([&] { return ask("GET", "/v1/health").status == 200; }));
  EXPECT_TRUE(comes_true([&] { return threads() < 3 * kSessions / 2; }))
      << threads();  // one each, and its own
}

TEST_F(DaemonLives, GoOnWhereTheRecordOfASessionsChangesCannotBeLookedAt) {
  start({"--keeper"});
  for (const char* id : {"a", "b"}) create({{"id", id}});
  std::filesystem::create_directories(root_ / "state/changes");
  std::filesystem::create_symlink("a", root_ / "state/changes/a");  // ELOOP
  kill_daemon();
  ASSERT_TRUE(comes_true([&] { return ask("GET", "/v1/health").status == 200; }));
  EXPECT_EQ(ask("GET", "/v1/health").json()["status"], "ok");
  for (const char* id : {"a", "b"}) write(mount(id) / "outputs/f", "bytes");
  EXPECT_FALSE(std::filesystem::is_symlink(root_ / "state/changes/a")) << "what is not true any more";
}

/// Somebody who kills says nothing of the next daemon.
TEST_F(DaemonLives, OutliveManyDaemonsThatAreKilledBeforeTheyAreReady) {
  start({"--keeper"});
  create({{"id", "s1"}});
  write(mount("s1") / "outputs/f", "bytes");
  pid_t last = serving_pid();
  const auto keeper = std::to_string(keeper_pid());
  const std::filesystem::path children = "/proc/" + keeper + "/task/" + keeper + "/children";
  kill_daemon();
  for (int killed = 0; killed < 12; ++killed) {
    const auto next = [&] {
      pid_t child = -1;
      std::ifstream(children) >> child;
      return child;
    };
    ASSERT_TRUE(comes_true([&] { return next() > 0 && next() != last; })) << killed;
    last = next();
    ASSERT_EQ(::kill(last, SIGKILL), 0);
  }
  EXPECT_EQ(read(mount("s1") / "outputs/f"), "bytes");
  EXPECT_EQ(stop(), 0);
}

TEST_F(DaemonLives, AreServedOnByAKeeperWhoseStarterIgnoresEndsOfChildren) {
  const auto before = ::signal(SIGCHLD, SIG_IGN);
  start({"--keeper"});
  ::signal(SIGCHLD, before);
  create({{"id", "s1"}});
  write(mount("s1") / "outputs/f", "bytes");
  ASSERT_EQ(::kill(serving_pid(), SIGKILL), 0);
  EXPECT_EQ(read(mount("s1") / "outputs/f"), "bytes");
  EXPECT_EQ(stop(), 0);
}

TEST_F(DaemonLives, AreUnmountedByAHangUpOnceTheKeeperIsGone) {
  start({"--keeper"});
  create({{"id", "s1"}});
  const pid_t serving = serving_pid();
  EXPECT_EQ(ask("GET", "/v1/health").json()["kept_by"], "keeper");
  signal(SIGKILL);
  EXPECT_EQ(wait_for_end(), -1);
  EXPECT_EQ(ask("GET", "/v1/health").json()["kept_by"], "nobody");
  EXPECT_EQ(ask("GET", "/v1/sessions/s1").json()["survives_daemon"], false);
  ASSERT_EQ(::kill(serving, SIGHUP), 0);
  EXPECT_TRUE(comes_true([&] { return !std::filesystem::exists(mount("s1")); }));
}

TEST_F(DaemonLives, AreShownAsTheyAreWithoutTheKeeperAndTheTeller) {
  start({"--keeper"});
  create({{"id", "s1"}});
  write(mount("s1") / "outputs/f", "first");
  EXPECT_EQ(read(mount("s1") / "outputs/f"), "first");
  const pid_t serving = serving_pid();
  const auto number = std::to_string(serving);
  pid_t teller = -1;
  std::ifstream("/proc/" + number + "/task/" + number + "/children") >> teller;
  signal(SIGKILL);
  EXPECT_EQ(wait_for_end(), -1);
  ASSERT_TRUE(comes_true([&] { return ask("GET", "/v1/health").json()["kept_by"] == "nobody"; }));
  ASSERT_GT(teller, 1);
  ASSERT_EQ(::kill(teller, SIGKILL), 0);
  ASSERT_TRUE(
      comes_true([&] { return log().find("tells the kernel what to forget has ended") != log().npos; }));
  EXPECT_EQ(ask("PUT", "/v1/sessions/s1/files/outputs/f", "second, longer").status / 100, 2);
  EXPECT_EQ(read(mount("s1") / "outputs/f"), "second, longer");
  ASSERT_EQ(::kill(serving, SIGTERM), 0);
  EXPECT_TRUE(comes_true([&] { return !std::filesystem::exists(mount("s1")); }));
}

/// Whether the kernel tells which file system a descriptor serves.
bool tells_what_is_served(pid_t daemon) {
  std::error_code ignored;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(daemon) + "/fdinfo", ignored)) {
    std::ifstream lines(entry.path());
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with("fuse_connection:")) return true;
  }
  return false;
}

TEST_F(DaemonLives, LeaveAMountRootThatIsNoLongerTheirs) {
  std::filesystem::create_directory(root_ / "other");
  std::filesystem::create_directory_symlink(root_ / "mnt", root_ / "link");
  start({"--keeper", "--mount-root", root_ / "link"});
  create({{"id", "s1"}});
  write(mount("s1") / "outputs/f", "bytes");
  const pid_t before = serving_pid();
  if (!tells_what_is_served(before))
    GTEST_SKIP() << "this kernel does not tell what a descriptor serves (Linux 6.17 does)";
  std::filesystem::remove(root_ / "link");
  std::filesystem::create_directory_symlink(root_ / "other", root_ / "link");
  signal(SIGHUP);
  ASSERT_TRUE(comes_true([&] { return serving_pid() != before; }));
  EXPECT_TRUE(std::filesystem::is_empty(root_ / "mnt"));
  EXPECT_EQ(read(root_ / "other/okcvm-s1/outputs/f"), "bytes");
  EXPECT_THAT(ask("GET", "/v1/health").json()["affected"][0]["reason"].get<std::string>(),
              ::testing::HasSubstr("another mount root"));
  EXPECT_EQ(stop(), 0);
  EXPECT_TRUE(std::filesystem::is_empty(root_ / "other"));
}

TEST_F(DaemonLives, TellOfAWorkdirThatWasMovedAway) {
  const auto projects = root_ / "projects";
  std::filesystem::create_directories(projects / "a");
  start({"--keeper", "--workdir-allow-root", projects});
  create({{"id", "s1"}, {"workdir", projects / "a"}});
  std::filesystem::rename(projects / "a", projects / "b");
  kill_daemon();
  ASSERT_TRUE(comes_true([&] { return ask("GET", "/v1/health").status == 200; }));
  EXPECT_THAT(ask("GET", "/v1/health").json()["affected"][0]["reason"].get<std::string>(),
              ::testing::HasSubstr("workdir " + (projects / "a").string()));
  std::filesystem::rename(projects / "b", projects / "a");
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/unmount", "{}").status, 200);
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/mount", "{}").status, 200);
  write(mount("s1") / "workdir/f", "bytes");
  EXPECT_EQ(read(projects / "a/f"), "bytes");
}

/// What programs have of the former one would be looked for in it.
TEST_F(DaemonLives, BindNoOtherDirectoryThatTookThePlaceOfAWorkdir) {
  const auto projects = root_ / "projects";
  std::filesystem::create_directories(projects / "a");
  write(projects / "a/f", "former");
  start({"--keeper", "--workdir-allow-root", projects});
  create({{"id", "s1"}, {"workdir", projects / "a"}});
  EXPECT_EQ(read(mount("s1") / "workdir/f"), "former");
  std::filesystem::rename(projects / "a", projects / "b");
  std::filesystem::create_directory(projects / "a");
  write(projects / "a/f", "another");
  for (int kills = 0; kills < 2; ++kills) {
    kill_daemon();
    ASSERT_TRUE(comes_true([&] { return ask("GET", "/v1/health").status == 200; }));
    EXPECT_THAT(ask("GET", "/v1/health").json()["affected"][0]["reason"].get<std::string>(),
                ::testing::HasSubstr("another directory is at its path"));
    EXPECT_TRUE(comes_true([&] { return !std::filesystem::exists(mount("s1") / "workdir"); }));
  }
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/unmount", "{}").status, 200);
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/mount", "{}").status, 200);
  EXPECT_EQ(read(mount("s1") / "workdir/f"), "another");
}

TEST_F(DaemonLives, OutliveAHangUpOfTheProcessThatServes) {
  start({"--keeper"});
  for (int sessions = 0; sessions < 2; ++sessions) {  // also where nothing is mounted
    const pid_t before = serving_pid();
    ASSERT_EQ(::kill(before, SIGHUP), 0);
    EXPECT_TRUE(
        comes_true([&] { return ask("GET", "/v1/health").status == 200 && serving_pid() != before; }));
    if (sessions == 0) create({{"id", "s1"}});
  }
  write(mount("s1") / "outputs/f", "bytes");
  EXPECT_EQ(ask("GET", "/v1/health").json()["affected"].size(), 0u);
  EXPECT_EQ(::kill(serving_pid(), SIGTERM), 0);
  EXPECT_EQ(wait_for_end(), 0);
  EXPECT_FALSE(std::filesystem::exists(mount("s1")));
}

/// Whatever the keeper is told while the next daemon takes over, that one hears once it is done.
TEST_F(DaemonLives, AreUnmountedByAStopThatComesRightAfterADeath) {
  for (const auto& first : {std::vector<int>{}, {SIGHUP}, {SIGHUP, SIGHUP}}) {
    start({"--keeper"});
    for (const char* id : {"s1", "s2", "s3"}) create({{"id", id}});
    const pid_t before = serving_pid();
    kill_daemon();
    for (const int number : first) signal(number);
    // Both before the keeper knows of the death and after.
    if (first.size() == 1) comes_true([&] { return serving_pid() > 0 && serving_pid() != before; });
    signal(SIGTERM);
    EXPECT_EQ(wait_for_end(), 0);
    for (const char* id : {"s1", "s2", "s3"}) EXPECT_FALSE(std::filesystem::exists(mount(id)));
    std::filesystem::remove_all(root_ / "state");
  }
}

TEST_F(DaemonLives, EndOnlyAfterTheRequestsInHand) {
  constexpr int kRequests = 6;                          // some at work, others waiting for their turn
  constexpr int kLongerThanTheDaemonsTimeout = 12'000;  // milliseconds
  start();
  create({{"id", "s1"}});
  write(mount("s1") / "outputs/f", "bytes");
  ASSERT_EQ(ask("POST", "/v1/sessions/s1/snapshots").status, 201);
  const auto lock = open_file(root_ / "state/snapshots/s1.git/okcvm/lock", O_RDONLY);
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
  const auto threads = count_in_proc(serving_pid(), "task");
  std::vector<HttpClient> clients;
  for (int i = 0; i < kRequests; ++i)
    clients.emplace_back(socket()).send("GET /v1/sessions/s1/diff HTTP/1.1\r\nHost: okcvm\r\n\r\n");
  ASSERT_TRUE(comes_true([&] { return count_in_proc(serving_pid(), "task") + 1 >= threads + kRequests; }));
  const FileDescriptor process(static_cast<int>(::syscall(SYS_pidfd_open, serving_pid(), 0)));
  signal(SIGTERM);
  pollfd ends{process.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&ends, 1, kLongerThanTheDaemonsTimeout), 0) << "ended";
  EXPECT_EQ(::flock(lock.get(), LOCK_UN), 0);
  EXPECT_EQ(wait_for_end(), 0);
  EXPECT_FALSE(std::filesystem::exists(mount("s1")));
}

TEST_F(DaemonLives, AreAllUnmountedThoughTheStopIsAskedForAgainAndAgain) {
  constexpr int kSessions = 40;
  constexpr int kLongest = 30'000;  // milliseconds
  start();
  for (int i = 0; i < kSessions; ++i) create({{"id", "s" + std::to_string(i)}});
  const FileDescriptor process(static_cast<int>(::syscall(SYS_pidfd_open, serving_pid(), 0)));
  pollfd ends{process.get(), POLLIN, 0};
  int left = kLongest;
  do signal(SIGTERM);
  while (::poll(&ends, 1, 1) == 0 && --left > 0);
  EXPECT_EQ(wait_for_end(), 0);
  EXPECT_TRUE(std::filesystem::is_empty(root_ / "mnt"));
}

TEST_F(DaemonLives, OfOneStateDirectoryHaveOneDaemon) {
  start();
  const auto [status, said] = start_in_vain({"--socket", root_ / "other.sock"});
  EXPECT_EQ(status, 1);
  EXPECT_THAT(said, ::testing::HasSubstr("pid " + std::to_string(serving_pid())));
}

/// A mount that is refused clears away what one that is gone may have left to its next daemon.
TEST_F(DaemonLives, OfOneRunDirectoryHaveOneDaemon) {
  start({"--keeper"});
  create({{"id", "s1"}});
  std::filesystem::create_directory(root_ / "other-mnt");
  const auto [status, said] = start_in_vain({"--state-dir", root_ / "other-state", "--mount-root",
                                             root_ / "other-mnt", "--socket", root_ / "other.sock"});
  EXPECT_EQ(status, 1);
  EXPECT_THAT(said, ::testing::HasSubstr("pid " + std::to_string(serving_pid())));
  EXPECT_THAT(said, ::testing::HasSubstr("use another --run-dir"));
  kill_daemon();
  EXPECT_EQ(ask("GET", "/v1/health").json()["affected"].size(), 0u);
  EXPECT_EQ(stop(), 0);
  start({"--state-dir", root_ / "other-state"});  // once it is free
}

TEST_F(DaemonLives, AreNotServedFromADamagedRegistry) {
  std::filesystem::create_directories(root_ / "state");
  std::filesystem::permissions(root_ / "state", std::filesystem::perms(0700));
  const std::string garbage(10'000, 'g');
  write(root_ / "state/sessions.db", garbage);
  for (const auto& options : {std::vector<std::string>(), std::vector<std::string>{"--keeper"}}) {
    const auto [status, said] = start_in_vain(options);
    EXPECT_EQ(status, 1);
    EXPECT_THAT(said, ::testing::HasSubstr("untouched"));
    EXPECT_EQ(read(root_ / "state/sessions.db"), garbage);
  }
}

TEST_F(DaemonLives, NeedAMountRootAndASafeStateDirectory) {
  EXPECT_THAT(start_in_vain({"--mount-root", root_ / "none"}).second, ::testing::HasSubstr("mount root"));
  std::filesystem::create_directory(root_ / "open");
  std::filesystem::permissions(root_ / "open", std::filesystem::perms(0777));
  EXPECT_THAT(start_in_vain({"--state-dir", root_ / "open"}).second,
              ::testing::HasSubstr("written to by others"));
}

TEST_F(DaemonLives, AreRememberedFromBeforeTheLastStartThoughTheLogIsDamaged) {
  start();
  create({{"id", "s1"}});
  kill_daemon();
  start();
  kill_daemon();
  auto log = read(root_ / "state/sessions.db-wal");
  log[100] ^= 1;
  write(root_ / "state/sessions.db-wal", log);
  start();
  EXPECT_EQ(ask("GET", "/v1/sessions/s1").json()["state"], "mounted");
}

TEST_F(DaemonLives, StartEmptyWhateverTheRegistryHasForgotten) {
  start();
  create({{"id", "files"}});
  create({{"id", "repository"}});
  write(mount("files") / "outputs/f", "somebody's");
  ASSERT_EQ(ask("POST", "/v1/sessions/repository/snapshots", R"({"label":"somebody's"})").status, 201);
  ASSERT_EQ(stop(), 0);
  std::filesystem::rename(root_ / "state/sessions.db", root_ / "sessions.db");
  start();
  const auto health = ask("GET", "/v1/health").json();
  EXPECT_EQ(health["status"], "degraded");
  EXPECT_EQ(health["affected"].size(), 1u) << health;  // that has files
  for (const std::string id : {"files", "repository"}) {
    EXPECT_EQ(ask_as(1234, "POST", "/v1/sessions", json{{"id", id}}.dump()).code(), "already_exists") << id;
    const auto agent = ask_as(1234, "POST", "/v1/sessions", json{{"agent", id}}.dump()).json();
    EXPECT_NE(agent["id"], id);
    EXPECT_EQ(agent["agent"], id);
  }
  create({{"id", "other"}});
  EXPECT_EQ(ask("POST", "/v1/sessions/other/fork", R"({"id":"files"})").code(), "already_exists");
  ASSERT_EQ(stop(), 0);
  std::filesystem::rename(root_ / "sessions.db", root_ / "state/sessions.db");
  start();
  EXPECT_EQ(read(mount("files") / "outputs/f"), "somebody's");
}

}  // namespace
}  // namespace okcvm::test
