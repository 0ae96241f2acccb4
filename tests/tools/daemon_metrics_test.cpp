// What an operator watches: /metrics and the counters of the list of sessions.

#include <gmock/gmock.h>

#include <fstream>
#include <sstream>

#include "tests/tools/daemon_fixture.h"

namespace okcvm::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

class DaemonMetrics : public DaemonFixture {
 protected:
  /// Every sample by its name and labels.
  std::map<std::string, double> metrics(const std::string& query = {}) {
    const auto answer = ask("GET", "/metrics" + query);
    EXPECT_EQ(answer.status, 200) << answer.body;
    std::map<std::string, double> samples;
    std::istringstream lines(answer.body);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("#")) continue;
      const auto space = line.rfind(' ');
      EXPECT_TRUE(samples.emplace(line.substr(0, space), std::stod(line.substr(space + 1))).second) << line;
    }
    return samples;
  }
};

/// What took longer than the longest time that is counted is in the last bucket alone.
TEST_F(DaemonMetrics, HaveNoBucketThatHoldsWhatIsLonger) {
  start();
  create({{"id", "s1"}});
  EXPECT_FALSE(std::filesystem::exists(mount("s1") / "none"));
  const auto samples = metrics();
  EXPECT_TRUE(samples.contains(R"(okcvm_fuse_request_seconds_bucket{operation="LOOKUP",le="4.194304"})"));
  EXPECT_FALSE(samples.contains(R"(okcvm_fuse_request_seconds_bucket{operation="LOOKUP",le="8.388608"})"));
}

TEST_F(DaemonMetrics, TellWhatSnapshotsAndRestoresCost) {
  start();
  const auto created = create({{"id", "s1"}});
  write(mount("s1") / "outputs/f", std::string(5000, 'x'));
  const auto first = ask("POST", "/v1/sessions/s1/snapshots").json()["id"].get<std::string>();
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/snapshots").json()["unchanged"], true);
  write(mount("s1") / "outputs/f", "y");
  EXPECT_EQ(
      ask("POST", "/v1/sessions/s1/restore", json{{"snapshot", first}, {"dry_run", true}}.dump()).status,
      200);
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/restore", json{{"snapshot", first}}.dump()).status, 200);
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/restore", R"({"snapshot":"ffffffff"})").code(), "unknown_snapshot");
  EXPECT_EQ(ask("PUT", "/v1/sessions/s1/files/outputs/g", std::string(1000, 'g')).status, 201);
  EXPECT_EQ(ask("DELETE", "/v1/sessions/s1").status, 200);
  auto samples = metrics();
  EXPECT_EQ(samples["okcvm_session_create_seconds_count"], 1);
  EXPECT_EQ(samples["okcvm_session_delete_seconds_count"], 1);
  EXPECT_EQ(samples["okcvm_snapshot_seconds_count"], 1);
  EXPECT_EQ(samples["okcvm_snapshot_seconds_bucket{le=\"+Inf\"}"], 1);
  EXPECT_EQ(samples["okcvm_snapshot_seconds_bucket{le=\"300\"}"], 1);
  EXPECT_GT(samples["okcvm_snapshot_seconds_sum"], 0);
  EXPECT_EQ(samples["okcvm_snapshot_bytes_total"], 5000);
  EXPECT_EQ(samples["okcvm_restore_seconds_count"], 1);
  EXPECT_EQ(samples["okcvm_restore_failures_total{code=\"unknown_snapshot\"}"], 1);
  EXPECT_GE(samples["okcvm_restore_entries_total"], 1);
  EXPECT_EQ(samples["okcvm_received_bytes_total"], 1000);
  EXPECT_EQ(samples["okcvm_control_requests_total{route=\"/v1/sessions/{id}/files/{path*}\",status=\"201\"}"],
            1);
  EXPECT_GT(samples["okcvm_state_free_bytes"], 0);
}

TEST_F(DaemonMetrics, CountEveryAnswerOnce) {
  start();
  const auto answer_to = [&](const std::string& bytes) {
    auto client = connect_as(0);
    client.send(bytes);
    return client.receive_until("\r\n").substr(9, 3);
  };
  EXPECT_EQ(answer_to("this is no request\r\n\r\n"), "400");
  EXPECT_EQ(answer_to("GET /v1/health HTTP/1.1\r\nHost: x\r\nA: " + std::string(20'000, 'a') + "\r\n\r\n"),
            "431");
  EXPECT_EQ(answer_to("POST /v1/sessions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n"), "501");
  EXPECT_EQ(ask("POST", "/v1/sessions", std::string(2 << 20, ' ')).status, 413);
  EXPECT_EQ(ask("GET", "/no/such/route").status, 404);
  EXPECT_EQ(ask("PUT", "/v1/sessions/s1/files/outputs/g", "g").status, 404);
  auto samples = metrics();
  const auto count = [&](const std::string& route, const std::string& status) {
    return samples["okcvm_control_requests_total{route=\"" + route + "\",status=\"" + status + "\"}"];
  };
  for (const char* status : {"400", "404", "431", "501"}) EXPECT_EQ(count("-", status), 1) << status;
  EXPECT_EQ(count("/v1/sessions", "413"), 1);
  EXPECT_EQ(count("/v1/sessions/{id}/files/{path*}", "404"), 1);
}

TEST_F(DaemonMetrics, NeverGoDownWhenMountsEnd) {
  start({"--keeper"});
  create({{"id", "s1"}});
  for (int i = 0; i < 20; ++i) write(mount("s1") / "outputs" / std::to_string(i), "x");
  std::ofstream denied(mount("s1") / "skills/x");
  EXPECT_FALSE(denied);
  const auto kCreates = "okcvm_fuse_request_seconds_count{operation=\"CREATE\"}";
  auto before = metrics();
  EXPECT_GE(before[kCreates], 20);
  EXPECT_GE(before["okcvm_denials_total"], 1);
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/unmount").status, 200);
  auto after = metrics();
  EXPECT_EQ(after["okcvm_sessions_mounted"], 0);
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/mount").status, 200);
  EXPECT_EQ(ask("DELETE", "/v1/sessions/s1").status, 200);
  auto last = metrics();
  for (auto& [name, value] : before)
    if (name.starts_with("okcvm_fuse") || name.starts_with("okcvm_denials")) {
      EXPECT_GE(after[name], value) << name;
      EXPECT_GE(last[name], after[name]) << name;
    }
}

TEST_F(DaemonMetrics, BeginAtNoughtInEveryDaemon) {
  start({"--keeper"});
  create({{"id", "s1"}});
  for (int i = 0; i < 20; ++i) write(mount("s1") / "outputs" / std::to_string(i), "x");
  kill_daemon();
  auto samples = metrics();
  EXPECT_EQ(samples["okcvm_sessions_mounted"], 1);
  EXPECT_EQ(samples["okcvm_fuse_request_seconds_count{operation=\"CREATE\"}"], 0);
  write(mount("s1") / "outputs/more", "x");
  EXPECT_EQ(metrics()["okcvm_fuse_request_seconds_count{operation=\"CREATE\"}"], 1);
  const auto listed = ask("GET", "/v1/sessions?counters=true").json();
  EXPECT_GT(listed["sessions"][0]["counters"]["requests"], 20) << "a session's own outlive the daemon";
}

TEST_F(DaemonMetrics, NameSessionsOnlyWhenAskedTo) {
  start();
  for (const char* id : {"s1", "s2", "s3"}) create({{"id", id}});
  write(mount("s2") / "outputs/f", "x");
  EXPECT_THAT(ask("GET", "/metrics").body, Not(HasSubstr("session=\"")));
  auto samples = metrics("?sessions=10");
  EXPECT_GT(samples["okcvm_session_requests_total{session=\"s2\"}"], 0);
  EXPECT_GT(samples["okcvm_session_last_used_timestamp_seconds{session=\"s3\"}"], 1e9);
  std::size_t named = 0;
  for (const auto& [name, value] : metrics("?sessions=2"))
    named += name.starts_with("okcvm_session_open_files{");
  EXPECT_EQ(named, 2u);
}

TEST_F(DaemonMetrics, OfSessionsAreInTheListForWhoAsks) {
  start();
  create({{"id", "s1"}});
  write(mount("s1") / "outputs/f", "x");
  std::ifstream open_file(mount("s1") / "outputs/f");
  EXPECT_FALSE(ask("GET", "/v1/sessions").json()["sessions"][0].contains("counters"));
  const auto counters = ask("GET", "/v1/sessions?counters=true").json()["sessions"][0]["counters"];
  EXPECT_EQ(counters["open_files"], 1);
  EXPECT_GT(counters["requests"], 2);
  const auto info = ask("GET", "/v1/sessions/s1/info").json();
  EXPECT_EQ(info["files"], 1);
  EXPECT_EQ(info["bytes"], 1);
}

}  // namespace
}  // namespace okcvm::test
