#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/seeds/seed_test.h"
#include "tests/support/expect.h"
#include "tests/support/file_io.h"

/// Seed 2 (002_…), chapter 4: the isolated workspace of a session.
namespace okcvm::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class SeedS2Workspace : public SeedTest {
 protected:
  void SetUp() override {
    SeedTest::SetUp();
    if (IsSkipped()) return;
    daemon().add_skill("pdf", "---\ndescription: how to pdf\n---\nFirst\n");
    write(registry() / "forms.md", "forms");
  }
  static std::filesystem::path registry() { return daemon().root() / "skills/pdf"; }
  std::filesystem::path skill() const { return mount() / "skills/pdf"; }
  void load_skill() { ASSERT_EQ(about("POST", "/skills", {{"name", "pdf"}}).status, 201); }
  HttpAnswer resolve(const std::string& path, const char* flag) {
    return about("POST", "/resolve", {{"path", path}, {"mode", "physical"}, {flag, true}});
  }
};

TEST_F(SeedS2Workspace, Requirement4_1_HasFourDirectoriesAndItsMetadata) {
  EXPECT_THAT(list(mount()), ElementsAre(".metadata.json", "outputs", "skills", "temp", "uploads"));
}

TEST_F(SeedS2Workspace, Requirement4_1_MetadataNamesTheSessionAndItsTime) {
  const auto metadata = Json::parse(read(mount() / ".metadata.json"));
  EXPECT_EQ(metadata["session_id"], id());
  EXPECT_EQ(metadata["created_at"], about("GET", "").json()["created_at"]);
  EXPECT_THAT(metadata["created_at"].get<std::string>(), MatchesRegex("[0-9-]{10}T[0-9:.]{12}Z"));
  EXPECT_ERRNO(EROFS, ::open((mount() / ".metadata.json").c_str(), O_WRONLY));
}

TEST_F(SeedS2Workspace, Requirement4_2_PathsOutsideAreRefused) {
  for (const char* path : {"../../etc/passwd", "/etc/passwd", "outputs/../../x"}) {
    EXPECT_EQ(resolve(path, "must_exist").code(), "path_traversal_blocked") << path;
    EXPECT_EQ(about("GET", std::string("/files/") + path).code(), "path_traversal_blocked") << path;
  }
}

TEST_F(SeedS2Workspace, Requirement4_2_LinksAreFollowedThenChecked) {
  write(uploads() / "data", "bytes");
  ASSERT_OK(::symlink("../uploads/data", (outputs() / "link").c_str()));
  EXPECT_EQ(resolve("outputs/link", "must_exist").json()["path"], "uploads/data");
  ASSERT_OK(::symlink("/etc/passwd", (workspace(id()) / "outputs/escape").c_str()));
  const auto escape = resolve("outputs/escape", "must_exist");
  EXPECT_EQ(escape.status / 100, 4) << escape.body;
}

TEST_F(SeedS2Workspace, Requirement4_2_WhatMustExistIsNotFound) {
  EXPECT_EQ(resolve("outputs/none", "must_exist").code(), "not_found");
  EXPECT_EQ(resolve("outputs/none", "for_write").json()["exists"], false);
}

TEST_F(SeedS2Workspace, Requirement4_2_OnlyThreeDirectoriesAreWritable) {
  load_skill();
  for (const char* directory : {"outputs", "temp", "uploads"}) {
    EXPECT_EQ(resolve(std::string(directory) + "/f", "for_write").status, 200) << directory;
    write(mount() / directory / "f", "bytes");
  }
  for (const char* path : {"skills/pdf/f", "skills/f", "f", ".metadata.json"}) {
    EXPECT_EQ(resolve(path, "for_write").code(), "read_only") << path;
    EXPECT_EQ(send("PUT", std::string("/files/") + path, "bytes").code(), "read_only") << path;
    EXPECT_ERRNO(EROFS, ::open((mount() / path).c_str(), O_WRONLY | O_CREAT, 0644)) << path;
  }
}

TEST_F(SeedS2Workspace, Requirement4_3_ALoadedSkillIsNoCopy) {
  load_skill();
  EXPECT_EQ(read(skill() / "forms.md"), "forms");
  EXPECT_FALSE(there_is(workspace(id())));
}

TEST_F(SeedS2Workspace, Requirement4_3_AChangedSkillIsSeenByEverySession) {
  load_skill();
  const auto other = create({{"skills", {"pdf"}}})["id"].get<std::string>();
  EXPECT_EQ(read(skill() / "forms.md"), "forms");
  write(registry() / "forms.md", "new forms");
  write(registry() / "added.md", "more");
  for (const auto& session : {id(), other}) {
    const auto seen = daemon().mount(session) / "skills/pdf";
    for (int i = 0; i < 1000 && read(seen / "forms.md") != "new forms"; ++i) ::usleep(2000);
    EXPECT_EQ(read(seen / "forms.md"), "new forms");
    EXPECT_EQ(read(seen / "added.md"), "more");
  }
}

TEST_F(SeedS2Workspace, Requirement4_3_ASkillCannotBeChangedByMistake) {
  load_skill();
  EXPECT_ERRNO(EROFS, ::open((skill() / "SKILL.md").c_str(), O_RDWR));
  EXPECT_ERRNO(EROFS, ::unlink((skill() / "SKILL.md").c_str()));
  EXPECT_ERRNO(EROFS, ::chmod((skill() / "SKILL.md").c_str(), 0777));
  EXPECT_ERRNO(EROFS, ::mkdir((skill() / "d").c_str(), 0755));
}

TEST_F(SeedS2Workspace, Requirement4_3_AnUnknownSkillIsNotLoaded) {
  EXPECT_EQ(about("POST", "/skills", {{"name", "none"}}).code(), "not_found");
  EXPECT_EQ(about("POST", "/skills", {{"name", "../pdf"}}).status / 100, 4);
  EXPECT_THAT(list(mount() / "skills"), ElementsAre());
}

TEST_F(SeedS2Workspace, Requirement4_3_LoadingASkillAgainChangesNothing) {
  load_skill();
  EXPECT_EQ(about("POST", "/skills", {{"name", "pdf"}}).json()["skills"], Json({"pdf"}));
}

TEST_F(SeedS2Workspace, Requirement4_3_TheListingTellsSkillsDirectoriesAndFilesApart) {
  load_skill();
  ASSERT_OK(::mkdir((outputs() / "d").c_str(), 0755));
  write(outputs() / "f", "bytes");
  EXPECT_EQ(okcvm({"ls", id(), "skills"}).output, "[SKILL] skills/pdf/\n");
  EXPECT_EQ(okcvm({"ls", id(), "outputs"}).output, "[DIR]  outputs/d/\n[FILE] outputs/f (5 bytes)\n");
  EXPECT_NE(okcvm({"ls", id(), "../.."}).exit_code, 0);
}

TEST_F(SeedS2Workspace, Requirement4_4_AnUploadIsCopiedToUploads) {
  const auto answer = send("POST", "/uploads?name=report.pdf", "%PDF-1.4\n");
  EXPECT_EQ(answer.status, 201);
  const auto upload = answer.json();
  EXPECT_EQ(upload["success"], true);
  EXPECT_EQ(upload["path"], "uploads/report.pdf");
  EXPECT_EQ(upload["name"], "report.pdf");
  EXPECT_EQ(upload["type"], "pdf");
  EXPECT_EQ(read(uploads() / "report.pdf"), "%PDF-1.4\n");
}

TEST_F(SeedS2Workspace, Requirement4_4_TheTypeFollowsTheExtension) {
  const std::vector<std::pair<std::string, std::string>> types{
      {"a.pdf", "pdf"},     {"a.docx", "document"}, {"a.xlsx", "spreadsheet"}, {"a.csv", "csv"},
      {"a.txt", "text"},    {"a.md", "markdown"},   {"a.py", "python"},        {"a.json", "json"},
      {"a.png", "image"},   {"a.jpg", "image"},     {"a.jpeg", "image"},       {"A.PNG", "image"},
      {"a.bin", "unknown"}, {"a", "unknown"}};
  for (const auto& [name, type] : types)
    EXPECT_EQ(send("POST", "/uploads?name=" + name, "x").json()["type"], type) << name;
}

TEST_F(SeedS2Workspace, Requirement4_4_AMissingFileIsAFailure) {
  const auto missing = okcvm({"upload", id(), (daemon().root() / "none").string()});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.output, HasSubstr("not_found"));
  EXPECT_THAT(list(uploads()), ElementsAre());
}

TEST_F(SeedS2Workspace, Requirement4_4_ThePathInTheAnswerIsWhatAMessageRefersTo) {
  const auto path =
      send("POST", "/uploads?name=%E6%95%B0%E6%8D%AE.csv", "a,b\n").json()["path"].get<std::string>();
  EXPECT_EQ(path, "uploads/数据.csv");
  EXPECT_EQ(read(mount() / path), "a,b\n");
}

}  // namespace
}  // namespace okcvm::test
