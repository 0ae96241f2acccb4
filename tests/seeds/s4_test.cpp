#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/seeds/seed_test.h"
#include "tests/support/expect.h"
#include "tests/support/file_io.h"

/// Seed 4 (004_…): working directories of sessions. It numbers little; the names say the chapter.
namespace okcvm::test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class SeedS4 : public SeedTest {
 protected:
  static void SetUpTestSuite() { start_suite({"--workdir-allow-root", "ROOT/projects"}); }
  void SetUp() override {
    SeedTest::SetUp();
    if (IsSkipped()) return;
    for (const char* name : {"a", "b"}) fs::create_directories(projects() / name);
  }
  void TearDown() override {
    SeedTest::TearDown();
    std::error_code ignored;
    if (!daemon().root().empty()) fs::remove_all(projects(), ignored);
  }
  static fs::path projects() { return daemon().root() / "projects"; }
  Json bound(const fs::path& workdir, const Json& more = Json::object()) {
    Json request{{"workdir", workdir.string()}, {"workdir_policy", "existing"}};
    request.update(more);
    return create(request);
  }
  static void expect_fallback(const Json& session, const std::string& requested) {
    EXPECT_EQ(session["workdir_policy"], "managed") << requested;
    EXPECT_EQ(session["workdir"], nullptr) << requested;
    EXPECT_EQ(session["cwd"], session["mount"].get<std::string>() + "/outputs") << requested;
    EXPECT_EQ(session["workdir_fallback"]["requested"], requested);
    EXPECT_THAT(session["workdir_fallback"]["reason"].get<std::string>(), Not(IsEmpty()));
  }
  /// A repository with a remote, ready to be bound.
  static fs::path repository_with_remote(const std::string& url) {
    const auto made = run_script("git init -q -b main r && git -C r remote add origin " + url, projects());
    EXPECT_EQ(made.exit_code, 0) << made.output;
    return projects() / "r";
  }
};

TEST_F(SeedS4, Acceptance1_TwoSessionsWorkInTheirOwnDirectories) {
  const auto first = bound(projects() / "a", {{"device_id", "mac"}});
  const auto second = bound(projects() / "b", {{"device_id", "mac"}});
  const auto pwd_and_write = "pwd -P > where; cat where";
  for (const auto& [session, name] : {std::pair(first, "a"), std::pair(second, "b")}) {
    const auto cwd = session["cwd"].get<std::string>();
    EXPECT_EQ(run_script(pwd_and_write, cwd).output, cwd + "\n");
    EXPECT_EQ(read(projects() / name / "where"), cwd + "\n");
  }
}

TEST_F(SeedS4, Acceptance2_OutsideOfTheAllowedRootsNothingIsWritten) {
  const auto elsewhere = daemon().root() / "elsewhere";
  fs::create_directory(elsewhere);
  const auto session = bound(elsewhere);
  expect_fallback(session, elsewhere.string());
  EXPECT_ERRNO(ENOENT, ::chdir((session["mount"].get<std::string>() + "/workdir").c_str()));
  write(fs::path(session["cwd"].get<std::string>()) / "f", "bytes");
  EXPECT_THAT(list(elsewhere), ElementsAre());
}

TEST_F(SeedS4, Acceptance3_WithoutAWorkdirAllIsAsBefore) {
  const auto session = about("GET", "").json();
  EXPECT_EQ(session["workdir_policy"], "managed");
  EXPECT_EQ(session["workdir"], nullptr);
  EXPECT_EQ(session["workdir_fallback"], nullptr);
  EXPECT_EQ(session["cwd"], outputs().string());
  EXPECT_FALSE(there_is(mount() / "workdir"));
}

TEST_F(SeedS4, Binding_IsRememberedForTaskAndDevice) {
  create({{"id", "t1"}, {"workdir", (projects() / "a").string()}, {"device_id", "mac"}});
  ask("DELETE", "/v1/sessions/t1");
  EXPECT_EQ(create({{"id", "t1"}, {"device_id", "mac"}})["workdir"], (projects() / "a").string());
  ask("DELETE", "/v1/sessions/t1");
  EXPECT_EQ(create({{"id", "t1"}, {"device_id", "linux"}})["workdir"], nullptr)
      << "a path means one device's";
}

TEST_F(SeedS4, Binding_IsFoundByThePolicyWithoutADirectory) {
  const Json request{{"task", "t2"}, {"device_id", "mac"}, {"workdir_policy", "existing"}};
  const auto unknown = create(request);
  expect_fallback(unknown, "");
  EXPECT_THAT(unknown["workdir_fallback"]["reason"].get<std::string>(), HasSubstr("give workdir once"));
  bound(projects() / "a", {{"task", "t2"}, {"device_id", "mac"}});
  const auto found = create(request);
  EXPECT_EQ(found["workdir"], (projects() / "a").string());
  EXPECT_EQ(found["workdir_policy"], "existing");
  auto elsewhere = request;
  elsewhere["device_id"] = "linux";
  EXPECT_EQ(create(elsewhere)["workdir"], nullptr);
  fs::remove_all(projects() / "a");
  expect_fallback(create(request), (projects() / "a").string());
}

TEST_F(SeedS4, Binding_IsShownWithTheSession) {
  const auto id = bound(projects() / "a", {{"device_id", "mac"}})["id"].get<std::string>();
  const auto session = ask("GET", "/v1/sessions/" + id).json();
  EXPECT_EQ(session["workdir"], (projects() / "a").string());
  EXPECT_EQ(session["device_id"], "mac");
}

TEST_F(SeedS4, Policy_ManagedTakesNoDirectory) {
  const auto session = create({{"workdir_policy", "managed"}});
  EXPECT_EQ(session["workdir_policy"], "managed");
  EXPECT_EQ(session["workdir"], nullptr);
}

TEST_F(SeedS4, Policy_ExistingIsTheUsersOwnDirectoryFromBothSides) {
  const auto cwd = fs::path(bound(projects() / "a")["cwd"].get<std::string>());
  write(cwd / "inside", "1");
  EXPECT_EQ(read(projects() / "a/inside"), "1");
  write(projects() / "a/outside", "2");
  EXPECT_EQ(read(cwd / "outside"), "2");
}

TEST_F(SeedS4, Policy_RepoBoundFindsTheDirectoryOfABranchAgain) {
  const auto repository = repository_with_remote("git@example.org:team/r.git");
  Json request{
      {"workdir_policy", "repo-bound"}, {"git_url", "https://example.org/team/r"}, {"branch", "main"}};
  auto first = request;
  first["workdir"] = repository.string();
  EXPECT_EQ(create(first)["workdir_policy"], "repo-bound");
  EXPECT_EQ(create(request)["workdir"], repository.string());
  request["branch"] = "other";
  EXPECT_EQ(create(request)["workdir"], nullptr);
}

TEST_F(SeedS4, Policy_AnUnknownOneIsRefused) {
  EXPECT_EQ(ask("POST", "/v1/sessions", {{"workdir_policy", "borrowed"}}).code(), "invalid_request");
}

TEST_F(SeedS4, Switching_ClosesTheOldAndOpensTheNew) {
  const auto id = bound(projects() / "a")["id"].get<std::string>();
  write(projects() / "a/old", "1");
  const auto switched =
      ask("POST", "/v1/sessions/" + id + "/workdir", {{"workdir", (projects() / "b").string()}});
  EXPECT_EQ(switched.json()["remounted"], true) << switched.body;
  EXPECT_EQ(switched.json()["previous_workdir"], (projects() / "a").string());
  EXPECT_EQ(switched.json()["session"]["workdir"], (projects() / "b").string());
  EXPECT_THAT(list(daemon().mount(id) / "workdir"), ElementsAre());
}

TEST_F(SeedS4, Security_OnlyAllowedRootsAreTaken) {
  EXPECT_EQ(bound(projects() / "a")["workdir"], (projects() / "a").string());
  const auto beside = fs::path(projects().string() + "-beside");
  fs::create_directory(beside);
  expect_fallback(bound(beside), beside.string());
}

TEST_F(SeedS4, Security_LinksAreResolvedBeforeTheCheck) {
  ASSERT_OK(::symlink("/usr", (projects() / "escape").c_str()));
  ASSERT_OK(::symlink("a", (projects() / "inside").c_str()));
  expect_fallback(bound(projects() / "escape"), (projects() / "escape").string());
  EXPECT_EQ(bound(projects() / "inside")["workdir"], (projects() / "a").string());
}

TEST_F(SeedS4, Security_DotDotIsResolvedBeforeTheCheck) {
  const auto path = (projects() / "a/../../state").string();
  expect_fallback(bound(path), path);
  EXPECT_EQ(bound(projects() / "a/../b")["workdir"], (projects() / "b").string());
}

TEST_F(SeedS4, Security_RelativeAndMissingDirectoriesFallBack) {
  expect_fallback(bound("projects/a"), "projects/a");
  expect_fallback(bound(projects() / "none"), (projects() / "none").string());
  write(projects() / "file", "bytes");
  expect_fallback(bound(projects() / "file"), (projects() / "file").string());
}

TEST_F(SeedS4, Security_AnothersDirectoryIsNotTheOwnersToUse) {
  ASSERT_OK(::chmod((projects() / "a").c_str(), 0700));
  const auto answer =
      daemon().ask_as(kAlice.uid, "POST", "/v1/sessions",
                      Json{{"id", "alices"}, {"workdir", (projects() / "a").string()}}.dump());
  EXPECT_EQ(answer.status, 201);
  expect_fallback(answer.json(), (projects() / "a").string());
  ask("DELETE", "/v1/sessions/alices");
}

TEST_F(SeedS4, Security_NothingLeadsOutOfAWorkdir) {
  const auto cwd = fs::path(bound(projects() / "a")["cwd"].get<std::string>());
  EXPECT_ERRNO(EPERM, ::symlink("/etc/passwd", (cwd / "link").c_str()));
  ASSERT_OK(::symlink("/etc/passwd", (projects() / "a/planted").c_str()));
  EXPECT_ERRNO(EPERM, ::open((cwd / "planted").c_str(), O_RDONLY));
}

TEST_F(SeedS4, Contract_TheSeedsFieldsAreTaken) {
  const auto session = create({{"task", "123"},
                               {"device_id", "mac-mini-1"},
                               {"workdir", (projects() / "a").string()},
                               {"workdir_policy", "existing"}});
  EXPECT_EQ(session["task"], "123");
  EXPECT_EQ(session["device_id"], "mac-mini-1");
  EXPECT_EQ(session["cwd"], session["mount"].get<std::string>() + "/workdir");
}

TEST_F(SeedS4, Phase2_ARepositoryMustHaveTheRemoteThatIsAskedFor) {
  const auto repository = repository_with_remote("https://example.org/team/r");
  const auto session = create({{"workdir_policy", "repo-bound"},
                               {"workdir", repository.string()},
                               {"git_url", "https://example.org/team/other"},
                               {"branch", "main"}});
  expect_fallback(session, repository.string());
  EXPECT_THAT(session["workdir_fallback"]["reason"].get<std::string>(), HasSubstr("remote"));
}

TEST_F(SeedS4, Phase3_RecentDirectoriesAreListed) {
  bound(projects() / "a", {{"device_id", "mac"}});
  bound(projects() / "b", {{"device_id", "mac"}});
  const auto recent = ask("GET", "/v1/workdirs?limit=2").json()["workdirs"];
  ASSERT_EQ(recent.size(), 2u);
  EXPECT_EQ(recent[0]["path"], (projects() / "b").string());
  EXPECT_EQ(recent[1]["path"], (projects() / "a").string());
}

/// Without a root that the operator allows, there are no workdirs.
class SeedS4ByDefault : public SeedTest {};

TEST_F(SeedS4ByDefault, Security_NoDirectoryOfTheHostIsAllowed) {
  for (const char* path : {"/", "/etc", "/usr", "/tmp", "/root", "/proc", "~/.ssh", "~"}) {
    const auto session = create({{"workdir", path}, {"workdir_policy", "existing"}});
    EXPECT_EQ(session["workdir_policy"], "managed") << path;
    EXPECT_EQ(session["workdir_fallback"]["requested"], path);
  }
}

/// Even an operator who allows everything does not allow these.
class SeedS4AllAllowed : public SeedTest {
 protected:
  static void SetUpTestSuite() { start_suite({"--workdir-allow-root", "/"}); }
};

TEST_F(SeedS4AllAllowed, Security_SensitiveDirectoriesAreRefused) {
  for (const char* path : {"/", "/etc", "/proc", "/sys", "/dev", "/boot", "/etc/ssl"}) {
    const auto session = create({{"workdir", path}, {"workdir_policy", "existing"}});
    EXPECT_EQ(session["workdir_policy"], "managed") << path;
  }
  const auto state = (daemon().root() / "state").string();
  EXPECT_EQ(create({{"workdir", state}, {"workdir_policy", "existing"}})["workdir_policy"], "managed");
}

TEST_F(SeedS4AllAllowed, Security_TheHomeDirectoryIsExpanded) {
  const auto session = create({{"workdir", "~/.ssh"}, {"workdir_policy", "existing"}});
  EXPECT_EQ(session["workdir_fallback"]["requested"], "~/.ssh");
  EXPECT_EQ(session["workdir_policy"], "managed");
}

}  // namespace
}  // namespace okcvm::test
