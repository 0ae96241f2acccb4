#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <memory>
#include <sstream>

#include "tests/service/service_manager.h"
#include "tests/support/expect.h"
#include "tests/support/file_io.h"
#include "tests/support/process.h"
#include "tests/support/scratch.h"
#include "tests/support/session.h"
#include "tests/support/watchdog.h"
#include "tests/tools/http_client.h"

namespace okcvm::test {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

ServiceManager::Wanted that_says(const std::string& name, const std::string& value = "1") {
  return [name, value](const Notification& notification) { return notification.has(name, value); };
}
ServiceManager::Wanted that_stores(const std::string& name) {
  return [name](const Notification& notification) {
    return notification.has("FDSTORE") && notification.has("FDNAME", name);
  };
}
ServiceManager::Wanted that_gives_up(const std::string& name) {
  return [name](const Notification& notification) {
    return notification.has("FDSTOREREMOVE") && notification.has("FDNAME", name);
  };
}

/// The unit's CapabilityBoundingSet, for setpriv(1).
std::string capabilities_of_unit() {
  std::istringstream unit(read(OKCVMD_UNIT));
  std::string wanted = "-all";
  for (std::string line; std::getline(unit, line);) {
    constexpr std::string_view kKey = "CapabilityBoundingSet=", kPrefix = "CAP_";
    if (!line.starts_with(kKey)) continue;
    std::istringstream names(line.substr(kKey.size()));
    for (std::string name; names >> name;) {
      std::transform(name.begin(), name.end(), name.begin(), ::tolower);
      wanted += ",+" + name.substr(kPrefix.size());
    }
  }
  return wanted;
}

/// okcvmd as a service of a manager that we are, with no more capabilities than its unit gives it.
class DaemonAsService : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = why_no_mounts(); !reason.empty()) GTEST_SKIP() << reason;
    Watchdog::instance().guard(scratch_.path());
    Watchdog::instance().expect_progress(Watchdog::usual_limit());
    for (const char* folder : {"mnt", "run", "skills", "state"}) fs::create_directory(scratch_ / folder);
    for (const char* folder : {"run", "state"}) fs::permissions(scratch_ / folder, fs::perms(0700));
    manager_ = std::make_unique<ServiceManager>(scratch_.path());
  }
  void TearDown() override {
    if (HasFailure() && manager_) std::fprintf(stderr, "%s", manager_->log().c_str());
    manager_.reset();
    end_mounts_below(scratch_.path());
    Watchdog::instance().rest();
  }

  ServiceManager& manager() { return *manager_; }
  void start(const std::vector<std::string>& variables = {},
             std::vector<std::string> command = {"/usr/bin/setpriv", "--bounding-set",
                                                 capabilities_of_unit()}) {
    for (const std::string& word : {std::string(OKCVMD_PROGRAM), std::string("--state-dir"), folder("state"),
                                    std::string("--run-dir"), folder("run"), std::string("--mount-root"),
                                    folder("mnt"), std::string("--skills-dir"), folder("skills")})
      command.push_back(word);
    manager().start(command, variables);
    ASSERT_TRUE(manager().heard(that_says("READY"))) << manager().log();
  }
  int stop(int number = SIGTERM) {
    manager().signal(number);
    return manager().wait_for_end();
  }
  HttpAnswer ask(const std::string& method, const std::string& target, const std::string& body = {}) {
    return HttpClient(socket()).ask(method, target, body);
  }
  void create(const std::string& id) {
    const auto answer = ask("POST", "/v1/sessions", R"({"id":")" + id + R"("})");
    ASSERT_EQ(answer.status, 201) << answer.body;
  }
  std::string folder(const char* name) const { return scratch_ / name; }
  std::string socket() const { return scratch_ / "run/control.sock"; }
  fs::path mount(const std::string& id) const { return scratch_ / ("mnt/okcvm-" + id); }

 private:
  ScratchDirectory scratch_{"service"};
  std::unique_ptr<ServiceManager> manager_;
};

TEST_F(DaemonAsService, KeepsSetIdBitsForWhoMayKeepThem) {
  start();
  create("s1");
  const auto file = mount("s1") / "outputs/file";
  write(file, "x");
  const auto set = [&] {
    ASSERT_OK(::chown(file.c_str(), kAlice.uid, kAlice.gid));
    ASSERT_OK(::chmod(file.c_str(), 06755));
  };
  const auto fallocate = [&](const std::string& capabilities) {
    const std::string user = std::to_string(kAlice.uid);
    return run_script("exec 3<>" + file.string() + "; setpriv --reuid " + user + " --regid " + user +
                          " --clear-groups --inh-caps=" + capabilities + " --ambient-caps=" + capabilities +
                          " fallocate -l 100 /proc/self/fd/3",  // the way there is root's alone
                      "/");
  };
  set();
  const auto by_who_may = fallocate("-all,+fsetid");
  ASSERT_EQ(by_who_may.exit_code, 0) << by_who_may.output;
  EXPECT_EQ(stat_of(file).st_mode, S_IFREG | 06755u);
  set();
  ASSERT_EQ(fallocate("-all").exit_code, 0);
  EXPECT_EQ(stat_of(file).st_mode, S_IFREG | 0755u);
}

TEST_F(DaemonAsService, WritesItsLogNowhereWhereItsStandardErrorIsClosed) {
  start({}, {"/bin/sh", "-c", "exec \"$0\" \"$@\" <&- >&- 2>&-"});
  create("s1");
  EXPECT_EQ(ask("GET", "/v1/health").status, 200);
  for (const char* place : {"run", "state"})
    EXPECT_EQ(read(folder(place) + "/okcvmd.lock").find("info"), std::string::npos) << place;
  EXPECT_EQ(stop(), 0);
}

TEST_F(DaemonAsService, SaysWhenItServesAndWhenItStops) {
  start();
  const auto ready = manager().heard(that_says("READY"));
  EXPECT_EQ(ready->sender, manager().pid());
  EXPECT_THAT(ready->fields.at("STATUS"), HasSubstr(socket()));
  EXPECT_EQ(ask("GET", "/v1/health").json()["kept_by"], "systemd");
  EXPECT_THAT(manager().all_heard(that_says("STOPPING")), IsEmpty());
  EXPECT_EQ(stop(), 0);
  EXPECT_TRUE(manager().heard(that_says("STOPPING")));
  EXPECT_FALSE(there_is(socket()));
}

TEST_F(DaemonAsService, SeesThatAUsersFileIsStillMapped) {
  start();
  create("s");
  const auto path = mount("s") / "outputs/map", other = mount("s") / "outputs/other";
  for (const auto& file : {path, other}) {
    write(file, std::string(4096, '.'));
    ASSERT_OK(::chown(file.c_str(), 1000, 1000));
  }
  auto file = open_file(path, O_RDWR);
  char* bytes = static_cast<char*>(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0));
  ASSERT_NE(bytes, MAP_FAILED);
  file.reset();
  bytes[0] = '1';
  const auto first = ask("POST", "/v1/sessions/s/snapshots", "{}");
  EXPECT_EQ(first.status, 201) << first.body;
  // What cannot be told counts as mapped.
  EXPECT_EQ(first.json()["in_flight"].dump(), R"(["outputs/map"])");
  bytes[0] = '2';
  const auto second = ask("POST", "/v1/sessions/s/snapshots", "{}");
  EXPECT_EQ(second.status, 201) << second.body;
  ::munmap(bytes, 4096);
}

TEST_F(DaemonAsService, IsNotReadyWhenItCannotRun) {
  write(mount("x").parent_path().parent_path() / "state/sessions.db", std::string(10'000, 'g'));
  manager().start({OKCVMD_PROGRAM, "--state-dir", mount("x").parent_path().parent_path() / "state"});
  EXPECT_EQ(manager().wait_for_end(), 1);
  EXPECT_THAT(manager().all_heard(that_says("READY")), IsEmpty());
}

TEST_F(DaemonAsService, FeedsTheWatchdogTwiceAsOftenAsItBites) {
  start({"WATCHDOG_USEC=1200000"});
  ASSERT_TRUE(manager().heard(that_says("WATCHDOG"), 6));
  const auto fed = manager().all_heard(that_says("WATCHDOG"));
  ASSERT_GE(fed.size(), 6u);
  // The middle one, for a machine that was busy now and then.
  std::vector<std::chrono::steady_clock::duration> gaps;
  for (std::size_t i = 1; i < fed.size(); ++i) gaps.push_back(fed[i].received - fed[i - 1].received);
  std::sort(gaps.begin(), gaps.end());
  EXPECT_LE(gaps[gaps.size() / 2], std::chrono::milliseconds(600));
}

TEST_F(DaemonAsService, HasAsLongToFinishItsWorkAtAHangupAsAtAStop) {
  ASSERT_THAT(read(OKCVMD_UNIT), HasSubstr("\nTimeoutStopSec=2min\n"));
  const auto as_at_a_stop = that_says("WATCHDOG_USEC", "120000000");
  start({"WATCHDOG_USEC=30000000"});
  EXPECT_EQ(stop(SIGHUP), 0);
  EXPECT_TRUE(manager().heard(as_at_a_stop)) << "it is running still for the manager, and fed no more";
  start({"WATCHDOG_USEC=30000000"});
  EXPECT_EQ(stop(SIGTERM), 0);
  start();
  EXPECT_EQ(stop(SIGHUP), 0);
  EXPECT_THAT(manager().all_heard(as_at_a_stop), IsEmpty()) << "nobody watches";
}

TEST_F(DaemonAsService, FeedsNobodyElsesWatchdog) {
  start({"WATCHDOG_USEC=1000", "WATCHDOG_PID=1"});
  create("s1");
  EXPECT_EQ(ask("GET", "/v1/health").status, 200);
  EXPECT_EQ(stop(), 0);
  EXPECT_THAT(manager().all_heard(that_says("WATCHDOG")), IsEmpty());
}

TEST_F(DaemonAsService, ServesOnTheSocketItIsGivenAndLeavesItBehind) {
  manager().listen(socket(), "okcvmd.socket");
  const auto before = stat_of(socket());
  HttpClient early(socket());  // waits in the backlog until the service is up
  early.send("GET /v1/health HTTP/1.1\r\nHost: okcvm\r\n\r\n");
  start();
  EXPECT_EQ(early.receive().status, 200);
  EXPECT_THAT(manager().stored_names(), IsEmpty()) << "the socket unit keeps the socket";
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(stop(), 0);
    EXPECT_EQ(stat_of(socket()).st_ino, before.st_ino);
    HttpClient between(socket());
    ASSERT_TRUE(between.is_connected());
    between.send("GET /v1/sessions HTTP/1.1\r\nHost: okcvm\r\n\r\n");
    start();
    EXPECT_EQ(between.receive().status, 200);
  }
}

TEST_F(DaemonAsService, SaysWhichInheritedSocketItDoesNotServe) {
  const auto other = mount("x").parent_path() / "other.sock";
  manager().listen(other, "okcvmd.socket");
  start();
  EXPECT_EQ(ask("GET", "/v1/health").status, 200) << "its own is served none the less";
  EXPECT_THAT(manager().log(),
              HasSubstr("the inherited socket " + other.string() + " is not served, as --socket is " +
                        socket() + ": set ListenStream=" + socket()));
  EXPECT_TRUE(manager().heard(that_stores("control")));
  EXPECT_EQ(stop(), 0);
  EXPECT_FALSE(there_is(socket())) << "it made that one";
  EXPECT_TRUE(there_is(other)) << "which is the socket unit's";
}

TEST_F(DaemonAsService, SaysThatTheSocketOfItsUnitIsGone) {
  manager().listen(socket(), "okcvmd.socket");
  ASSERT_OK(::unlink(socket().c_str()));
  start();
  EXPECT_EQ(ask("GET", "/v1/health").status, 200);
  EXPECT_THAT(manager().log(), HasSubstr("was removed from there"));
}

TEST_F(DaemonAsService, GivesTheDevicesOfMountsIntoKeeping) {
  start();
  create("s1");
  create("s2");
  for (const std::string name : {"okcvm-s1", "okcvm-s2"}) {
    const auto stored = manager().heard(that_stores(name));
    ASSERT_TRUE(stored) << name;
    EXPECT_EQ(stored->descriptors, 1u);
    EXPECT_EQ(manager().stored_target(name), "/dev/fuse");
  }
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/unmount").status, 200);
  EXPECT_TRUE(manager().heard(that_gives_up("okcvm-s1")));
  EXPECT_THAT(manager().stored_names(), UnorderedElementsAre("control", "okcvm-s2"));
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/mount").status, 200);
  EXPECT_TRUE(manager().heard(that_stores("okcvm-s1"), 2));
  EXPECT_EQ(ask("DELETE", "/v1/sessions/s2").status, 200);
  EXPECT_TRUE(manager().heard(that_gives_up("okcvm-s2")));
  EXPECT_EQ(stop(), 0);
  EXPECT_THAT(manager().stored_names(), IsEmpty()) << "a stop gives up what was kept";
  EXPECT_FALSE(there_is(mount("s1")));
}

/// A program in the session: stats and writes until it is told to stop, from a working directory and with a
/// file that it opened before.
int work_in(const fs::path& directory, ChildProcess& self) {
  if (::chdir(directory.c_str()) != 0) return 2;
  const int open_file = ::open("open", O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (open_file < 0) return 3;
  struct stat status {};
  for (std::uint64_t round = 0;; ++round) {
    if (round == 1) self.signal();  // at work
    const auto name = "f" + std::to_string(round % 8);
    const int file = ::open(name.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0) return 4;
    if (::write(file, "bytes", 5) != 5) return 5;
    if (::close(file) != 0) return 6;
    if (::stat(name.c_str(), &status) != 0 || status.st_size != 5) return 7;
    if (::write(open_file, "x", 1) != 1) return 8;
    if (::fstat(open_file, &status) != 0 || status.st_size != static_cast<off_t>(round + 1)) return 9;
    if (::access("stop", F_OK) == 0) return 0;
  }
}

class DaemonThatIsReplaced : public DaemonAsService {
 protected:
  /// Replaces the daemon by `how` under a program at work, several times over.
  void replace_under_work(const std::function<void()>& how) {
    start();
    create("s1");
    ASSERT_TRUE(manager().heard(that_stores("okcvm-s1")));
    ASSERT_OK(::mkdir((mount("s1") / "outputs/here").c_str(), 0755));
    const auto here = mount("s1") / "outputs/here";
    ChildProcess program([&](ChildProcess& self) { return work_in(here, self); });
    ASSERT_TRUE(program.wait());
    const auto before = manager().pid();
    for (int round = 0; round < 3; ++round) {
      how();
      start();
      EXPECT_EQ(ask("GET", "/v1/sessions/s1").json()["state"], "mounted");
      EXPECT_THAT(ask("GET", "/v1/health").json()["affected"], IsEmpty());
    }
    EXPECT_NE(manager().pid(), before);
    write(here / "stop", "");
    EXPECT_EQ(program.join(), 0) << "a call of the program failed (see work_in)";
    EXPECT_THAT(list(here), Contains("open"));
    EXPECT_EQ(stop(), 0);
  }
};

TEST_F(DaemonThatIsReplaced, ByKillLosesNoCallOfAProgram) {
  replace_under_work([this] { EXPECT_EQ(stop(SIGKILL), 128 + SIGKILL); });
}

TEST_F(DaemonThatIsReplaced, ByHangupLosesNoCallOfAProgram) {
  replace_under_work([this] {
    EXPECT_EQ(stop(SIGHUP), 0);
    EXPECT_THAT(manager().all_heard(that_gives_up("okcvm-s1")), IsEmpty());
  });
}

TEST_F(DaemonThatIsReplaced, KeepsTheControlSocketItMade) {
  start();
  ASSERT_TRUE(manager().heard(that_stores("control")));
  const auto before = stat_of(socket());
  EXPECT_EQ(stop(SIGKILL), 128 + SIGKILL);
  HttpClient between(socket());
  ASSERT_TRUE(between.is_connected()) << "the kept socket takes connections while no daemon runs";
  between.send("GET /v1/health HTTP/1.1\r\nHost: okcvm\r\n\r\n");
  start();
  EXPECT_EQ(between.receive().status, 200);
  EXPECT_EQ(stat_of(socket()).st_ino, before.st_ino);
}

TEST_F(DaemonThatIsReplaced, WasKilledBesideASocketUnit) {
  manager().listen(socket(), "okcvmd.socket");
  start();
  create("s1");
  ASSERT_TRUE(manager().heard(that_stores("okcvm-s1")));
  const auto file = open_file(mount("s1") / "outputs/f", O_RDWR | O_CREAT);
  write_all(file, "one ");
  EXPECT_EQ(stop(SIGKILL), 128 + SIGKILL);
  start();
  write_all(file, "two");
  EXPECT_EQ(read(mount("s1") / "outputs/f"), "one two");
  EXPECT_EQ(stop(), 0);
  EXPECT_TRUE(there_is(socket())) << "the socket unit's socket stays";
}

TEST_F(DaemonThatIsReplaced, TakesNoHarmFromDescriptorsThatAreNotItsOwn) {
  start();
  create("s1");
  ASSERT_TRUE(manager().heard(that_stores("okcvm-s1")));
  write(mount("s1") / "outputs/f", "bytes");
  EXPECT_EQ(stop(SIGKILL), 128 + SIGKILL);
  manager().store("okcvm-s1", open_file("/dev/null", O_RDWR));
  manager().store("okcvm-s1", open_file("/dev/fuse", O_RDWR));
  manager().store("okcvm-gone", open_file("/dev/null", O_RDWR));
  manager().store("okcvm-..%2f", open_file("/dev/null", O_RDWR));
  manager().store("stored", open_file("/", O_RDONLY | O_DIRECTORY));
  start();
  EXPECT_EQ(read(mount("s1") / "outputs/f"), "bytes");
  EXPECT_EQ(ask("GET", "/v1/sessions").json()["sessions"].size(), 1u);
  EXPECT_TRUE(manager().heard(that_gives_up("okcvm-gone"))) << "what belongs to no session is given up";
}

TEST_F(DaemonThatIsReplaced, MountsAnewWhatCannotBeTakenOver) {
  start();
  create("s1");
  ASSERT_TRUE(manager().heard(that_stores("okcvm-s1")));
  write(mount("s1") / "outputs/f", "bytes");
  EXPECT_EQ(stop(), 0);
  manager().store("okcvm-s1", open_file("/dev/null", O_RDWR));
  start();
  EXPECT_EQ(read(mount("s1") / "outputs/f"), "bytes");
  EXPECT_EQ(ask("GET", "/v1/health").json()["affected"][0]["id"], "s1");
}

}  // namespace
}  // namespace okcvm::test
