// What users of the host who are not root can see and do: their own sessions, nothing of anybody else's.

#include <gmock/gmock.h>

#include "tests/tools/daemon_fixture.h"
#include "tools/daemon/routes/router.h"

namespace okcvm::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uid_t kAlice = 1234;
constexpr uid_t kMallory = 4321;

class DaemonPeers : public DaemonFixture {
 protected:
  void SetUp() override {
    DaemonFixture::SetUp();
    if (IsSkipped()) return;
    start();
    add_skill("pdf", "how to");
    ASSERT_EQ(ask_as(kAlice, "POST", "/v1/sessions", R"({"id":"alices","agent":"helper"})").status, 201);
    ASSERT_EQ(ask_as(kAlice, "PUT", "/v1/sessions/alices/files/outputs/secret", "secret").status, 201);
    ASSERT_EQ(ask_as(kAlice, "POST", "/v1/sessions/alices/snapshots").status, 201);
    ASSERT_EQ(ask_as(kAlice, "POST", "/v1/sessions/alices/checkpoints", R"({"id":"c1","data":1})").status,
              201);
  }

  /// The route with its names filled in.
  static std::string target_of(const daemon::Route& route, const std::string& session) {
    std::string target(route.pattern);
    for (const auto& [name, value] : {std::pair<std::string, std::string>("{id}", session),
                                      {"{exact}", session},
                                      {"{path*}", "outputs/secret"},
                                      {"{name}", "pdf"},
                                      {"{snapshot}", "0123"},
                                      {"{checkpoint}", "latest"},
                                      {"{agent}", "helper"}})
      if (const auto at = target.find(name); at != target.npos) target.replace(at, name.size(), value);
    if (route.errors == daemon::ErrorStyle::kSeed) target += "?session=" + session;
    if (target.ends_with("/uploads")) target += "?name=x";
    return target;
  }
  static std::string method_of(const daemon::Route& route) {
    constexpr std::array kNames{"GET", "POST", "PUT", "DELETE"};
    return kNames.at(static_cast<std::size_t>(route.method));
  }
  static json without_request_id(json answer) {
    if (answer.contains("error")) answer["error"].erase("request_id");
    return answer;
  }
};

TEST_F(DaemonPeers, CannotTellOthersSessionsFromNone) {
  std::size_t tried = 0;
  for (const auto& route : daemon::route_table()) {
    const bool names_session =
        route.pattern.find("{id}") != route.pattern.npos || route.errors == daemon::ErrorStyle::kSeed;
    if (!names_session) continue;
    ++tried;
    const auto what = method_of(route) + " " + target_of(route, "alices");
    const auto others = ask_as(kMallory, method_of(route), target_of(route, "alices"));
    const auto none = ask_as(kMallory, method_of(route), target_of(route, "nobodys"));
    EXPECT_EQ(others.status, 404) << what << others.body;
    EXPECT_EQ(others.code(), "not_found") << what;
    EXPECT_EQ(without_request_id(others.json()), without_request_id(none.json())) << what;
    EXPECT_EQ(ask_as(kMallory, method_of(route), target_of(route, "alice")).status, 404) << what;  // a prefix
  }
  EXPECT_GT(tried, 25u);
  EXPECT_EQ(ask_as(kMallory, "DELETE", "/v1/sessions/alices").json(),
            (json{{"id", "alices"}, {"deleted", false}}));
  EXPECT_EQ(read(mount("alices") / "outputs/secret"), "secret");
  EXPECT_EQ(ask_as(kAlice, "GET", "/v1/sessions/alices").json()["state"], "mounted");
}

TEST_F(DaemonPeers, SeeNothingOfOthersInLists) {
  ASSERT_EQ(ask_as(kMallory, "POST", "/v1/sessions", R"({"id":"mallorys"})").status, 201);
  for (const char* target : {"/v1/sessions", "/v1/sessions?counters=true", "/v1/sessions?prefix=alice",
                             "/v1/agents", "/v1/workdirs", "/v1/health"}) {
    const auto answer = ask_as(kMallory, "GET", target);
    EXPECT_EQ(answer.status, 200) << target;
    EXPECT_THAT(answer.body, Not(HasSubstr("alices"))) << target;
    EXPECT_THAT(answer.body, Not(HasSubstr("helper"))) << target;
  }
  EXPECT_EQ(ask_as(kMallory, "GET", "/v1/health").json()["sessions"]["total"], 1);
  EXPECT_EQ(ask_as(kMallory, "GET", "/v1/agents/helper").code(), "not_found");
  EXPECT_EQ(ask_as(kMallory, "GET", "/v1/agents/helper?owner=1234").code(), "not_found");
  EXPECT_EQ(ask_as(kMallory, "GET", "/v1/events?session=alices").code(), "not_found");
  EXPECT_EQ(ask_as(kMallory, "GET", "/metrics").code(), "forbidden");
  EXPECT_THAT(ask("GET", "/metrics?sessions=1000").body, HasSubstr("session=\"alices\""));
}

TEST_F(DaemonPeers, CreateAndCleanOnlyTheirOwn) {
  for (const char* body :
       {R"({"owner":{"uid":1234}})", R"({"owner":{"uid":0}})", R"({"owner":{"uid":4321,"gid":0}})",
        R"({"owner":{"gid":1234}})", R"({"id":"x","owner":{"uid":0,"gid":0}})"})
    EXPECT_EQ(ask_as(kMallory, "POST", "/v1/sessions", body).code(), "forbidden") << body;
  // An agent's name is its owner's: the same name is another agent, and a parent of another's is none.
  EXPECT_EQ(ask_as(kMallory, "POST", "/v1/sessions", R"({"agent":"x","parent_agent":"helper"})").code(),
            "not_found");
  const auto own = ask_as(kMallory, "POST", "/v1/sessions", R"({"agent":"helper"})");
  EXPECT_EQ(own.status, 201) << own.body;
  EXPECT_NE(own.json()["id"], "alices");
  const auto cleaned = ask_as(kMallory, "POST", "/v1/clean", R"({"older_than_days":0})").json();
  EXPECT_EQ(cleaned["removed"], json({own.json()["id"]}));
  EXPECT_EQ(ask_as(kAlice, "GET", "/v1/sessions").json()["sessions"].size(), 1u);
}

TEST_F(DaemonPeers, ReadNoTextInComparisonsThatModesRefuseThem) {
  write(mount("alices") / "outputs/roots", "hush");
  ASSERT_EQ(::chmod((mount("alices") / "outputs/roots").c_str(), 0600), 0);
  const auto compared = [this](uid_t uid, const std::string& target) {
    const auto answer = ask_as(uid, "GET", "/v1/sessions/alices/" + target);
    EXPECT_THAT(answer.body, HasSubstr("outputs/roots")) << target;
    return answer.body;
  };
  EXPECT_THAT(compared(kAlice, "diff?text=true"), Not(HasSubstr("hush")));
  EXPECT_THAT(compared(0, "diff?text=true"), HasSubstr("hush"));
  const std::string id = ask_as(kAlice, "POST", "/v1/sessions/alices/snapshots").json()["id"];
  EXPECT_THAT(compared(kAlice, "snapshots/" + id + "?text=true"), Not(HasSubstr("hush")));
  EXPECT_THAT(compared(0, "snapshots/" + id + "?text=true"), HasSubstr("hush"));
  ::chown((mount("alices") / "outputs/roots").c_str(), kAlice, kAlice);
  EXPECT_THAT(compared(kAlice, "snapshots/" + id + "?text=true"), Not(HasSubstr("hush"))) << "as it was then";
}

TEST_F(DaemonPeers, HearOnlyOfTheirOwn) {
  ASSERT_EQ(ask_as(kMallory, "POST", "/v1/sessions", R"({"id":"mallorys"})").status, 201);
  auto listening = connect_as(kMallory);
  listening.send("GET /v1/events HTTP/1.1\r\nHost: okcvm\r\n\r\n");
  listening.receive_until("okcvm events");
  EXPECT_EQ(ask_as(kAlice, "POST", "/v1/sessions/alices/reset").status, 200);
  EXPECT_EQ(ask_as(kMallory, "POST", "/v1/sessions/mallorys/reset").status, 200);
  EXPECT_THAT(listening.receive_until("reset"), Not(HasSubstr("alices")));
}

TEST_F(DaemonPeers, CannotTakeThePlacesOfOthers) {
  ASSERT_EQ(stop(), 0);
  start({"--max-connections", "16", "--max-connections-per-user", "2"});
  std::vector<HttpClient> held;
  for (int i = 0; i < 60; ++i) held.push_back(connect_as(kMallory));
  EXPECT_EQ(ask_as(kAlice, "GET", "/v1/sessions/alices").status, 200);
  // The first two are served if they ask; few others are told, and the rest are let go without a word.
  int told = 0;
  for (std::size_t i = 2; i < held.size(); ++i) {
    const auto answer = held[i].receive();
    EXPECT_TRUE(answer.status == 0 || answer.code() == "busy") << answer.body;
    told += answer.status != 0;
  }
  EXPECT_GT(told, 0);
  EXPECT_LT(told, 16);
  EXPECT_EQ(held.front().ask("GET", "/v1/health").status, 200);
}

TEST_F(DaemonPeers, TogetherCannotTakeThePlacesOfRoot) {
  ASSERT_EQ(stop(), 0);
  start({"--max-connections", "8", "--max-connections-per-user", "4"});
  std::vector<HttpClient> held;
  for (const uid_t user : {kAlice, kMallory, uid_t{4711}})
    for (int i = 0; i < 40; ++i) held.push_back(connect_as(user));
  EXPECT_EQ(ask("GET", "/v1/health").status, 200);
  held.clear();
  EXPECT_TRUE(comes_true([&] { return ask_as(kAlice, "GET", "/v1/sessions/alices").status == 200; }));
}

TEST_F(DaemonPeers, AreServedWhileRootHasAllItsConnectionsInUse) {
  ASSERT_EQ(stop(), 0);
  start({"--max-connections", "2"});
  std::vector<HttpClient> live;
  for (int i = 0; i < 2; ++i) {
    live.emplace_back(socket()).send("GET /v1/events HTTP/1.1\r\nHost: okcvm\r\n\r\n");
    live.back().receive_until("okcvm events");
  }
  HttpClient third(socket());
  third.send("GET /v1/health HTTP/1.1\r\nHost: okcvm\r\n\r\n");
  EXPECT_EQ(ask_as(kAlice, "GET", "/v1/sessions/alices").status, 200);
  EXPECT_TRUE(third.is_silent_for(std::chrono::milliseconds(200)));
  live.pop_back();
  EXPECT_EQ(third.receive().status, 200);
}

TEST_F(DaemonPeers, AreServedWhileMoreOfRootsConnectionsWaitThanMay) {
  ASSERT_EQ(stop(), 0);
  start({"--max-connections", "2"});
  std::vector<HttpClient> live, waiting;
  for (int i = 0; i < 2; ++i) {
    live.emplace_back(socket()).send("GET /v1/events HTTP/1.1\r\nHost: okcvm\r\n\r\n");
    live.back().receive_until("okcvm events");
  }
  for (int i = 0; i < 2; ++i) waiting.emplace_back(socket());
  EXPECT_EQ(ask("GET", "/v1/health").code(), "busy");
  EXPECT_EQ(ask_as(kAlice, "GET", "/v1/sessions/alices").status, 200);
  waiting.clear();
  HttpClient next(socket());
  next.send("GET /v1/health HTTP/1.1\r\nHost: okcvm\r\n\r\n");
  EXPECT_TRUE(next.is_silent_for(std::chrono::milliseconds(200)))
      << "the places of those that are gone are free";
  live.pop_back();
  EXPECT_EQ(next.receive().status, 200);
}

TEST_F(DaemonPeers, ActInASessionWithTheirOwnRights) {
  std::filesystem::permissions(mount("alices") / "outputs/secret", std::filesystem::perms(0000));
  EXPECT_EQ(ask_as(kAlice, "GET", "/v1/sessions/alices/files/outputs/secret").code(), "forbidden");
  EXPECT_EQ(ask("GET", "/v1/sessions/alices/files/outputs/secret").body, "secret");
  ASSERT_EQ(ask("PUT", "/v1/sessions/alices/files/outputs/roots/file", "r").status, 201);
  EXPECT_EQ(ask_as(kAlice, "PUT", "/v1/sessions/alices/files/outputs/roots/file", "a").code(), "forbidden");
  EXPECT_EQ(ask_as(kAlice, "DELETE", "/v1/sessions/alices/files/outputs/roots/file").code(), "forbidden");
}

}  // namespace
}  // namespace okcvm::test
