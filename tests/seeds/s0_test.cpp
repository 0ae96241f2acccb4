#include <gmock/gmock.h>
#include <sys/stat.h>

#include "tests/seeds/seed_test.h"
#include "tests/support/expect.h"
#include "tests/support/file_io.h"

/// Seed 0 (000_…): the workspace of a session. The numbers are its chapters and the items in them.
namespace okcvm::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::MatchesRegex;
using ::testing::Not;

class SeedS0 : public SeedTest {
 protected:
  HttpAnswer seed(const std::string& method, const std::string& action, const Json& body = nullptr) {
    return ask(method, "/api/session/workspace/" + action + "?session=" + id(), body);
  }
};

TEST_F(SeedS0, Requirement1_1_EverySessionHasARandomMountOfItsOwn) {
  EXPECT_THAT(id(), MatchesRegex("[0-9a-f]{8}"));
  const auto other = create();
  EXPECT_NE(other["id"], id());
  EXPECT_EQ(other["mount"], daemon().mount(other["id"]).string());
  EXPECT_NE(stat_of(mount()).st_dev, stat_of(mount().parent_path()).st_dev);
  EXPECT_NE(stat_of(mount()).st_dev, stat_of(daemon().mount(other["id"])).st_dev);
}

TEST_F(SeedS0, Requirement1_1_FilesOutputsAndTemporariesHaveTheirDirectories) {
  for (const auto& directory : {uploads(), outputs(), temp()}) {
    write(directory / "f", "bytes");
    EXPECT_EQ(read(directory / "f"), "bytes");
  }
}

TEST_F(SeedS0, Requirement1_2_TheSessionsPathsAreToldInOnePlace) {
  const auto session = about("GET", "").json();
  EXPECT_EQ(session["id"], id());
  EXPECT_EQ(session["mount"], mount().string());
  EXPECT_EQ(session["cwd"], outputs().string());
}

TEST_F(SeedS0, Requirement1_3_CleanupRemovesAllOfItAndMayBeRepeated) {
  write(outputs() / "f", "bytes");
  ASSERT_EQ(about("POST", "/snapshots").status, 201);
  ASSERT_TRUE(there_is(workspace(id())));
  ASSERT_TRUE(there_is(repository(id())));
  EXPECT_EQ(about("DELETE", "").json()["deleted"], true);
  for (const auto& left : {mount(), workspace(id()), repository(id())}) EXPECT_FALSE(there_is(left)) << left;
  EXPECT_EQ(about("DELETE", "").status, 200);
  EXPECT_EQ(about("DELETE", "").json()["deleted"], false);
}

TEST_F(SeedS0, Requirement2_1_PathsAreReRootedIntoTheSession) {
  const std::vector<std::pair<std::string, std::string>> paths{
      {"outputs/a", "outputs/a"},
      {"/outputs/a", "outputs/a"},
      {"outputs\\a\\b", "outputs/a/b"},
      {"./outputs/./a", "outputs/a"},
      {"outputs/../temp/a", "temp/a"},
      {"/mnt/okcomputer/temp/a", "temp/a"},
      {(mount() / "uploads/a").string(), "uploads/a"},
      {"/etc/passwd", "etc/passwd"}};
  for (const auto& [given, expected] : paths) {
    const auto answer = about("POST", "/resolve", {{"path", given}, {"mode", "rebase"}});
    EXPECT_EQ(answer.status, 200) << given << answer.body;
    EXPECT_EQ(answer.json()["path"], expected) << given;
    EXPECT_EQ(answer.json()["mount_path"], (mount() / expected).string()) << given;
  }
}

TEST_F(SeedS0, Requirement2_1_AnEscapeIsAnError) {
  for (const char* path : {"..", "../x", "/../x", "outputs/../../x", "..\\..\\etc\\passwd"})
    EXPECT_EQ(about("POST", "/resolve", {{"path", path}, {"mode", "rebase"}}).code(),
              "path_traversal_blocked")
        << path;
}

TEST_F(SeedS0, Requirement2_2_PromptsAreGivenThePathsOfThisSession) {
  const auto answer =
      about("POST", "/adapt-prompt",
            {{"prompt", "Save to /mnt/okcomputer/output/a.md, read /mnt/okcomputer/uploads/b."}});
  EXPECT_EQ(answer.json()["prompt"],
            "Save to " + outputs().string() + "/a.md, read " + uploads().string() + "/b.");
  EXPECT_EQ(answer.json()["replaced"], 2);
}

TEST_F(SeedS0, Requirement3_1_SnapshotsAreApartFromAllOtherGit) {
  const auto git = run_script(
      "git init -q r && cd r && git config user.name a && git config user.email a@x && git config "
      "core.hooksPath hooks && mkdir hooks && printf '#!/bin/sh\\ntouch ../ran\\n' > hooks/pre-commit && "
      "chmod +x hooks/pre-commit && echo one > f && git add f",
      outputs());
  ASSERT_EQ(git.exit_code, 0) << git.output;
  EXPECT_NE(run_script("git rev-parse --git-dir", outputs()).exit_code, 0)
      << "the workspace itself is no repository";
  ASSERT_EQ(about("POST", "/snapshots").status, 201);
  EXPECT_FALSE(there_is(outputs() / "ran"));
  EXPECT_EQ(run_script("git status --porcelain f", outputs() / "r").output, "A  f\n");
}

TEST_F(SeedS0, Requirement3_2_ASnapshotIsACommitWithLabelAndTime) {
  write(outputs() / "f", "1");
  const auto first = seed("POST", "snapshots", {{"label", "first"}}).json();
  EXPECT_THAT(first["id"].get<std::string>(), MatchesRegex("[0-9a-f]{40}"));
  EXPECT_EQ(first["label"], "first");
  EXPECT_THAT(first["timestamp"].get<std::string>(), MatchesRegex("[0-9]{4}-[0-9]{2}-[0-9]{2}T.*Z"));
  write(outputs() / "g", "2");
  const auto second = seed("POST", "snapshots", {{"label", "second"}}).json();
  EXPECT_EQ(second["parent"], first["id"]);
  EXPECT_FALSE(second.contains("unchanged"));
  const auto again = seed("POST", "snapshots").json();
  EXPECT_EQ(again["id"], second["id"]);
  EXPECT_EQ(again["unchanged"], true);
  const auto newest = seed("GET", "snapshots").json()["snapshots"];
  ASSERT_EQ(newest.size(), 2u);
  EXPECT_EQ(newest[0]["id"], second["id"]);
  EXPECT_EQ(newest[1]["timestamp"], first["timestamp"]);
  EXPECT_EQ(ask("GET", "/api/session/workspace/snapshots?limit=1&session=" + id()).json()["snapshots"].size(),
            1u);
}

TEST_F(SeedS0, Requirement3_3_RestoringGoesBackAndClearsWhatIsNew) {
  write(outputs() / "kept", "old");
  write(outputs() / "lost", "old");
  const auto snapshot = seed("POST", "snapshots").json()["id"];
  write(outputs() / "kept", "new");
  ASSERT_OK(::unlink((outputs() / "lost").c_str()));
  write(outputs() / "untracked", "new");
  const auto restored = seed("POST", "restore", {{"snapshot_id", snapshot}});
  EXPECT_EQ(restored.json()["restored"], true) << restored.body;
  EXPECT_THAT(list(outputs()), ElementsAre("kept", "lost"));
  EXPECT_EQ(read(outputs() / "kept"), "old");
}

TEST_F(SeedS0, Requirement3_3_AnUnknownHashRestoresNothing) {
  write(outputs() / "f", "old");
  ASSERT_EQ(seed("POST", "snapshots").status, 200);
  write(outputs() / "f", "new");
  const auto refused = seed("POST", "restore", {{"snapshot_id", std::string(40, 'a')}});
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.code(), "unknown_snapshot");
  EXPECT_EQ(read(outputs() / "f"), "new");
}

TEST_F(SeedS0, Requirement4_1_FilesAreKeptBelowTheConfiguredRoot) {
  write(outputs() / "f", "bytes");
  EXPECT_EQ(read(workspace(id()) / "outputs/f"), "bytes");
}

TEST_F(SeedS0, Requirement4_2_EveryTurnCanHaveItsSnapshotInTheAnswer) {
  for (const char* turn : {"写一份报告", "and now shorter"}) {
    write(outputs() / "report.md", turn);
    const auto taken = about("POST", "/snapshots", {{"label", turn}});
    EXPECT_EQ(taken.json()["label"], turn);
    EXPECT_EQ(about("GET", "/snapshots?limit=1").json()["snapshots"][0]["id"], taken.json()["id"]);
  }
}

TEST_F(SeedS0, Requirement4_3_OldFilesDoNotReachANewSession) {
  const auto name = create({{"id", "again"}})["id"].get<std::string>();
  write(daemon().mount(name) / "outputs/old", "bytes");
  ASSERT_EQ(ask("POST", "/v1/sessions/again/snapshots").status, 201);
  ASSERT_EQ(ask("DELETE", "/v1/sessions/again").json()["deleted"], true);
  create({{"id", "again"}});
  EXPECT_THAT(list(daemon().mount(name) / "outputs"), ElementsAre());
  EXPECT_TRUE(ask("GET", "/v1/sessions/again/snapshots").json()["snapshots"].empty());
}

TEST_F(SeedS0, Requirement5_1_ErrorsOfTheSnapshotRoutesAre400WithADetail) {
  for (const auto& body : {Json{{"snapshot_id", "no hash"}}, Json::object(), Json{{"snapshot_id", 5}}}) {
    const auto answer = seed("POST", "restore", body);
    EXPECT_EQ(answer.status, 400) << body;
    EXPECT_FALSE(answer.json()["detail"].get<std::string>().empty()) << body;
  }
  const std::string restore = "/api/session/workspace/restore?session=" + id();
  for (const auto& [status, answer] :
       {std::pair(405, ask("PUT", restore)), std::pair(400, ask("POST", restore + "&session=" + id())),
        std::pair(400, ask("POST", restore + "%zz")), std::pair(404, ask("GET", "/api/session/none")),
        std::pair(413, ask("POST", restore, std::string((1 << 20) + 1, ' ')))}) {
    EXPECT_EQ(answer.status, status);
    EXPECT_FALSE(answer.json()["detail"].get<std::string>().empty()) << status;
  }
}

TEST_F(SeedS0, Requirement5_2_WhatAnyToolWritesIsInTheNextSnapshot) {
  write(outputs() / "by-path", "1");
  EXPECT_EQ(send("PUT", "/files/outputs/site/by-tool", "2").status, 201);
  EXPECT_EQ(send("POST", "/uploads?name=by-user.txt", "3").status, 201);
  const auto snapshot = about("POST", "/snapshots").json()["id"].get<std::string>();
  std::vector<std::string> added;
  const auto shown = about("GET", "/snapshots/" + snapshot).json();
  for (const auto& row : shown["changes"]) added.push_back(row["path"]);
  EXPECT_THAT(added, IsSupersetOf({"outputs/by-path", "outputs/site/by-tool", "uploads/by-user.txt"}));
}

class SeedS0WithoutSnapshots : public SeedTest {
 protected:
  static void SetUpTestSuite() { start_suite({"--snapshots", "off"}); }
};

TEST_F(SeedS0WithoutSnapshots, Requirement3_1_TheWorkspaceStaysUsable) {
  write(outputs() / "f", "bytes");
  EXPECT_EQ(read(outputs() / "f"), "bytes");
  EXPECT_EQ(about("POST", "/snapshots").code(), "snapshots_disabled");
  const auto seed = ask("POST", "/api/session/workspace/snapshots?session=" + id());
  EXPECT_EQ(seed.status, 400);
  EXPECT_EQ(seed.code(), "snapshots_disabled");
  EXPECT_EQ(about("GET", "").json()["snapshots"], "off");
}

}  // namespace
}  // namespace okcvm::test
