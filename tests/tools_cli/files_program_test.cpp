#include "tests/support/file_io.h"
#include "tests/tools_cli/program_test.h"

namespace okcvm::cli::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

/// Every byte there is, several times over, in no text's order.
std::string any_bytes(std::size_t size) {
  std::string bytes;
  for (std::size_t i = 0; i < size; ++i) bytes += static_cast<char>((i * 7 + i / 256) & 0xFF);
  return bytes;
}

class FileVerbs : public ProgramTest {};

TEST_F(FileVerbs, ReadGivesTheBytesUnchanged) {
  const auto bytes = any_bytes(700000);
  daemon_answers(reply(200, bytes, "ETag: \"1\"\r\n"));
  const auto ran = okcvm("read 12 'outputs/a b.bin'");
  EXPECT_EQ(ran.status, 0);
  EXPECT_TRUE(ran.out == bytes);
  EXPECT_EQ(daemon_->last().target, "/v1/sessions/12/files/outputs/a%20b.bin");
}

TEST_F(FileVerbs, ReadOfADirectoryPointsToLs) {
  daemon_answers(reply(200, R"({"path":"outputs","entries":[]})"));
  const auto ran = okcvm("read 12 outputs");
  EXPECT_EQ(ran.status, 1);
  EXPECT_EQ(ran.out, "");
  EXPECT_EQ(ran.err, "okcvm: invalid_request: outputs is a directory: use 'okcvm ls'\n");
}

TEST_F(FileVerbs, ReadAsJsonCarriesTextAndBytes) {
  daemon_answers(reply(200, "text\n", "ETag: \"1\"\r\n"));
  EXPECT_EQ(okcvm("read 12 a --json").json(),
            (json{{"path", "a"}, {"size", 5}, {"encoding", "utf-8"}, {"content", "text\n"}}));
  daemon_answers(reply(200, "\xff\xfe", "ETag: \"1\"\r\n"));
  EXPECT_EQ(okcvm("read 12 a --json").json(),
            (json{{"path", "a"}, {"size", 2}, {"encoding", "base64"}, {"content", "//4="}}));
}

TEST_F(FileVerbs, WriteStreamsStandardInput) {
  daemon_answers(reply(201, R"({"path":"outputs/x","size":700000,"etag":"\"7\"","created":true})"));
  const auto bytes = any_bytes(700000);
  const auto from_file = okcvm("write 12 outputs/x --mode 0600", bytes);
  EXPECT_EQ(from_file.status, 0) << from_file.err;
  EXPECT_TRUE(daemon_->last().body == bytes);
  EXPECT_EQ(daemon_->last().method + " " + daemon_->last().target,
            "PUT /v1/sessions/12/files/outputs/x?mode=0600");
  EXPECT_EQ(daemon_->last().headers["content-length"], "700000");
}

TEST_F(FileVerbs, WriteSendsAPipeInChunks) {
  daemon_answers(reply(201, "{}"));
  const auto bytes = any_bytes(700000);
  file("source", bytes);
  const auto ran = okcvm::test::run_script(
      "cat source | " OKCVM_PROGRAM " write 12 outputs/x --json --socket " + socket(), scratch_.path());
  EXPECT_EQ(ran.exit_code, 0) << ran.output;
  EXPECT_TRUE(daemon_->last().body == bytes);
  EXPECT_EQ(daemon_->last().headers["transfer-encoding"], "chunked");
}

TEST_F(FileVerbs, WriteOfNothingMakesAnEmptyFile) {
  daemon_answers(reply(201, "{}"));
  EXPECT_EQ(okcvm("write 12 outputs/x </dev/null").status, 0);
  EXPECT_EQ(daemon_->last().headers["transfer-encoding"], "chunked");
  EXPECT_EQ(daemon_->last().body, "");
}

TEST_F(FileVerbs, WriteCanDependOnWhatIsThere) {
  daemon_answers(reply(200, "{}"));
  okcvm("write 12 x --if-match '\"7\"'", "a");
  EXPECT_EQ(daemon_->last().headers["if-match"], "\"7\"");
  EXPECT_EQ(okcvm("write 12 x --if-match ''", "a").status, 2) << "it would be no condition";
  okcvm("write 12 x --new", "a");
  EXPECT_EQ(daemon_->last().headers["if-none-match"], "*");
}

TEST_F(FileVerbs, UploadNamesTheFileByItsLastPart) {
  daemon_answers([](const SeenRequest& request) {
    return reply(201, json{{"path", "uploads/report.pdf"},
                           {"size", request.body.size()},
                           {"type", "pdf"},
                           {"mime_type", "application/pdf"}}
                          .dump());
  });
  std::filesystem::create_directory(scratch_ / "sub");
  file("sub/report.pdf", "%PDF-1.7");
  const auto ran = okcvm("upload 12 sub/report.pdf");
  EXPECT_EQ(ran.out,
            "PATH                SIZE  TYPE  MIME TYPE\n"
            "uploads/report.pdf   8 B  pdf   application/pdf\n");
  EXPECT_EQ(daemon_->last().target, "/v1/sessions/12/uploads?name=report.pdf");
  EXPECT_EQ(daemon_->last().body, "%PDF-1.7");
}

/// It says that it has no bytes.
TEST_F(FileVerbs, UploadSendsWhatTheKernelTellsInAFile) {
  daemon_answers(reply(201, R"({"path":"uploads/version"})"));
  okcvm("upload 12 /proc/version");
  EXPECT_EQ(daemon_->last().body, okcvm::test::read("/proc/version"));
}

TEST_F(FileVerbs, UploadOfStandardInputNeedsAName) {
  daemon_answers(reply(201, R"({"path":"uploads/x"})"));
  EXPECT_EQ(okcvm("upload 12 -", "bytes").status, 2);
  EXPECT_EQ(okcvm("upload 12 - --name x", "bytes").status, 0);
  EXPECT_EQ(daemon_->last().body, "bytes");
}

TEST_F(FileVerbs, UploadStopsAtTheFirstFailureAndShowsWhatArrived) {
  daemon_answers(reply(201, R"({"path":"uploads/a"})"));
  file("a", "1");
  const auto ran = okcvm("upload 12 a missing b --json");
  EXPECT_EQ(ran.status, 1);
  EXPECT_EQ(ran.json(), (json{{"uploads", {{{"path", "uploads/a"}}}}}));
  EXPECT_EQ(ran.err, "okcvm: not_found: missing: No such file or directory\n");
}

TEST_F(FileVerbs, UploadOfADirectoryIsRefusedHere) {
  daemon_answers(reply(201, "{}"));
  const auto ran = okcvm("upload 12 .");
  EXPECT_EQ(ran.status, 1);
  EXPECT_EQ(ran.err, "okcvm: invalid_request: .: Is a directory\n");
  EXPECT_TRUE(daemon_->seen().empty());
}

TEST_F(FileVerbs, RmEndsWithTheFirstFileThatCannotBeRemoved) {
  daemon_answers([](const SeenRequest& request) {
    EXPECT_EQ(request.method, "DELETE");
    if (request.target.ends_with("/none?recursive=true"))
      return refusal(404, "not_found", "nothing is there");
    return reply(200, json{{"path", "outputs/a b"}, {"deleted", true}}.dump());
  });
  EXPECT_EQ(okcvm("rm 12 'outputs/a b'").out, "removed outputs/a b\n");
  EXPECT_EQ(daemon_->last().target, "/v1/sessions/12/files/outputs/a%20b");
  const auto ran = okcvm("rm 12 -r 'outputs/a b' outputs/none outputs/c");
  EXPECT_EQ(ran.status, 1);
  EXPECT_EQ(ran.out, "removed outputs/a b\n");
  EXPECT_EQ(ran.err, "okcvm: not_found: nothing is there\n");
  EXPECT_EQ(daemon_->last().target, "/v1/sessions/12/files/outputs/none?recursive=true");
}

TEST_F(FileVerbs, LsShowsSkillsDirectoriesAndFilesWithTheirSizes) {
  daemon_answers([](const SeenRequest& request) {
    if (request.target.ends_with("?stat=true")) return reply(200, R"({"type":"directory"})");
    return reply(200, R"({"path":"","entries":[
      {"name":"pdf","path":"skills/pdf","type":"directory","skill":true},
      {"name":"d","path":"outputs/d","type":"directory"},
      {"name":"a","path":"outputs/a\u001b[2J","type":"file","size":2345},
      {"name":"l","path":"outputs/l","type":"symlink","target":"a"},
      {"name":"e","path":"outputs/e","type":"symlink","target":null},
      {"name":"p","path":"outputs/p","type":"other"}],"truncated":false})");
  });
  EXPECT_EQ(okcvm("ls 12 .").out,
            "[SKILL] skills/pdf/\n"
            "[DIR]  outputs/d/\n"
            "[FILE] outputs/a\\x1b[2J (2345 bytes)\n"
            "[LINK] outputs/l -> a\n"
            "[LINK] outputs/e (leads out of the session)\n"
            "[OTHER] outputs/p\n");
}

TEST_F(FileVerbs, LsReadsALongListingPageByPage) {
  daemon_answers([](const SeenRequest& request) {
    if (request.target.ends_with("?stat=true")) return reply(200, R"({"type":"directory"})");
    const bool first = request.target.ends_with("after=");
    return reply(200, first ? R"({"entries":[{"name":"a","path":"a","type":"file"}],"truncated":true})"
                            : R"({"entries":[{"name":"b","path":"b","type":"file"}],"truncated":false})");
  });
  EXPECT_EQ(okcvm("ls 12 outputs --json").json()["entries"].size(), 2U);
  EXPECT_EQ(daemon_->last().target, "/v1/sessions/12/files/outputs?after=a");
}

TEST_F(FileVerbs, LsGoesOnAfterANameThatIsNotText) {
  daemon_answers([](const SeenRequest& request) {
    if (request.target.ends_with("?stat=true")) return reply(200, R"({"type":"directory"})");
    const bool first = request.target.ends_with("after=");
    return reply(
        200, first
                 ? R"({"entries":[{"name":"\ufffd","path":"d/\ufffd","encoded_path":"d/%80","type":"file"}],)"
                   R"("truncated":true})"
                 : R"({"entries":[{"name":"b","path":"d/b","type":"file"}],"truncated":false})");
  });
  EXPECT_EQ(okcvm("ls 12 d --json").json()["entries"].size(), 2U);
  EXPECT_EQ(daemon_->last().target, "/v1/sessions/12/files/d?after=%80");
}

TEST_F(FileVerbs, LsOfAFileShowsTheFile) {
  daemon_answers(reply(200, R"({"path":"outputs/a","type":"file","size":1})"));
  EXPECT_EQ(okcvm("ls 12 outputs/a").out, "[FILE] outputs/a (1 bytes)\n");
}

TEST_F(FileVerbs, ResolvePrintsThePathInTheMount) {
  daemon_answers(reply(200, R"({"path":"outputs/x","mount_path":"/mnt/okcvm-12/outputs/x"})"));
  EXPECT_EQ(okcvm("resolve 12 /mnt/x --mode rebase --must-exist --for-write").out,
            "/mnt/okcvm-12/outputs/x\n");
  EXPECT_EQ(json::parse(daemon_->last().body),
            (json{{"path", "/mnt/x"}, {"mode", "rebase"}, {"must_exist", true}, {"for_write", true}}));
}

TEST_F(FileVerbs, AdaptPromptGoesFromInputToOutput) {
  daemon_answers(reply(200, R"({"prompt":"look in /mnt/okcvm-12/","replaced":1})"));
  EXPECT_EQ(okcvm("adapt-prompt 12", "look in /mnt/okcomputer/").out, "look in /mnt/okcvm-12/");
  EXPECT_EQ(json::parse(daemon_->last().body), (json{{"prompt", "look in /mnt/okcomputer/"}}));
  EXPECT_THAT(okcvm("adapt-prompt 12", "\xff").err, HasSubstr("not UTF-8"));
  EXPECT_THAT(okcvm("adapt-prompt 12", std::string((std::size_t{1} << 20) + 1, 'x')).err,
              HasSubstr("longer than 1.0 MiB"));
}

}  // namespace
}  // namespace okcvm::cli::test
