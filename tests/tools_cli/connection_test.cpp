// What okcvm does when the other side of the socket is absent, wrong, slow to read or gone.

#include <sys/stat.h>

#include "tests/tools_cli/program_test.h"

namespace okcvm::cli::test {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class Connection : public ProgramTest {};

TEST_F(Connection, WithoutASocketItSaysWhatToDo) {
  const auto ran = okcvm("list");
  EXPECT_EQ(ran.status, 1);
  EXPECT_EQ(ran.out, "");
  EXPECT_THAT(ran.err, StartsWith("okcvm: not_found: there is no socket " + socket()));
  EXPECT_THAT(ran.err, HasSubstr("systemctl start okcvmd"));
}

TEST_F(Connection, WithoutAListenerItSaysThatTheDaemonEnded) {
  file("dead.sock", "");
  const auto ran = okcvm("list --socket dead.sock");
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.err, StartsWith("okcvm: not_found: no daemon listens on dead.sock"));
}

TEST_F(Connection, WithoutTheRightItSaysWhoHasIt) {
  daemon_answers(reply(200, "{}"));
  ::chmod(socket().c_str(), 0600);
  const auto ran = okcvm::test::run(
      {.arguments = {OKCVM_PROGRAM, "list", "--socket", socket()}, .user = okcvm::test::kAlice});
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_THAT(ran.output, AllOf(StartsWith("okcvm: forbidden: "), HasSubstr("group okcvm")));
}

TEST_F(Connection, SocketPathMayBeLongerThanASocketAddress) {
  const std::string folder = std::string(100, 'd') + "/" + std::string(100, 'e');
  std::filesystem::create_directories(scratch_ / folder);
  daemon_answers(reply(200, R"({"sessions":[]})"));
  std::filesystem::rename(socket(), scratch_ / (folder + "/s"));
  EXPECT_EQ(okcvm("list --socket " + scratch_.path().string() + "/" + folder + "/s").status, 0);
}

TEST_F(Connection, RefusalOfTheDaemonIsPassedOn) {
  daemon_answers(refusal(404, "not_found", "no session '12': see okcvm list"));
  const auto ran = okcvm("info 12");
  EXPECT_EQ(ran.status, 1);
  EXPECT_EQ(ran.out, "");
  EXPECT_EQ(ran.err, "okcvm: not_found: no session '12': see okcvm list\n");
}

TEST_F(Connection, RefusalCannotWriteToTheTerminal) {
  daemon_answers(refusal(404, "not_found", "no \x1b[2J"));
  EXPECT_EQ(okcvm("info 12").err, "okcvm: not_found: no \\x1b[2J\n");
}

TEST_F(Connection, PathOfARefusalIsNamed) {
  daemon_answers(
      reply(403, R"({"error":{"code":"read_only","message":"cannot be changed","path":"skills/pdf"}})"));
  EXPECT_EQ(okcvm("write 12 skills/pdf").err, "okcvm: read_only: cannot be changed (skills/pdf)\n");
}

TEST_F(Connection, AnswersThatAreNotTheDaemonsAreInternalErrors) {
  for (const std::string& bytes :
       {std::string(""), std::string("HTTP/1.1 200"), std::string("SSH-2.0-OpenSSH\r\n\r\n"),
        reply(200, "not json"), reply(500, "<html>"), reply(500, R"({"error":"text"})"), reply(500, "[]"),
        std::string("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}")}) {
    daemon_answers(bytes);
    const auto ran = okcvm("list --json");
    EXPECT_EQ(ran.status, 1) << bytes;
    EXPECT_THAT(ran.err, StartsWith("okcvm: internal: ")) << bytes;
  }
}

TEST_F(Connection, AnswersOfAnotherShapeAreNoCrash) {
  for (const char* body :
       {"null", "[]", "7", "\"x\"", "{\"sessions\":7}", "{\"sessions\":[7,null,{\"id\":[]}]}",
        "{\"entries\":{},\"changes\":[[]],\"requests\":[]}"}) {
    daemon_answers(reply(200, body, "Content-Type: application/json\r\nETag: \"1\"\r\n"));
    for (const char* words : {"list",
                              "info a",
                              "path a",
                              "create",
                              "load a",
                              "unmount a",
                              "reset a",
                              "delete a",
                              "clean",
                              "skills",
                              "skills a",
                              "skill load a b",
                              "ls a",
                              "resolve a b",
                              "snapshot a",
                              "snapshots a",
                              "show a b",
                              "diff a",
                              "restore a b",
                              "undo a",
                              "fork a",
                              "adapt-prompt a",
                              "checkpoint load a",
                              "checkpoint list a",
                              "status",
                              "top",
                              "agents",
                              "agents x",
                              "workdirs",
                              "workdir a"}) {
      const auto ran = okcvm(words);
      EXPECT_LE(ran.status, 1) << words << " " << body << "\n" << ran.err;
    }
  }
}

TEST_F(Connection, EarlyRefusalOfALargeBodyIsHeard) {
  daemon_answers(refusal(413, "quota_exceeded", "too large"));
  daemon_->refuse_early(true);
  file("large", std::string(std::size_t{8} << 20, 'x'));
  const auto ran = okcvm("upload 12 large");
  EXPECT_EQ(ran.status, 1);
  EXPECT_EQ(ran.err, "okcvm: quota_exceeded: large: too large\n");
}

TEST_F(Connection, ReaderThatGoesAwayEndsItQuietly) {
  daemon_answers(reply(200, std::string(std::size_t{8} << 20, 'x'), "ETag: \"1\"\r\n"));
  const auto ran = okcvm_into("read 12 outputs/x", "| head -c 3 >out");
  EXPECT_EQ(ran.out, "xxx");
  EXPECT_EQ(ran.err, "");
  EXPECT_EQ(ran.status, 1);
}

TEST_F(Connection, FullDiskUnderStandardOutputIsAnError) {
  daemon_answers(reply(200, "some bytes", "ETag: \"1\"\r\n"));
  const auto ran = okcvm_into("read 12 outputs/x", ">/dev/full");
  EXPECT_EQ(ran.status, 1);
  EXPECT_EQ(ran.err, "okcvm: no_space: standard output: No space left on device\n");
}

TEST_F(Connection, DaemonThatDiesInTheMiddleOfAFileIsAnError) {
  daemon_answers("HTTP/1.1 200 OK\r\nETag: \"1\"\r\nContent-Length: 100\r\n\r\npart");
  const auto ran = okcvm("read 12 outputs/x");
  EXPECT_EQ(ran.status, 1);
  EXPECT_EQ(ran.out, "part");
  EXPECT_THAT(ran.err,
              StartsWith("okcvm: internal: the daemon closed the connection before its answer was complete"));
}

TEST_F(Connection, WrongUseIsExitStatusTwo) {
  const auto ran = okcvm("restore 12");
  EXPECT_EQ(ran.status, 2);
  EXPECT_EQ(ran.err, "okcvm: invalid_request: 'okcvm restore' needs SNAP; see 'okcvm help restore'\n");
}

}  // namespace
}  // namespace okcvm::cli::test
