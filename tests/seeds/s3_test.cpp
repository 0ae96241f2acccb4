#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>

#include "tests/seeds/seed_test.h"
#include "tests/support/expect.h"
#include "tests/support/file_io.h"

/// Seed 3 (003_…): workspaces of agents and their tasks. The numbers are its requirements and criteria.
namespace okcvm::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

class SeedS3 : public SeedTest {
 protected:
  void SetUp() override {
    SeedTest::SetUp();
    if (IsSkipped()) return;
    task_ = agent("task", "root");
  }
  Json agent(const std::string& name, const std::string& parent) {
    return create({{"agent", name}, {"parent_agent", parent}});
  }
  HttpAnswer tool(const std::string& method, const std::string& path, const std::string& bytes = {}) {
    return daemon().ask(method, "/v1/sessions/task/files/" + path, bytes);
  }
  static std::filesystem::path of(const std::string& session) { return daemon().mount(session); }
  Json info() { return ask("GET", "/v1/sessions/task/info").json(); }
  Json task_;
};

TEST_F(SeedS3, Requirement1_1_AChildOfRootIsGivenAWorkspace) {
  EXPECT_EQ(task_["agent"], "task");
  EXPECT_TRUE(there_is(of("task") / "outputs"));
}

TEST_F(SeedS3, Requirement1_2_TheWorkspaceIsNamedAfterTheAgent) {
  EXPECT_EQ(task_["id"], "task");
  write(of("task") / "outputs/f", "bytes");
  EXPECT_TRUE(there_is(daemon().root() / "state/workspaces/task"));
}

TEST_F(SeedS3, Requirement1_3_AssigningAWorkspaceMakesNoFolder) {
  EXPECT_FALSE(there_is(workspace("task")));
}

TEST_F(SeedS3, Requirement1_4_DescendantsInheritTheWorkspace) {
  EXPECT_EQ(agent("child", "task")["id"], "task");
  EXPECT_EQ(agent("grandchild", "child")["id"], "task");
}

TEST_F(SeedS3, Requirement2_1_TheManagerMakesNoFolderUntilItMust) {
  ask("POST", "/v1/sessions/task/unmount");
  ask("POST", "/v1/sessions/task/mount");
  EXPECT_EQ(info()["materialized"], false);
  EXPECT_FALSE(there_is(workspace("task")));
}

TEST_F(SeedS3, Requirement2_2_TheFirstWriteMakesTheFolder) {
  EXPECT_EQ(tool("PUT", "outputs/f", "bytes").status, 201);
  EXPECT_EQ(read(workspace("task") / "outputs/f"), "bytes");
  EXPECT_EQ(info()["materialized"], true);
}

TEST_F(SeedS3, Requirement2_3_ReadingAnUnwrittenWorkspaceIsEmpty) {
  for (const char* directory : {"outputs", "uploads", "temp", "skills"}) {
    const auto answer = tool("GET", directory);
    EXPECT_EQ(answer.status, 200) << directory;
    EXPECT_EQ(answer.json()["entries"], Json::array()) << directory;
    EXPECT_THAT(list(of("task") / directory), ElementsAre());
  }
}

TEST_F(SeedS3, Requirement2_4_WithoutAWriteThereIsNeverAFolder) {
  tool("GET", "outputs/none");
  tool("DELETE", "outputs/none");
  tool("PUT", "skills/none", "bytes");
  for (const char* path : {"outputs/f", "outputs/a/f"})
    EXPECT_EQ(
        daemon()
            .ask("PUT", "/v1/sessions/task/files/" + std::string(path), "bytes", {{"If-Match", "\"x\""}})
            .status,
        412);
  EXPECT_ERRNO(ENOENT, ::unlink((of("task") / "outputs/none").c_str()));
  EXPECT_EQ(okcvm({"ls", "task", "outputs"}).exit_code, 0);
  ask("POST", "/v1/sessions/task/reset");
  EXPECT_FALSE(there_is(workspace("task")));
}

TEST_F(SeedS3, Requirement3_1_WriteFile) {
  EXPECT_EQ(tool("PUT", "outputs/f", "one").json()["created"], true);
  EXPECT_EQ(tool("PUT", "outputs/f", "two").json()["created"], false);
  EXPECT_EQ(read(of("task") / "outputs/f"), "two");
}

TEST_F(SeedS3, Requirement3_2_ReadFile) {
  const auto bytes = pattern(100'000);
  write(of("task") / "outputs/f", bytes);
  EXPECT_EQ(tool("GET", "outputs/f").body, bytes);
  EXPECT_EQ(tool("GET", "outputs/none").code(), "not_found");
  EXPECT_OK(::mkfifo((of("task") / "outputs/p").c_str(), 0644));
  const auto refused = tool("GET", "outputs/p");
  EXPECT_EQ(refused.code(), "invalid_request");
  EXPECT_THAT(refused.body, HasSubstr("only regular files can be read"));
}

TEST_F(SeedS3, Requirement3_3_ListFiles) {
  tool("PUT", "outputs/b", "12345");
  tool("PUT", "outputs/a/c", "1");
  const auto entries = tool("GET", "outputs").json()["entries"];
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0]["name"], "a");
  EXPECT_EQ(entries[0]["type"], "directory");
  EXPECT_EQ(entries[1]["path"], "outputs/b");
  EXPECT_EQ(entries[1]["size"], 5);
}

TEST_F(SeedS3, Requirement3_4_ToolsTakeRelativePathsOnly) {
  for (const auto& path : {std::string("/outputs/f"), (of("task") / "outputs/f").string()})
    for (const char* method : {"GET", "PUT", "DELETE"})
      EXPECT_EQ(tool(method, path, method == std::string("PUT") ? "x" : "").code(), "path_traversal_blocked")
          << method << path;
}

TEST_F(SeedS3, Requirement3_5_WritingMakesTheParents) {
  EXPECT_EQ(tool("PUT", "outputs/a/b/c/f", "bytes").status, 201);
  EXPECT_EQ(read(of("task") / "outputs/a/b/c/f"), "bytes");
}

TEST_F(SeedS3, Requirement4_1_AnEscapeIsBlockedByName) {
  for (const char* method : {"GET", "PUT", "DELETE"}) {
    const auto answer = tool(method, "outputs/../../other/f", method == std::string("PUT") ? "x" : "");
    EXPECT_EQ(answer.status, 400) << method;
    EXPECT_EQ(answer.code(), "path_traversal_blocked") << method;
  }
}

TEST_F(SeedS3, Requirement4_2_DotDotIsRefusedWhereverItLeads) {
  tool("PUT", "outputs/f", "bytes");
  for (const char* path : {"..", "outputs/..", "outputs/../outputs/f", "%2e%2e", "outputs/%2E%2e/outputs/f"})
    EXPECT_EQ(tool("GET", path).code(), "path_traversal_blocked") << path;
  EXPECT_EQ(tool("PUT", "outputs/..f", "a name like any").status, 201);
}

TEST_F(SeedS3, Requirement4_3_AbsolutePathsAreRefused) {
  for (const char* path : {"/etc/passwd", "%2Fetc%2Fpasswd", "//etc/passwd"})
    EXPECT_EQ(tool("GET", path).code(), "path_traversal_blocked") << path;
}

TEST_F(SeedS3, Requirement4_4_NoAnswerShowsWhereTheWorkspaceIsKept) {
  for (const auto& answer :
       {tool("PUT", "outputs/f", "bytes"), tool("GET", "outputs"), tool("GET", "outputs/none"),
        tool("DELETE", "outputs"), ask("GET", "/v1/sessions/task/info")})
    EXPECT_THAT(answer.body, Not(HasSubstr("workspaces")));
  // Neither does the system call that tells a descriptor's path.
  EXPECT_EQ(run_script("pwd -P", of("task") / "outputs").output, (of("task") / "outputs").string() + "\n");
}

TEST_F(SeedS3, Requirement5_1_TasksHaveWorkspacesOfTheirOwn) {
  const auto other = agent("other", "root");
  EXPECT_NE(other["id"], task_["id"]);
  EXPECT_NE(other["mount"], task_["mount"]);
}

TEST_F(SeedS3, Requirement5_2_AllAgentsOfATaskShareItsFiles) {
  const auto child = agent("child", "task")["id"].get<std::string>();
  const auto grandchild = agent("grandchild", "child")["id"].get<std::string>();
  write(of(child) / "outputs/f", "from the child");
  EXPECT_EQ(read(of(grandchild) / "outputs/f"), "from the child");
  EXPECT_EQ(ask("GET", "/v1/agents/grandchild").json()["session"]["id"], "task");
}

TEST_F(SeedS3, Requirement5_3_ATaskCannotReachAnothersFiles) {
  agent("other", "root");
  write(of("other") / "outputs/secret", "bytes");
  EXPECT_EQ(tool("GET", "../okcvm-other/outputs/secret").code(), "path_traversal_blocked");
  EXPECT_ERRNO(EPERM,
               ::symlink((of("other") / "outputs/secret").c_str(), (of("task") / "outputs/link").c_str()));
  EXPECT_ERRNO(EXDEV,
               ::link((of("other") / "outputs/secret").c_str(), (of("task") / "outputs/hard").c_str()));
  // Another user's task cannot even be entered.
  as_user(kAlice, [] { EXPECT_ERRNO(EACCES, ::chdir(of("other").c_str())); });
}

TEST_F(SeedS3, Requirement6_1_WorkspaceInformationCanBeAsked) {
  EXPECT_EQ(ask("GET", "/v1/sessions/task/info").status, 200);
  EXPECT_EQ(okcvm({"info", "task"}).exit_code, 0);
}

TEST_F(SeedS3, Requirement6_2_ItCountsFilesDirectoriesAndBytes) {
  tool("PUT", "outputs/a/f", "12345");
  tool("PUT", "uploads/g", "123");
  const auto now = info();
  EXPECT_EQ(now["files"], 2);
  EXPECT_EQ(now["bytes"], 8);
  EXPECT_GE(now["directories"].get<int>(), 1);
  EXPECT_TRUE(now["last_modified"].is_string());
}

TEST_F(SeedS3, Requirement6_3_OfAnUnwrittenWorkspaceItIsEmpty) {
  const auto now = info();
  for (const char* field : {"files", "directories", "bytes"}) EXPECT_EQ(now[field], 0) << field;
  EXPECT_EQ(now["last_modified"], nullptr);
  EXPECT_EQ(now["materialized"], false);
}

TEST_F(SeedS3, Requirement6_4_ARemovalIsAModification) {
  const auto told = [&] { return info()["last_modified"].get<std::string>(); };
  for (const char* name : {"f", "old"}) {
    const auto file = of("task") / "outputs" / name;
    write(file, "bytes");
    const std::array<timespec, 2> long_ago{timespec{1'000'000'000, 0}, timespec{1'000'000'000, 0}};
    EXPECT_OK(::utimensat(AT_FDCWD, file.c_str(), long_ago.data(), 0));
  }
  for (const char* name : {"f", "old"}) {
    EXPECT_EQ(tool("DELETE", "outputs/" + std::string(name)).status, 200);
    EXPECT_GT(told(), "2020");
  }
  const auto last = told();
  ask("POST", "/v1/sessions/task/unmount");
  EXPECT_EQ(told(), last);
}

TEST_F(SeedS3, Requirement6_5_WhatCannotBeCountedIsToldWithoutWhereItIsKept) {
  write(of("task") / "outputs/f", "bytes");
  std::filesystem::rename(workspace("task") / "outputs", workspace("task") / "away");
  write(workspace("task") / "outputs", "no directory");
  const auto expect_told = [] {
    const auto answer = ask("GET", "/v1/sessions/task/info");
    EXPECT_EQ(answer.code(), "corrupt");
    EXPECT_THAT(answer.body, HasSubstr("okcvm load"));
    EXPECT_THAT(answer.body, Not(HasSubstr("workspaces")));
  };
  expect_told();
  ask("POST", "/v1/sessions/task/unmount");
  expect_told();
  std::filesystem::remove(workspace("task") / "outputs");
  ask("POST", "/v1/sessions/task/mount");
  EXPECT_EQ(info()["files"], 0);
  write(of("task") / "outputs/f", "bytes");
  EXPECT_EQ(info()["files"], 1);
}

TEST_F(SeedS3, Requirement7_1_AChildInheritsFromItsParent) {
  const auto child = agent("child", "task");
  EXPECT_EQ(child["mount"], task_["mount"]);
  EXPECT_EQ(child["inherited"], true);
}

TEST_F(SeedS3, Requirement7_2_InheritanceGoesDownAllLevels) {
  std::string parent = "task";
  for (int level = 1; level <= 20; ++level) {
    const auto name = "level" + std::to_string(level);
    EXPECT_EQ(agent(name, parent)["id"], "task");
    parent = name;
  }
  EXPECT_EQ(ask("GET", "/v1/agents/" + parent).json()["session"]["id"], "task");
}

TEST_F(SeedS3, Requirement7_3_OnlyChildrenOfRootGetANewWorkspace) {
  const auto before = ask("GET", "/v1/sessions").json()["sessions"].size();
  agent("child", "task");
  EXPECT_EQ(ask("GET", "/v1/sessions").json()["sessions"].size(), before);
  agent("other", "root");
  EXPECT_EQ(ask("GET", "/v1/sessions").json()["sessions"].size(), before + 1);
  EXPECT_EQ(ask("POST", "/v1/sessions", {{"agent", "lost"}, {"parent_agent", "nobody"}}).code(), "not_found");
}

TEST_F(SeedS3, Requirement7_4_AWorkspaceThatIsGivenIsMounted) {
  for (const auto& [name, parent] :
       {std::pair("task", "root"), std::pair("child", "task"), std::pair("child", "task")}) {
    ask("POST", "/v1/sessions/task/unmount");
    EXPECT_EQ(agent(name, parent)["state"], "mounted");
    write(of("task") / "outputs/f", name);
    EXPECT_EQ(read(workspace("task") / "outputs/f"), name);
  }
  EXPECT_OK(::umount2(of("task").c_str(), MNT_DETACH));
  EXPECT_EQ(agent("child", "task")["state"], "mounted") << "though it was taken away from outside";
  EXPECT_EQ(read(of("task") / "outputs/f"), "child");

  ask("POST", "/v1/sessions/task/unmount");
  write(of("task"), "nothing can be mounted here");
  const Json heir{{"agent", "heir"}, {"parent_agent", "child"}};
  EXPECT_EQ(ask("POST", "/v1/sessions", heir).code(), "busy");
  EXPECT_EQ(ask("GET", "/v1/agents/heir").code(), "not_found");
  std::filesystem::remove(of("task"));
  EXPECT_EQ(create(heir)["state"], "mounted");
}

}  // namespace
}  // namespace okcvm::test
