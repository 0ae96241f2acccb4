#include <gtest/gtest.h>

#include "tests/tools_cli/program_test.h"
#include "tools/cli/host_checks.h"

namespace okcvm::cli::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class ServiceVerbs : public ProgramTest {};

TEST_F(ServiceVerbs, StatusTellsHowTheDaemonIs) {
  const json health{{"status", "ok"},
                    {"version", "0.1.0"},
                    {"pid", 42},
                    {"uptime_seconds", 7200},
                    {"sessions", {{"total", 3}, {"mounted", 2}}}};
  daemon_answers(reply(200, health.dump()));
  EXPECT_THAT(okcvm("status").out,
              AllOf(HasSubstr("okcvmd 0.1.0: ok\n"), HasSubstr("3, of them mounted 2\n")));
  EXPECT_EQ(okcvm("status --json").json(), health);
}

TEST_F(ServiceVerbs, EventsAreLinesAndEndWhenTheDaemonStops) {
  daemon_answers(chunked_reply(
      {": keep-alive\n\nid: 1\nevent: denial\ndata: {\"type\":\"denial\",\"session\":\"12\",",
       "\"at\":\"2026-11-21T22:05:05.123Z\",\"path\":\"skills/\\u001b[2J\",\"errno\":\"EROFS\"}\n\n"},
      "text/event-stream"));
  const auto ran = okcvm("events 12");
  EXPECT_EQ(ran.out, "2026-11-21 22:05:05  denial    12  path=skills/\\x1b[2J errno=EROFS\n");
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.err, HasSubstr("okcvm: busy: the daemon ended the stream"));
  EXPECT_EQ(daemon_->last().target, "/v1/events?session=12");
}

TEST_F(ServiceVerbs, EventsGoOnWithTheNextDaemon) {
  daemon_answers([n = 0](const SeenRequest&) mutable {
    const std::string event = "data: {\"n\":" + std::to_string(++n) + "}\n\n";
    if (n < 3)  // dies before the answer is complete
      return "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 1000\r\n\r\n" + event;
    return reply(404, R"({"error":{"code":"not_found","message":"no such session"}})");
  });
  const auto ran = okcvm("events 12 --json");
  EXPECT_EQ(ran.out, "{\"n\":1}\n{\"n\":2}\n");
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.err, HasSubstr("okcvm: note: the connection broke: reconnecting"));
  EXPECT_THAT(ran.err, HasSubstr("okcvm: not_found: no such session"));
}

TEST_F(ServiceVerbs, EventsEndAfterACount) {
  daemon_answers(
      chunked_reply({"data: {\"n\":1}\n\ndata: {\"n\":2}\n\ndata: {\"n\":3}\n\n"}, "text/event-stream"));
  const auto ran = okcvm("events --json -c 2");
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_EQ(ran.out, "{\"n\":1}\n{\"n\":2}\n");
}

TEST_F(ServiceVerbs, EventsThatCannotBeWrittenAreAnError) {
  for (const char* count : {"1", "2"}) {
    daemon_answers(chunked_reply({"data: {\"n\":1}\n\ndata: {\"n\":2}\n\n"}, "text/event-stream"));
    const auto ran = okcvm_into(std::string("events -c ") + count, ">/dev/full");
    EXPECT_EQ(ran.status, 1) << count;
    EXPECT_THAT(ran.err, HasSubstr("no_space")) << count;
  }
}

/// Two sessions, of which the second answers 100 requests more at each look.
FakeDaemon::Answer two_sessions_at_work() {
  return [looks = 0](const SeenRequest&) mutable {
    const auto session = [](const char* id, int requests) {
      return json{{"id", id},
                  {"state", "mounted"},
                  {"owner", {{"uid", 7}, {"name", nullptr}}},
                  {"last_used_at", "2026-11-21T22:05:05.123Z"},
                  {"counters",
                   {{"requests", requests}, {"errors", 2}, {"denials", 3}, {"open_files", 4}, {"nodes", 5}}}};
    };
    return reply(200, json{{"sessions", {session("idle", 9), session("busy", 100 * ++looks)}}}.dump());
  };
}

TEST_F(ServiceVerbs, TopIsOneTableOffATerminal) {
  daemon_answers(two_sessions_at_work());
  const auto ran = okcvm("top --interval 1");
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_THAT(ran.out,
              ::testing::MatchesRegex("SESSION +STATE +OWNER +REQ/S +REQUESTS +ERRORS +DENIALS +OPEN +INODES "
                                      "+LAST USED\n"
                                      "busy +mounted +7 +[1-9][0-9]* +200 +2 +3 +4 +5 .*\n"
                                      "idle +mounted +7 +0 +9 +2 +3 +4 +5 .*\n"));
  for (const auto& request : daemon_->seen())
    EXPECT_THAT(request.target, HasSubstr("/v1/sessions?"))
        << "it costs the daemon no walk through a workspace";
  EXPECT_EQ(daemon_->seen().size(), 2U);
}

TEST_F(ServiceVerbs, TopIsRowsForPrograms) {
  daemon_answers(two_sessions_at_work());
  const auto rows = okcvm("top --json -i 1 -n 1").json()["sessions"];
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0]["id"], "busy");
  EXPECT_GT(rows[0]["requests_per_second"], 0);
  EXPECT_EQ(rows[0]["denials"], 3);
  EXPECT_EQ(rows[0]["open_files"], 4);
  EXPECT_EQ(rows[0]["last_used_at"], "2026-11-21T22:05:05.123Z");
  EXPECT_EQ(okcvm("top -c 0").out, "");
}

TEST_F(ServiceVerbs, DoctorWorksWithoutADaemon) {
  const auto ran = okcvm("doctor --json --state-dir " + scratch_.path().string() + "/not/yet --mount-root " +
                         scratch_.path().string());
  const auto report = ran.json();
  ASSERT_TRUE(report.is_object()) << ran.out << ran.err;
  EXPECT_EQ(ran.status, report["ok"] == true ? 0 : 1);
  std::map<std::string, json> by_check;
  for (const auto& finding : report["findings"]) {
    by_check[finding["check"].get<std::string>()] = finding;
    EXPECT_TRUE(finding["level"] == "ok" || finding["level"] == "warn" || finding["level"] == "fail")
        << finding;
    EXPECT_TRUE(finding["level"] == "ok" || finding["remedy"] != "") << finding;
  }
  for (const char* check :
       {"rights", "device", "kernel", "state-dir", "mount-root", "group", "descriptors", "mounts", "daemon"})
    EXPECT_TRUE(by_check.contains(check)) << check;
  EXPECT_EQ(by_check["daemon"]["level"], "warn");
  EXPECT_FALSE(std::filesystem::exists(scratch_ / "not")) << "doctor changes nothing";
}

TEST_F(ServiceVerbs, DoctorFailsWhereTheMountRootIsMissing) {
  const auto ran = okcvm("doctor --mount-root " + scratch_.path().string() + "/nowhere");
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.out, HasSubstr("fail " + scratch_.path().string() +
                                 "/nowhere is not a directory\n     -> mkdir -p"));
  EXPECT_THAT(ran.err, HasSubstr("okcvm: forbidden: okcvmd cannot work on this host"));
}

TEST_F(ServiceVerbs, DoctorFailsWhenTheDaemonIsBroken) {
  daemon_answers(reply(500, "<html>"));
  EXPECT_THAT(okcvm("doctor").out, HasSubstr("fail the answer has status 500"));
}

TEST_F(ServiceVerbs, DoctorOfAnOrdinaryUserSaysWhatItCouldNotSee) {
  const auto ran = okcvm::test::run(
      {.arguments = {OKCVM_PROGRAM, "doctor", "--json", "--socket", socket()}, .user = okcvm::test::kAlice});
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_THAT(ran.output, HasSubstr("sudo okcvm doctor"));
}

TEST(HostChecks, MountinfoIsReadWithEscapesAndOptionalFields) {
  const auto mounts = parse_mountinfo(
      "36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - ext3 /dev/root rw\n"
      "40 35 0:57 / /mnt/okcvm-a rw shared:3 master:9 - fuse.okcvm okcvm rw\n"
      "broken line\n");
  ASSERT_EQ(mounts.size(), 2U);
  EXPECT_EQ(mounts[0].mount_point, "/mnt 2");
  EXPECT_EQ(mounts[0].type, "ext3");
  EXPECT_EQ(mounts[1].mount_point, "/mnt/okcvm-a");
  EXPECT_EQ(mounts[1].type, "fuse.okcvm");
  EXPECT_EQ(mounts[1].device_minor, 57U);
}

TEST(HostChecks, KernelIsAskedWhatItsFuseCanDo) {
  if (::geteuid() != 0) GTEST_SKIP() << "mounting needs root";
  const auto features = ask_kernel_for_fuse_features();
  if (!features.known) GTEST_SKIP() << features.problem;
  EXPECT_EQ(features.major, 7U);
  EXPECT_GE(features.minor, 31U) << "Linux 5.10, the oldest that okcvmd is for";
}

}  // namespace
}  // namespace okcvm::cli::test
