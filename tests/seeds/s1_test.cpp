#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/seeds/seed_test.h"
#include "tests/support/expect.h"
#include "tests/support/file_io.h"

/// Seed 1 (001_…): the same workspace in other words; here is what those words add.
namespace okcvm::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class SeedS1 : public SeedTest {};

TEST_F(SeedS1, Requirement1_1_TheInternalRootIsNotOneOfTheSessionsPaths) {
  write(outputs() / "f", "bytes");
  EXPECT_EQ(mode_of(workspace(id())), 0700u);
  EXPECT_EQ(stat_of(workspace(id())).st_uid, 0u);
}

TEST_F(SeedS1, Requirement1_2_ArtefactsAreNamedWithoutInternalPaths) {
  const auto state = (daemon().root() / "state").string();
  for (const auto& answer : {send("PUT", "/files/outputs/a", "1"), about("GET", ""), about("GET", "/info"),
                             about("GET", "/files/outputs"), about("GET", "/files/outputs/none"),
                             about("POST", "/snapshots"), send("PUT", "/files/skills/x", "1"),
                             about("POST", "/resolve", {{"path", "outputs/a"}}), ask("GET", "/v1/health")})
    EXPECT_THAT(answer.body, Not(HasSubstr(state)));
}

TEST_F(SeedS1, Requirement1_3_CleanupIgnoresWhatIsMissing) {
  EXPECT_FALSE(there_is(workspace(id())));
  EXPECT_EQ(about("DELETE", "").json()["deleted"], true) << "nothing was ever written";
  const auto never = ask("DELETE", "/v1/sessions/never");
  EXPECT_EQ(never.status, 200);
  EXPECT_EQ(never.json()["deleted"], false);
}

TEST_F(SeedS1, Requirement2_1_NothingLeadsAboveTheWorkspace) {
  EXPECT_ERRNO(EPERM, ::symlink("/etc/passwd", (outputs() / "absolute").c_str()));
  EXPECT_ERRNO(EPERM, ::symlink("../../etc/passwd", (outputs() / "relative").c_str()));
  EXPECT_ERRNO(EPERM, ::symlink("a/../../../etc", (outputs() / "through").c_str()));
  EXPECT_OK(::symlink("../uploads/a", (outputs() / "inside").c_str()));
  // One that a host process put there.
  write(outputs() / "f", "makes the folder");
  ASSERT_OK(::symlink("/etc/passwd", (workspace(id()) / "outputs/planted").c_str()));
  EXPECT_ERRNO(EPERM, ::open((outputs() / "planted").c_str(), O_RDONLY));
  EXPECT_EQ(about("GET", "/files/outputs/planted").status / 100, 4);
}

TEST_F(SeedS1, Requirement2_2_OnlyTheLegacyMountIsReplaced) {
  const std::string untouched = "See /mnt/okcomputers/x and /mnt/other/okcomputer/.";
  const auto answer = about("POST", "/adapt-prompt", {{"prompt", untouched}});
  EXPECT_EQ(answer.json()["prompt"], untouched);
  EXPECT_EQ(answer.json()["replaced"], 0);
  const auto replaced = about("POST", "/adapt-prompt", {{"prompt", "cd /mnt/okcomputer/"}}).json()["prompt"];
  EXPECT_EQ(replaced, "cd " + mount().string() + "/");
}

TEST_F(SeedS1, Requirement3_1_TheRepositoryIsReadByStockGit) {
  write(outputs() / "report.md", "# Report\n");
  ASSERT_EQ(about("POST", "/snapshots", {{"label", "the report"}}).status, 201);
  const auto shown = run_script("git log -1 --format=%s --all && git fsck --strict 2>&1", repository(id()));
  EXPECT_EQ(shown.exit_code, 0) << shown.output;
  EXPECT_THAT(shown.output, HasSubstr("the report"));
  const auto snapshot = about("GET", "/snapshots").json()["snapshots"][0]["id"].get<std::string>();
  EXPECT_EQ(run_script("git show " + snapshot + ":workspace/outputs/report.md", repository(id())).output,
            "# Report\n");
}

TEST_F(SeedS1, Requirement3_2_ASnapshotHasEverythingIgnoredFilesToo) {
  write(outputs() / ".gitignore", "*.log\n");
  write(outputs() / "build.log", "kept");
  ASSERT_OK(::mkdir((outputs() / "empty").c_str(), 0750));
  const auto snapshot = about("POST", "/snapshots", {{"label", "all\nof \"it\""}}).json();
  EXPECT_EQ(snapshot["label"], "all\nof \"it\"");
  ASSERT_OK(::unlink((outputs() / "build.log").c_str()));
  ASSERT_OK(::rmdir((outputs() / "empty").c_str()));
  ASSERT_EQ(about("POST", "/restore", {{"snapshot", snapshot["id"]}}).status, 200);
  EXPECT_EQ(read(outputs() / "build.log"), "kept");
  EXPECT_EQ(mode_of(outputs() / "empty"), 0750u);
}

TEST_F(SeedS1, Requirement3_3_AnUnknownHashIsRefusedWithWhatToDo) {
  const auto answer = about("POST", "/restore", {{"snapshot", std::string(40, '1')}});
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.code(), "unknown_snapshot");
  EXPECT_FALSE(answer.json()["error"]["message"].get<std::string>().empty());
}

TEST_F(SeedS1, Requirement4_1_SettingsComeFromTheConfiguration) {
  const auto shown = run({.arguments = {OKCVMD_PROGRAM, "--print-config", "--state-dir", "/srv/agents"},
                          .environment = {"OKCVM_MOUNT_ROOT=/srv/mounts"}});
  EXPECT_EQ(shown.exit_code, 0);
  EXPECT_THAT(shown.output, HasSubstr("/srv/agents"));
  EXPECT_THAT(shown.output, HasSubstr("OKCVM_MOUNT_ROOT"));
}

TEST_F(SeedS1, Requirement4_2_TheLabelOfATurnIsFoundAgain) {
  write(outputs() / "f", "1");
  const std::string label = "Please résumé the paper — 第七轮";
  const auto taken = about("POST", "/snapshots", {{"label", label}}).json();
  const auto listed = about("GET", "/snapshots").json()["snapshots"][0];
  EXPECT_EQ(listed["label"], label);
  EXPECT_EQ(listed["created_at"], taken["created_at"]);
  EXPECT_EQ(listed["id"], taken["id"]);
}

TEST_F(SeedS1, Requirement4_3_ResetLeavesNoStaleTemporaries) {
  ASSERT_OK(::mkdir((temp() / "d").c_str(), 0700));
  write(temp() / "d/stale", "bytes");
  ASSERT_EQ(about("POST", "/reset").status, 200);
  EXPECT_THAT(list(temp()), ElementsAre());
}

TEST_F(SeedS1, Requirement5_1_TheRoutesListCreateAndRestore) {
  const auto route = [&](const char* action) {
    return std::string("/api/session/workspace/") + action + "?session=" + id();
  };
  EXPECT_TRUE(ask("GET", route("snapshots")).json()["snapshots"].empty());
  write(outputs() / "f", "old");
  const auto made = ask("POST", route("snapshots"), {{"label", "one"}});
  EXPECT_EQ(made.status, 200);
  write(outputs() / "f", "new");
  for (const char* field : {"snapshot_id", "snapshot", "id"})
    EXPECT_EQ(ask("POST", route("restore"), {{field, made.json()["id"]}}).status, 200) << field;
  EXPECT_EQ(read(outputs() / "f"), "old");
  EXPECT_EQ(ask("GET", "/api/session/workspace/snapshots?session=nobody").status, 404);
}

TEST_F(SeedS1, Requirement5_2_ToolsReadAndWriteInsideAlone) {
  for (const char* path : {"../x", "outputs/../../x", "/etc/x", "%2e%2e/x", "outputs/%2e%2e/%2e%2e/x"})
    EXPECT_EQ(send("PUT", std::string("/files/") + path, "bytes").code(), "path_traversal_blocked") << path;
}

}  // namespace
}  // namespace okcvm::test
