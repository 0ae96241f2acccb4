// Requests as no client of ours makes them, at the daemon itself: methods, framing, JSON, numbers, encodings,
// ranges.

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <memory>
#include <set>

#include "tests/tools/daemon_fixture.h"
#include "tools/daemon/routes/router.h"

namespace okcvm::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr std::array kMethods{"GET", "POST", "PUT", "DELETE"};

class DaemonRequests : public DaemonWithSession {
 protected:
  void SetUp() override {
    DaemonWithSession::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(ask("PUT", "/v1/sessions/s1/files/outputs/f", "0123456789").status, 201);
    pid_ = serving_pid();
  }
  void TearDown() override {
    if (pid_ > 0) {
      EXPECT_EQ(serving_pid(), pid_);
    }
    DaemonWithSession::TearDown();
  }

  /// A pattern with its names filled in.
  static std::string target_of(std::string_view pattern) {
    std::string target(pattern);
    for (const auto& [name, value] : {std::pair<std::string, std::string>("{id}", "s1"),
                                      {"{exact}", "none"},
                                      {"{path*}", "outputs/f"},
                                      {"{name}", "pdf"},
                                      {"{snapshot}", "0123"},
                                      {"{checkpoint}", "latest"},
                                      {"{agent}", "helper"}})
      if (const auto at = target.find(name); at != target.npos) target.replace(at, name.size(), value);
    return target;
  }
  /// The routes that take a JSON object.
  static std::vector<std::string> json_targets() {
    std::vector<std::string> targets;
    for (const auto& route : daemon::route_table()) {
      if (route.method != daemon::Method::kPost || route.open) continue;
      auto target = target_of(route.pattern);
      if (route.errors == daemon::ErrorStyle::kSeed) target += "?session=s1";
      // Finds its checkpoint before it looks at the body.
      if (!target.ends_with("/latest/restore")) targets.push_back(std::move(target));
    }
    return targets;
  }
  HttpAnswer raw(const std::string& bytes) {
    HttpClient client(socket());
    client.send(bytes);
    return client.receive();
  }

  pid_t pid_ = -1;
};

TEST_F(DaemonRequests, OfAnotherMethodAreToldWhichThereAre) {
  std::map<std::string, std::set<std::string>> methods;
  for (const auto& route : daemon::route_table()) {
    auto& served = methods[target_of(route.pattern)];
    served.insert(kMethods.at(static_cast<std::size_t>(route.method)));
    if (route.method == daemon::Method::kGet) served.insert("HEAD");
  }
  methods.erase(target_of("/v1/sessions/{exact}"));  // is also a session
  for (const auto& [target, served] : methods)
    for (const std::string method : {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "BREW"}) {
      if (served.contains(method) || target == "/v1/sessions/s1") continue;
      auto answer = ask(method, target);
      EXPECT_EQ(answer.status, 405) << method << " " << target;
      std::set<std::string> allowed;
      std::istringstream list(answer.headers["allow"]);
      for (std::string name; std::getline(list >> std::ws, name, ',');) allowed.insert(name);
      EXPECT_EQ(allowed, served) << method << " " << target;
    }
  for (const char* method : {"GET", "OPTIONS", "BREW"}) EXPECT_EQ(ask(method, "/v1/none").status, 404);
}

TEST_F(DaemonRequests, ForTheHeadAloneAreAnsweredLikeTheWhole) {
  HttpClient client(socket());
  for (const char* target :
       {"/v1/sessions/s1/files/outputs/f", "/v1/skills", "/v1/sessions/none", "/v1/none"}) {
    auto whole = client.ask("GET", target), head = client.ask("HEAD", target);
    EXPECT_EQ(head.status, whole.status) << target;
    EXPECT_EQ(head.headers["content-type"], whole.headers["content-type"]) << target;
    EXPECT_EQ(head.headers["content-length"], whole.headers["content-length"]) << target;
    EXPECT_EQ(head.headers["etag"], whole.headers["etag"]) << target;
  }
}

TEST_F(DaemonRequests, MayBePipelinedChunkedAndPatient) {
  HttpClient client(socket());
  client.send(
      "POST /v1/sessions/s1/labels HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
      "9\r\n{\"labels\"\r\nb;x=y\r\n:{\"a\":\"b\"}}\r\n0\r\nTrailer: x\r\n\r\n"
      "PUT /v1/sessions/s1/files/outputs/c HTTP/1.1\r\nTransfer-Encoding: "
      "chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
      "GET /v1/sessions/s1/files/outputs/c HTTP/1.1\r\n\r\n"
      "GET /v1/none HTTP/1.1\r\n\r\n"
      "PUT /v1/sessions/s1/files/outputs/e HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(client.receive().json()["labels"], json({{"a", "b"}}));
  EXPECT_EQ(client.receive().status, 201);
  EXPECT_EQ(client.receive().body, "abc");
  EXPECT_EQ(client.receive().status, 404);
  EXPECT_EQ(client.receive_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("ok");
  EXPECT_EQ(client.receive().status, 201);
  EXPECT_EQ(client.ask("GET", "/v1/sessions/s1/files/outputs/e").body, "ok");
}

TEST_F(DaemonRequests, ThatExpectToContinueAreRefusedBeforeTheirBody) {
  const std::string too_large = "17179869185";
  for (const auto& [request, size, status] : std::vector<std::tuple<std::string, std::string, int>>{
           {"PUT /v1/sessions/s1/files/skills/x", "1000000", 403},
           {"PUT /v1/sessions/s1/files/workdir/x", "1000000", 404},
           {"PUT /v1/sessions/none/files/outputs/x", "1000000", 404},
           {"PUT /v1/sessions/s1/files/outputs/x", too_large, 413},
           {"PUT /v1/sessions/s1/files/outputs/x?mode=9", "1000000", 400},
           {"POST /v1/sessions/s1/uploads?name=x", too_large, 413},
           {"POST /v1/sessions/s1/uploads", "1000000", 400},
           {"POST /v1/sessions/none/uploads?name=x", "1000000", 404}}) {
    const auto answer =
        raw(request + " HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: " + size + "\r\n\r\n");
    EXPECT_EQ(answer.status, status) << request << answer.body;
  }
}

TEST_F(DaemonRequests, HaveBoundedHeadersAndBodies) {
  EXPECT_EQ(raw("GET /v1/health HTTP/1.1\r\nA: " + std::string(17'000, 'a') + "\r\n\r\n").status, 431);
  EXPECT_EQ(raw("GET /v1/sessions?prefix=" + std::string(17'000, 'a') + " HTTP/1.1\r\n\r\n").status, 431);
  std::string many = "GET /v1/health HTTP/1.1\r\n";
  for (int i = 0; i < 5'000; ++i) many += "A:\r\n";
  EXPECT_EQ(raw(many + "\r\n").status, 431);
  const std::string large(1024 * 1024 + 1, ' ');
  for (const auto& target : json_targets()) {
    EXPECT_EQ(ask("POST", target, large).status, 413) << target;
  }
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/labels", R"({"labels":{}})" + large.substr(20)).status, 200);
}

TEST_F(DaemonRequests, WithBadJsonChangeNothing) {
  const std::string deep = "{\"label\":" + std::string(10'000, '[') + std::string(10'000, ']') + "}";
  const std::string deep_open = "{\"label\":" + std::string(10'000, '{');
  for (const auto& target : json_targets())
    for (const auto& [body, reason] : std::vector<std::pair<std::string, std::string>>{
             {deep, "deep"},
             {deep_open, "deep|not valid JSON"},
             {"{\"label\":\"\xc3\x28\"}", "UTF-8"},
             {"{\"\xff\":1}", "UTF-8"},
             {"{\"label\":\"\\ud800\"}", "UTF-8"},
             {R"({"label":"a","label":"b"})", "twice"},
             {R"({"no_such_field":1})", "no_such_field|is missing"},
             {"[]", "object"},
             {"\"text\"", "object"},
             {"1e999", "JSON"},
             {"{} {}", "JSON"},
             {"{", "JSON"},
             {"{'label':1}", "JSON"},
             {"{\"label\":NaN}", "JSON"},
             {std::string("{}\0{", 4), "JSON"}}) {
      const auto answer = ask("POST", target, body);
      EXPECT_EQ(answer.status, 400) << target << " " << body.substr(0, 40) << answer.body;
      EXPECT_EQ(answer.code(), "invalid_request") << target << " " << body.substr(0, 40);
      EXPECT_THAT(answer.body, ::testing::ContainsRegex(reason)) << target << " " << body.substr(0, 40);
    }
  EXPECT_EQ(ask("GET", "/v1/sessions").json()["sessions"].size(), 1u);
  EXPECT_TRUE(ask("GET", "/v1/sessions/s1/snapshots").json()["snapshots"].empty());
  EXPECT_TRUE(ask("GET", "/v1/sessions/s1/checkpoints").json()["checkpoints"].empty());
}

TEST_F(DaemonRequests, WithParametersThatNobodyAskedForChangeNothing) {
  const auto parameter = [](const std::string& target) {
    return target + (target.find('?') == target.npos ? "?" : "&") + "dry_run=true";
  };
  auto targets = json_targets();
  targets.emplace_back("/v1/sessions/s1/uploads?name=u");
  for (const auto& target : targets) {
    const auto answer = ask("POST", parameter(target));
    EXPECT_EQ(answer.code(), "invalid_request") << target;
    EXPECT_THAT(answer.body, HasSubstr("?dry_run")) << target;
  }
  for (const char* target :
       {"/v1/sessions/s1", "/v1/sessions/s1/files/outputs/f", "/v1/sessions/s1/skills/pdf"})
    EXPECT_THAT(ask("DELETE", parameter(target)).body, HasSubstr("?dry_run")) << target;
  EXPECT_EQ(ask("GET", "/v1/sessions").json()["sessions"].size(), 1u);
  EXPECT_EQ(ask("GET", "/v1/sessions/s1").json()["state"], "mounted");
  EXPECT_EQ(ask("GET", "/v1/sessions/s1/files/outputs/f").body, "0123456789");
  EXPECT_TRUE(ask("GET", "/v1/sessions/s1/snapshots").json()["snapshots"].empty());
}

TEST_F(DaemonRequests, GiveCheckpointsNoIdsThatAnAddressCannotHave) {
  for (const char* id :
       {R"("x\u0000y")", R"("\u0000")", R"("a/b")", R"("latest")", R"("")", R"(".")", R"("..")"})
    EXPECT_EQ(ask("POST", "/v1/sessions/s1/checkpoints", R"({"data":1,"id":)" + std::string(id) + "}").code(),
              "invalid_request")
        << id;
  json names = json::object();
  for (int i = 0; i < 60'000; ++i) names[std::to_string(i)] = i;  // takes no time for each pair of them
  ASSERT_EQ(ask("POST", "/v1/sessions/s1/checkpoints", json{{"data", names}}.dump()).status, 201);
  EXPECT_EQ(ask("GET", "/v1/sessions/s1/checkpoints/latest").json()["data"], names);
  ASSERT_EQ(ask("POST", "/v1/sessions/s1/checkpoints", R"({"data":1,"id":"..\n\u007f?"})").status, 201);
  EXPECT_EQ(ask("GET", "/v1/sessions/s1/checkpoints/..%0a%7f%3f").json()["data"], 1);
}

TEST_F(DaemonRequests, HaveWholeNumbersInTheirRange) {
  for (const char* number : {"-1", "18446744073709551616", "9223372036854775808", "-9223372036854775809",
                             "1.5", "1e1", "\"7\"", "true", "[7]", "{}", "1e400", "4294967295", "0.0"}) {
    for (const char* field : {R"({"older_than_days":)", R"({"dry_run":true,"older_than_days":)"})
      EXPECT_EQ(ask("POST", "/v1/clean", std::string(field) + number + "}").code(), "invalid_request")
          << field << number;
    for (const char* field : {R"({"owner":{"uid":)", R"({"owner":{"gid":)"})
      EXPECT_EQ(ask("POST", "/v1/sessions", std::string(field) + number + "}}").code(), "invalid_request")
          << field << number;
  }
  for (const char* number :
       {"-1", "18446744073709551616", "1.5", "1e1", "0x7", "+7", "%207", "7%20", "seven", "%ff", "7,7"})
    for (const char* target :
         {"/v1/sessions?limit=", "/v1/sessions/s1/snapshots?limit=", "/v1/sessions/s1/checkpoints?limit=",
          "/v1/workdirs?limit=", "/v1/sessions/s1/files/outputs?limit=", "/v1/agents/a?owner=",
          "/v1/agents?limit=", "/metrics?sessions=", "/api/session/workspace/snapshots?session=s1&limit="}) {
      const auto answer = ask("GET", std::string(target) + number);
      EXPECT_EQ(answer.code(), "invalid_request") << target << number << answer.body.substr(0, 200);
    }
  EXPECT_EQ(ask("GET", "/v1/sessions").json()["sessions"].size(), 1u);
}

TEST_F(DaemonRequests, MayLeaveEmptyWhatTheyMayLeaveOut) {
  for (const char* target :
       {"/v1/sessions?prefix=&limit=&label=&after=", "/v1/sessions/s1/snapshots?limit=&after=",
        "/v1/sessions/s1/verify?snapshot=", "/v1/sessions/s1/checkpoints?limit=",
        "/v1/sessions/s1/files/outputs?limit=&after=", "/v1/workdirs?limit=", "/v1/agents?limit=&after=",
        "/metrics?sessions=", "/api/session/workspace/snapshots?session=s1&limit="}) {
    const auto answer = ask("GET", target);
    EXPECT_EQ(answer.status, 200) << target << answer.body.substr(0, 200);
  }
  EXPECT_EQ(ask("GET", "/v1/agents/a?owner=").code(), "not_found");
  EXPECT_EQ(ask("PUT", "/v1/sessions/s1/files/outputs/g?mode=", "x").status, 201);
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/uploads?name=", "x").code(), "invalid_request") << "which it needs";
  EXPECT_EQ(ask("GET", "/v1/sessions/s1/files/outputs/f?stat").json()["size"], 10)
      << "a flag is set by its name";
}

TEST_F(DaemonRequests, MayEncodeWhatTheyNameButNotEscapeIt) {
  EXPECT_EQ(ask("GET", "/v1/sessions/%731").json()["id"], "s1");
  EXPECT_EQ(ask("GET", "/v1/sessions/s1/files/%6futputs%2Ff").body, "0123456789");
  EXPECT_EQ(ask("GET", "/v1/sessions/s1/files/outputs%2F%66").body, "0123456789");
  for (const char* id :
       {"%2e%2e", "..", "s1%2f..", "%2fetc", "s1%00", "%00", "%", "%4", "%zz", "s%ff", "%20s1"}) {
    const auto answer = ask("GET", std::string("/v1/sessions/") + id);
    EXPECT_EQ(answer.code(), "invalid_request") << id << answer.body;
  }
  for (const char* path : {"%2e%2e", "outputs/%2e%2e/%2e%2e/x", "outputs%2f..%2f..%2fx", "%2fetc%2fpasswd",
                           "%2e%2e%2f", "outputs/..%2fskills"})
    EXPECT_EQ(ask("GET", std::string("/v1/sessions/s1/files/") + path).code(), "path_traversal_blocked")
        << path;
  for (const char* path : {"outputs/%00", "outputs/f%00.txt", "outputs/%", "outputs/%2", "outputs/%gg"})
    EXPECT_EQ(ask("GET", std::string("/v1/sessions/s1/files/") + path).code(), "invalid_request") << path;
}

TEST_F(DaemonRequests, ForRangesGetThoseOrTheWhole) {
  const auto range = [&](const std::string& value, const std::string& file = "f") {
    auto answer = ask("GET", "/v1/sessions/s1/files/outputs/" + file, {}, {{"Range", value}});
    return std::to_string(answer.status) + " " + answer.headers["content-range"] + " " +
           (answer.status == 416 ? "" : answer.body);
  };
  EXPECT_EQ(range("bytes=0-0"), "206 bytes 0-0/10 0");
  EXPECT_EQ(range("bytes=-1"), "206 bytes 9-9/10 9");
  EXPECT_EQ(range("bytes=5-"), "206 bytes 5-9/10 56789");
  EXPECT_EQ(range("bytes=9-9"), "206 bytes 9-9/10 9");
  EXPECT_EQ(range("bytes=5-99999"), "206 bytes 5-9/10 56789");
  EXPECT_EQ(range("bytes=-99999"), "206 bytes 0-9/10 0123456789");
  for (const char* outside : {"bytes=10-", "bytes=10-20", "bytes=-0", "bytes=9223372036854775807-"})
    EXPECT_EQ(range(outside), "416 bytes */10 ") << outside;
  for (const char* ignored :
       {"bytes=0-1,3-4", "bytes=5-1", "lines=0-1", "bytes=", "bytes=-", "bytes=a-b", "x"})
    EXPECT_EQ(range(ignored), "200  0123456789") << ignored;
  ask("PUT", "/v1/sessions/s1/files/outputs/empty");
  EXPECT_EQ(range("bytes=0-", "empty"), "416 bytes */0 ");
  EXPECT_EQ(range("bytes=-1", "empty"), "416 bytes */0 ");

  const auto tag = ask("GET", "/v1/sessions/s1/files/outputs/f").headers["etag"];
  const auto if_range = [&](const std::string& value) {
    return ask("GET", "/v1/sessions/s1/files/outputs/f", {}, {{"Range", "bytes=0-1"}, {"If-Range", value}})
        .body;
  };
  EXPECT_EQ(if_range(tag), "01");
  EXPECT_EQ(if_range("\"another\""), "0123456789");
}

TEST_F(DaemonRequests, BeyondTheConnectionsThereMayBeWait) {
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 256; ++i) {
    clients.push_back(std::make_unique<HttpClient>(socket()));
    ASSERT_EQ(clients.back()->ask("GET", "/v1/skills").status, 200) << i;
  }
  HttpClient one_more(socket());
  ASSERT_TRUE(one_more.is_connected());
  one_more.send("GET /v1/skills HTTP/1.1\r\n\r\n");
  EXPECT_EQ(clients.front()->ask("GET", "/v1/health").json()["connections"], 256);
  clients.front().reset();
  EXPECT_EQ(one_more.receive().status, 200);
}

TEST_F(DaemonRequests, OfOneUserCannotTakeAllConnections) {
  std::vector<HttpClient> clients;
  for (int i = 0; i < 128; ++i) {
    clients.push_back(connect_as(1234));
    ASSERT_EQ(clients.back().ask("GET", "/v1/skills").status, 200) << i;
  }
  EXPECT_EQ(ask_as(1234, "GET", "/v1/skills").code(), "busy");
  EXPECT_EQ(ask_as(4321, "GET", "/v1/skills").status, 200);
  EXPECT_EQ(ask("GET", "/v1/skills").status, 200);
}

TEST_F(DaemonRequests, ThatAreHalfClosedOrAbandonedLeaveNothing) {
  HttpClient half(socket());
  half.send("GET /v1/sessions/s1/files/outputs/f HTTP/1.1\r\n\r\n");
  half.end_sending();
  EXPECT_EQ(half.receive().body, "0123456789");
  EXPECT_TRUE(half.is_closed_within(5));
  const auto descriptors = count_in_proc(pid_, "fd");
  for (const char* bytes :
       {"GET /v1/heal", "POST /v1/sessions HTTP/1.1\r\nContent-Length: 20\r\n\r\n{\"id\":", "",
        "PUT /v1/sessions/s1/files/outputs/half HTTP/1.1\r\nContent-Length: 100\r\n\r\nsome"}) {
    HttpClient gone(socket());
    gone.send(bytes);
  }
  for (const char* cut :
       {"GET /v1/heal",
        "PUT /v1/sessions/s1/files/outputs/half HTTP/1.1\r\nContent-Length: 100\r\n\r\nsome"}) {
    HttpClient gone(socket());
    gone.send(cut);
    gone.end_sending();
    EXPECT_EQ(gone.receive().status, 400) << cut;
    EXPECT_TRUE(gone.is_closed_within(5));
  }
  EXPECT_TRUE(comes_true([&] { return count_in_proc(pid_, "fd") <= descriptors; }));
  EXPECT_EQ(ask("GET", "/v1/sessions/s1/files/outputs").json()["entries"].size(), 1u);
  EXPECT_EQ(ask("GET", "/v1/sessions").json()["sessions"].size(), 1u);
}

TEST_F(DaemonRequests, ForEventsThatAreReadTooSlowlyAreToldHowManyWereMissed) {
  HttpClient reader(socket());
  reader.send("GET /v1/events?session=s1 HTTP/1.1\r\n\r\n");
  reader.receive_until("okcvm events");
  const auto deny = [&] { EXPECT_EQ(::mkdir((mount("s1") / "new").c_str(), 0755), -1); };
  std::int64_t denied = 10'000, heard = 0, dropped = 0;
  for (int i = 0; i < denied; ++i) deny();
  while (heard + dropped < denied) {
    if (dropped == 0) deny(), ++denied;
    const auto told = reader.receive_until("}\n\n");
    const auto event = json::parse(told.substr(told.find("{\"type\"")));
    EXPECT_EQ(event["session"], "s1");
    EXPECT_TRUE(event["at"].is_string());
    if (event["type"] == "dropped")
      dropped += event["dropped"].get<std::int64_t>();
    else
      ++heard;
  }
  EXPECT_EQ(heard + dropped, denied) << "each is either told or counted";
  EXPECT_GT(dropped, 0);
}

class DaemonLog : public DaemonFixture {};

TEST_F(DaemonLog, IsNotForgedByTheNamesOfSessions) {
  for (const std::string format : {"json", "text"}) {
    start({"--log-format", format});
    for (const char* name : {"%ff", "%1b[2J", "x%0a", "a%20uid=0", "%c2%9b"})
      EXPECT_EQ(ask("GET", std::string("/v1/sessions/") + name).status / 100, 4) << name;
    EXPECT_EQ(stop(), 0) << format;
  }
  for (const char* forged : {"\xff", "\x1b", "[2J", "a uid=0", "\xc2\x9b"})
    EXPECT_EQ(log().find(forged), std::string::npos) << forged;
}

}  // namespace
}  // namespace okcvm::test
