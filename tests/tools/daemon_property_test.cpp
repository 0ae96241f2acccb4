#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <tuple>

#include "tests/support/process.h"
#include "tests/tools/daemon_fixture.h"
#include "tools/daemon/routes/router.h"

namespace okcvm::test {
namespace {

using nlohmann::json;

constexpr int kRequests = 3000;

/// Makes requests that are mostly well-formed and mostly wrong. The seed is in every failure's message.
class RequestMaker {
 public:
  explicit RequestMaker(unsigned int seed) : random_(seed) {}

  std::string method() { return pick({"GET", "POST", "PUT", "DELETE", "HEAD"}); }
  std::string target() {
    const auto routes = daemon::route_table();
    std::string target(routes[random_() % routes.size()].pattern);
    for (const char* name : {"{id}", "{exact}", "{path*}", "{name}", "{snapshot}", "{checkpoint}", "{agent}"})
      if (const auto at = target.find(name); at != target.npos)
        target.replace(at, std::string_view(name).size(), part());
    if (random_() % 4 == 0)
      target +=
          "?" + pick({"limit", "session", "stat", "recursive", "text", "name", "from", "x"}) + "=" + part();
    return target;
  }
  std::string body() {
    if (random_() % 8 == 0)
      return pick({"{", "[]", "\xff", "{\"a\":1e999}", "null", "{\"id\":\"s1\",\"id\":\"s1\"}"});
    json object = json::object();
    for (auto n = random_() % 4; n > 0; --n) object[field()] = value(2);
    return object.dump(-1, ' ', false, json::error_handler_t::replace);
  }

 private:
  std::string pick(const std::vector<std::string>& choices) { return choices[random_() % choices.size()]; }
  std::string part() {
    return pick({"s1",
                 "s2",
                 "s",
                 "none",
                 "..",
                 "%2e%2e",
                 "outputs",
                 "outputs/a",
                 "outputs/a/b",
                 "skills/x",
                 "temp",
                 "%ff",
                 "%00",
                 "%zz",
                 "a%2Fb",
                 "",
                 "workdir/x",
                 std::string(300, 'n'),
                 "uploads/u",
                 "latest",
                 "0",
                 "-1",
                 "99999999999999999999",
                 "true",
                 ".metadata.json"});
  }
  std::string field() {
    return pick({"id",      "owner",          "mode",      "labels",  "skills", "agent",    "parent_agent",
                 "workdir", "workdir_policy", "device_id", "git_url", "label",  "snapshot", "paths",
                 "dry_run", "data",           "parent_id", "path",    "prompt", "force",    "older_than_days",
                 "name",    "must_exist",     "x"});
  }
  json value(int depth) {
    switch (random_() % 9) {
      case 0:
        return nullptr;
      case 1:
        return random_() % 2 == 0;
      case 2:
        return static_cast<std::int64_t>(random_()) - (std::int64_t{1} << 31);
      case 3:
        return 1e300;
      case 4:
        return depth > 0 ? json::array({value(depth - 1), value(depth - 1)}) : json::array();
      case 5:
        return depth > 0 ? json{{field(), value(depth - 1)}} : json::object();
      default:
        return pick({"s1", "s2", "", "root", "existing", "repo-bound", "/etc", "~/x", "0700", "outputs/a",
                     "../x", "rebase", std::string("a\0b", 3), std::string(5000, 'v'), "pdf", "\\..\\x"});
    }
  }
  std::mt19937 random_;
};

class DaemonProperty : public DaemonFixture {};

TEST_F(DaemonProperty, NeverCrashesNorAnswersInternal) {
  start({"--workdir-allow-root", root_});
  add_skill("pdf", "x");
  const pid_t pid = serving_pid();
  const unsigned int seed = std::random_device()();
  RequestMaker make(seed);
  auto client = std::make_unique<HttpClient>(socket());
  std::set<int> statuses;
  const std::set<int> wanted{200, 201, 400, 404, 405};
  const auto has_all = [&] { return std::ranges::includes(statuses, wanted); };
  for (int i = 0; i < kRequests || (!has_all() && i < 20 * kRequests); ++i) {
    const auto method = make.method(), target = make.target(), body = make.body();
    if (target.starts_with("/v1/events") && (method == "GET" || method == "HEAD")) continue;
    auto answer = client->ask(method, target, body);
    ASSERT_NE(answer.status, 0) << "seed " << seed << ": " << method << " " << target << " " << body;
    ASSERT_NE(answer.code(), "internal")
        << "seed " << seed << ": " << method << " " << target << " " << body << answer.body;
    if (method != "HEAD" && answer.status >= 400) {
      ASSERT_NE(answer.code(), "") << "seed " << seed << ": " << method << " " << target << " "
                                   << answer.body;
    }
    statuses.insert(answer.status);
    if (answer.headers["connection"] == "close") client = std::make_unique<HttpClient>(socket());
  }
  EXPECT_EQ(serving_pid(), pid);
  EXPECT_TRUE(has_all()) << "seed " << seed;
}

TEST_F(DaemonProperty, SurvivesRequestsThatCrossEachOther) {
  start();
  constexpr int kThreads = 6;
  constexpr int kRounds = 120;
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::set<std::string> codes;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned int>(t));
      auto client = std::make_unique<HttpClient>(socket());
      const std::vector<std::tuple<std::string, std::string, std::string>> requests{
          {"POST", "/v1/sessions", R"({"id":"one"})"},
          {"DELETE", "/v1/sessions/one", ""},
          {"PUT", "/v1/sessions/one/files/outputs/f", "bytes"},
          {"GET", "/v1/sessions/one/files/outputs/f", ""},
          {"GET", "/v1/sessions/one/info", ""},
          {"POST", "/v1/sessions/one/snapshots", ""},
          {"POST", "/v1/sessions/one/unmount", R"({"force":true})"},
          {"POST", "/v1/sessions/one/mount", ""},
          {"POST", "/v1/sessions/one/fork", R"({"id":"two"})"},
          {"DELETE", "/v1/sessions/two", ""},
          {"POST", "/v1/sessions/one/reset", ""}};
      for (int i = 0; i < kRounds; ++i) {
        const auto& [method, target, body] = requests[random() % requests.size()];
        auto answer = client->ask(method, target, body);
        if (answer.headers["connection"] == "close") client = std::make_unique<HttpClient>(socket());
        const std::lock_guard lock(mutex);
        codes.insert(answer.status == 0 ? "no answer" : answer.code());
        EXPECT_NE(answer.code(), "internal") << method << " " << target << answer.body;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_FALSE(codes.contains("no answer"));
  EXPECT_EQ(ask("DELETE", "/v1/sessions/one").status, 200);
  EXPECT_EQ(ask("DELETE", "/v1/sessions/two").status, 200);
  EXPECT_TRUE(std::filesystem::is_empty(root_ / "mnt"));
}

/// Anonymous memory of a process, in KiB.
long anonymous_memory(pid_t process) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  std::string word;
  while (status >> word)
    if (word == "RssAnon:" && status >> word) return std::stol(word);
  return -1;
}

TEST_F(DaemonProperty, LeavesNothingBehindAfterManySessions) {
  constexpr int kSessions = 200;
  start();
  const pid_t pid = serving_pid();
  const auto round = [&] {
    for (int i = 0; i < kSessions; ++i) create({{"id", "s" + std::to_string(i)}});
    write(mount("s7") / "outputs/f", "x");
    const auto listed = ask("GET", "/v1/sessions").json();
    EXPECT_EQ(listed["sessions"].size(), static_cast<std::size_t>(kSessions));
    for (const auto& session : listed["sessions"]) EXPECT_EQ(session["state"], "mounted");
    for (int i = 0; i < kSessions; ++i)
      EXPECT_EQ(ask("DELETE", "/v1/sessions/s" + std::to_string(i)).json()["deleted"], true);
  };
  create({{"id", "first"}});
  ask("DELETE", "/v1/sessions/first");
  const auto descriptors = count_in_proc(pid, "fd"), threads = count_in_proc(pid, "task");
  round();
  // The allocator takes some rounds until it finds enough that was given back. A leak of one object a session
  // would show in every round.
  constexpr long kSettled = 256;  // KiB
  long grown = 0;
  for (int rounds = 0; rounds == 0 || (rounds < 12 && grown >= kSettled && !kIsSanitized); ++rounds) {
    const long before = anonymous_memory(pid);
    round();
    grown = anonymous_memory(pid) - before;
  }
  // The last connection's end is noticed a moment later.
  EXPECT_TRUE(comes_true([&] { return count_in_proc(pid, "fd") <= descriptors; }));
  // Workers that have nothing to do end after some seconds; no request may keep them.
  EXPECT_TRUE(comes_true([&] { return count_in_proc(pid, "task") <= threads; }));
  EXPECT_EQ(read("/proc/" + std::to_string(pid) + "/mountinfo").find(root_.string() + "/mnt"),
            std::string::npos);
  for (const char* folder : {"mnt", "run/sessions", "state/workspaces", "state/snapshots", "state/discarded"})
    EXPECT_TRUE(std::filesystem::is_empty(root_ / folder)) << folder;
  if (!kIsSanitized) {
    EXPECT_LT(grown, kSettled) << "KiB more with every 200 sessions";
  }
}

}  // namespace
}  // namespace okcvm::test
