#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <future>
#include <set>
#include <vector>

#include "tests/support/file_io.h"
#include "tests/support/process.h"
#include "tests/support/watchdog.h"
#include "tests/tools/daemon_fixture.h"
#include "tests/tools/one_more_user.h"
#include "tools/daemon/host/clock.h"
#include "tools/daemon/sessions/registry.h"

namespace okcvm::test {
namespace {

using nlohmann::json;

constexpr std::chrono::seconds kTimeout{30};

class DaemonSessions : public DaemonFixture {};

TEST_F(DaemonSessions, AreMountedShownAndDeleted) {
  start();
  add_skill("pdf", "---\ndescription: how to pdf\n---\n");
  const auto session =
      create({{"id", "s1"}, {"skills", {"pdf"}}, {"labels", {{"task", "7"}}}, {"mode", "0750"}});
  EXPECT_EQ(session["state"], "mounted");
  EXPECT_EQ(session["mount"], mount("s1").string());
  EXPECT_EQ(session["cwd"], (mount("s1") / "outputs").string());
  struct stat status {};
  ASSERT_EQ(::stat(mount("s1").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0750u);
  const auto metadata = json::parse(read(mount("s1") / ".metadata.json"));
  EXPECT_EQ(metadata["session_id"], "s1");
  EXPECT_EQ(metadata["created_at"], session["created_at"]);
  EXPECT_EQ(metadata["skills"], json({"pdf"}));
  EXPECT_EQ(metadata["labels"]["task"], "7");
  const auto description = [&] { return ask("GET", "/v1/skills").json()["skills"][0]["description"]; };
  EXPECT_EQ(description(), "how to pdf");
  add_skill("pdf", "\xef\xbb\xbf---\r\ndescription: 'how to pdf'\r\n---\r\n");
  EXPECT_EQ(description(), "how to pdf");
  for (const char* folded :
       {"description: >-\n  how\n\n  to pdf\nname: pdf", "description: |\r\n\thow to\r\n  pdf\r",
        "description: how\n to pdf", "description:\n  \"how to\n  pdf\""}) {
    add_skill("pdf", "---\n" + std::string(folded) + "\n---\n");
    EXPECT_EQ(description(), "how to pdf") << folded;
  }
  std::string much;
  for (int i = 0; i < 300; ++i) much += "\u00e9";
  add_skill("pdf", "---\ndescription: x" + much + "\n---\n");
  EXPECT_EQ(description(), "x" + much.substr(0, 498));
  EXPECT_FALSE(std::filesystem::exists(root_ / "state/workspaces/s1"));

  EXPECT_EQ(ask("DELETE", "/v1/sessions/s1").json(), json({{"id", "s1"}, {"deleted", true}}));
  EXPECT_EQ(ask("DELETE", "/v1/sessions/s1").json(), json({{"id", "s1"}, {"deleted", false}}));
  EXPECT_FALSE(std::filesystem::exists(mount("s1")));
  EXPECT_EQ(ask("GET", "/v1/sessions/s1").code(), "not_found");
}

TEST_F(DaemonSessions, AreFoundByPrefix) {
  start();
  for (const char* id : {"abc1", "abc2", "b"}) create({{"id", id}});
  EXPECT_EQ(ask("GET", "/v1/sessions/abc").code(), "ambiguous_prefix");
  EXPECT_EQ(ask("GET", "/v1/sessions/abc1").json()["id"], "abc1");
  EXPECT_EQ(ask("POST", "/v1/sessions/b/mount").json()["id"], "b");
  EXPECT_EQ(ask("GET", "/v1/sessions?prefix=abc").json()["sessions"].size(), 2u);
  EXPECT_EQ(ask("DELETE", "/v1/sessions/abc").json()["deleted"], false);
}

TEST_F(DaemonSessions, RefuseWrongRequests) {
  start();
  create({{"id", "s1"}});
  for (const auto& [body, code] : std::vector<std::pair<std::string, std::string>>{
           {R"({"id":"s1"})", "already_exists"},
           {R"({"id":"../x"})", "invalid_request"},
           {R"({"id":""})", "invalid_request"},
           {R"({"id":7})", "invalid_request"},
           {R"({"nonsense":1})", "invalid_request"},
           {R"({"mode":"0888"})", "invalid_request"},
           {R"({"labels":{"a":1}})", "invalid_request"},
           {R"({"skills":["none"]})", "not_found"},
           {R"({"skills":["../.."]})", "path_traversal_blocked"},
           {R"({"owner":{"uid":-1}})", "invalid_request"},
           {R"({"owner":{"uid":4294967295}})", "invalid_request"},
           {R"({"parent_agent":"x"})", "invalid_request"},
           {R"({"agent":"a","parent_agent":"unknown"})", "not_found"},
           {R"({"agent":"root"})", "invalid_request"},
           {R"({"workdir_policy":"other"})", "invalid_request"},
           {"{", "invalid_request"}}) {
    const auto answer = ask("POST", "/v1/sessions", body);
    EXPECT_EQ(answer.code(), code) << body << answer.body;
  }
  EXPECT_EQ(ask("GET", "/v1/sessions").json()["sessions"].size(), 1u);
  EXPECT_EQ(ask("PATCH", "/v1/sessions").status, 405);
  EXPECT_EQ(ask("PUT", "/v1/sessions").headers["allow"], "POST, GET, HEAD");
  EXPECT_EQ(ask("GET", "/v2/sessions").status, 404);
  EXPECT_EQ(ask("GET", "/v1/sessions?nonsense=1").status, 400);
}

TEST_F(DaemonSessions, BelongToWhoMadeThem) {
  start();
  create({{"id", "roots"}});
  ASSERT_EQ(ask_as(1234, "POST", "/v1/sessions", R"({"id":"mine"})").status, 201);
  EXPECT_EQ(ask_as(1234, "POST", "/v1/sessions", R"({"owner":{"uid":0}})").code(), "forbidden");
  EXPECT_EQ(ask_as(1234, "POST", "/v1/sessions", R"({"owner":{"gid":0}})").code(), "forbidden");
  EXPECT_EQ(ask_as(1234, "GET", "/v1/sessions/roots").code(), "not_found");
  EXPECT_EQ(ask_as(1234, "POST", "/v1/sessions/roots/unmount").code(), "not_found");
  EXPECT_EQ(ask_as(1234, "DELETE", "/v1/sessions/roots").json()["deleted"], false);
  EXPECT_EQ(ask_as(1234, "GET", "/v1/sessions").json()["sessions"].size(), 1u);
  EXPECT_EQ(ask_as(4321, "GET", "/v1/sessions/mine/files/").code(), "not_found");
  EXPECT_EQ(ask("GET", "/v1/sessions").json()["sessions"].size(), 2u);
  struct stat status {};
  ASSERT_EQ(::stat(mount("mine").c_str(), &status), 0);
  EXPECT_EQ(status.st_uid, 1234u);
}

TEST_F(DaemonSessions, AreResetAndRelabelled) {
  start();
  create({{"id", "s1"}});
  write(mount("s1") / "temp/t", "x");
  write(mount("s1") / "outputs/o", "x");
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/checkpoints", R"({"data":{"turn":1}})").status, 201);
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/reset").json()["checkpoints_removed"], 1);
  EXPECT_FALSE(std::filesystem::exists(mount("s1") / "temp/t"));
  EXPECT_TRUE(std::filesystem::exists(mount("s1") / "outputs/o"));
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/labels", R"({"labels":{"n":"v"}})").json()["labels"]["n"], "v");
  EXPECT_EQ(json::parse(read(mount("s1") / ".metadata.json"))["labels"]["n"], "v");
  const auto change = [&](const std::string& body) {
    return ask("POST", "/v1/sessions/s1/labels", body).json()["labels"];
  };
  EXPECT_EQ(change(R"({"set":{"m":"w","n":"u"}})"), (json{{"m", "w"}, {"n", "u"}}));
  EXPECT_EQ(change(R"({"set":{"k":"x"},"remove":["n","none"]})"), (json{{"k", "x"}, {"m", "w"}}));
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/labels", R"({"set":{"":"x"}})").status, 400);
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/labels", "{}").status, 400);
}

TEST_F(DaemonSessions, AreCleanedUnlessTheyAreInUse) {
  start();
  create({{"id", "idle"}});
  create({{"id", "used"}});
  write(mount("used") / "outputs/f", "x");
  std::ifstream open_file(mount("used") / "outputs/f");
  EXPECT_TRUE(ask("POST", "/v1/clean", R"({"older_than_days":1})").json()["removed"].empty());
  EXPECT_EQ(ask("POST", "/v1/clean", R"({"older_than_days":0,"dry_run":true})").json()["removed"],
            json({"idle"}));
  const auto cleaned = ask("POST", "/v1/clean", R"({"older_than_days":0})").json();
  EXPECT_EQ(cleaned["removed"], json({"idle"}));
  EXPECT_EQ(cleaned["skipped"][0]["id"], "used");
}

TEST_F(DaemonSessions, AreCleanedOfNoDefaultAgeWhereTheyAreKeptForEver) {
  start({"--session-ttl-days", "0"});
  create({{"id", "idle"}});
  for (const char* body : {"", "{}", R"({"dry_run":true})", R"({"older_than_days":null})"}) {
    const auto answer = ask("POST", "/v1/clean", body);
    EXPECT_EQ(answer.status, 400) << body;
    EXPECT_THAT(answer.body, ::testing::HasSubstr("older_than_days")) << body;
  }
  EXPECT_EQ(ask("GET", "/v1/sessions/idle").status, 200);
  EXPECT_TRUE(ask("POST", "/v1/clean", R"({"older_than_days":1})").json()["removed"].empty());
  EXPECT_EQ(ask("POST", "/v1/clean", R"({"older_than_days":0})").json()["removed"], json({"idle"}));
}

TEST_F(DaemonSessions, AreSharedByAnAgentsDescendants) {
  start();
  EXPECT_EQ(create({{"agent", "lead"}})["id"], "lead");
  EXPECT_EQ(create({{"agent", "other"}, {"parent_agent", "root"}})["id"], "other");
  for (const auto& [agent, parent] : {std::pair("child", "lead"), std::pair("grandchild", "child")}) {
    const auto answer =
        ask("POST", "/v1/sessions", json({{"agent", agent}, {"parent_agent", parent}}).dump());
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.json()["id"], "lead");
    EXPECT_EQ(answer.json()["inherited"], true);
  }
  EXPECT_EQ(ask("GET", "/v1/agents/grandchild").json()["session"]["id"], "lead");
  EXPECT_EQ(ask("GET", "/v1/agents/lead").json()["children"], json({"child"}));
  std::vector<std::pair<std::string, int>> tree;
  const auto agents = ask("GET", "/v1/agents").json();
  for (const auto& row : agents["agents"]) tree.emplace_back(row["agent"], row["depth"]);
  EXPECT_THAT(tree, ::testing::ElementsAre(std::pair("lead", 1), std::pair("child", 2),
                                           std::pair("grandchild", 3), std::pair("other", 1)));
  EXPECT_EQ(ask("GET", "/v1/agents/nobody").code(), "not_found");
}

TEST_F(DaemonSessions, AreListedByAgentsInPages) {
  start();
  std::vector<std::pair<std::string, std::string>> wanted;  // the agents and their sessions, as a tree
  for (const char* lead : {"z", "lead", "a:b"}) create({{"agent", lead}});
  for (const auto& [agent, parent] :
       {std::pair("c1", "lead"), std::pair("c2", "lead"), std::pair("c11", "c1"), std::pair("d1", "a:b"),
        std::pair("c3", "lead")})
    ASSERT_EQ(ask("POST", "/v1/sessions", json({{"agent", agent}, {"parent_agent", parent}}).dump()).status,
              200);
  ASSERT_EQ(ask_as(1234, "POST", "/v1/sessions", R"({"agent":"lead"})").status, 201);
  const auto list = [&](const std::string& query) { return ask("GET", "/v1/agents" + query).json(); };
  const auto whole = list("");
  EXPECT_EQ(whole["truncated"], false);
  ASSERT_EQ(whole["agents"].size(), 9u);
  std::string tree;
  for (const auto& agent : whole["agents"])
    if (agent["session"] == "lead")
      tree += agent["agent"].get<std::string>() + std::to_string(agent["depth"].get<int>()) + " ";
  EXPECT_EQ(tree, "lead1 c12 c113 c22 c32 ");
  for (const std::size_t limit : {1, 2, 4, 8, 9, 20'000}) {
    json seen = json::array();
    std::string after;
    for (bool has_more = true; has_more;) {
      const auto page = list("?limit=" + std::to_string(limit) + "&after=" + after);
      ASSERT_FALSE(page["agents"].empty());
      EXPECT_LE(page["agents"].size(), limit);
      for (const auto& agent : page["agents"]) seen.push_back(agent);
      has_more = page["truncated"];
      after = seen.back()["session"].get<std::string>() + "/" + seen.back()["agent"].get<std::string>();
    }
    EXPECT_EQ(seen, whole["agents"]) << limit;
  }
  EXPECT_EQ(list("?after=lead/c3")["agents"], list("?after=lead0/")["agents"]);
  EXPECT_EQ(list("?after=lead/gone")["agents"][0]["agent"], "lead")
      << "what is gone ended no page of what is there";
  EXPECT_EQ(ask_as(1234, "GET", "/v1/agents").json()["agents"].size(), 1u);
  for (const char* query : {"?after=lead", "?limit=0", "?limit=x", "?depth=1"})
    EXPECT_EQ(ask("GET", "/v1/agents" + std::string(query)).code(), "invalid_request") << query;
}

/// A registry is brought up to date by moving another directory, or link, to a name.
TEST_F(DaemonSessions, ShowWhatStandsInTheRegistryByNow) {
  namespace fs = std::filesystem;
  add_skill("pdf", "old");
  start();
  create({{"id", "s1"}, {"skills", {"pdf"}}});
  const auto shown = mount("s1") / "skills/pdf/SKILL.md";
  auto file = open_file(shown, O_RDONLY);
  EXPECT_EQ(read(shown), "old");
  fs::create_directory(root_ / "next");
  write(root_ / "next/SKILL.md", "new");
  fs::rename(root_ / "skills/pdf", root_ / "former");
  EXPECT_EQ(read(shown), "old");
  fs::rename(root_ / "next", root_ / "skills/pdf");
  EXPECT_TRUE(comes_true([&] { return read(shown) == "new"; }));
  EXPECT_EQ(test::read(file), "old");
  file.reset();

  // One that had left when the session was mounted.
  fs::rename(root_ / "skills/pdf", root_ / "next");
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/unmount", "{}").status, 200);
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/mount", "{}").status, 200);
  EXPECT_FALSE(fs::exists(shown));
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/skills", R"({"name":"pdf"})").code(), "not_found");
  fs::rename(root_ / "next", root_ / "skills/pdf");
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/skills", R"({"name":"pdf"})").status, 200);
  EXPECT_EQ(read(shown), "new");
}

TEST_F(DaemonSessions, LoadAndUnloadSkills) {
  start();
  add_skill("pdf", "how to");
  create({{"id", "s1"}});
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/skills", R"({"name":"pdf"})").status, 201);
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/skills", R"({"name":"pdf"})").status, 200);
  EXPECT_EQ(read(mount("s1") / "skills/pdf/SKILL.md"), "how to");
  EXPECT_EQ(ask("GET", "/v1/sessions/s1/files/skills").json()["entries"][0]["skill"], true);
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/skills", R"({"name":"none"})").code(), "not_found");
  EXPECT_EQ(ask("DELETE", "/v1/sessions/s1/skills/pdf").json()["skills"].size(), 0u);
  EXPECT_EQ(ask("DELETE", "/v1/sessions/s1/skills/pdf").code(), "not_found");
  EXPECT_FALSE(std::filesystem::exists(mount("s1") / "skills/pdf"));
}

TEST_F(DaemonSessions, AreShownNoHiddenFolderOfTheSkillRegistry) {
  add_skill(".git", "the registry is a clone");
  start();
  EXPECT_TRUE(ask("GET", "/v1/skills").json()["skills"].empty());
  EXPECT_EQ(ask("POST", "/v1/sessions", R"({"id":"s1","skills":[".git"]})").code(), "not_found");
  create({{"id", "s1"}});
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/skills", R"({"name":".git"})").code(), "not_found");
  EXPECT_FALSE(std::filesystem::exists(mount("s1") / "skills/.git"));
}

TEST_F(DaemonSessions, AreShownNothingOfTheHostByLinksInTheSkillRegistry) {
  add_skill("pdf", "how to");
  std::filesystem::create_directories(root_ / "secret");
  std::filesystem::create_directory_symlink(root_ / "secret", root_ / "skills/evil");
  std::filesystem::create_directory_symlink("pdf", root_ / "skills/same");
  add_skill(".git", "with secrets");
  std::filesystem::create_directory_symlink(".git", root_ / "skills/innocent");
  std::filesystem::create_directory_symlink(".", root_ / "skills/all");
  start();
  std::vector<std::string> names;
  const auto listed = ask("GET", "/v1/skills").json();
  for (const auto& skill : listed["skills"]) names.push_back(skill["name"]);
  EXPECT_THAT(names, ::testing::ElementsAre("pdf", "same"));
  EXPECT_EQ(ask("POST", "/v1/sessions", R"({"id":"s1","skills":["evil"]})").code(), "not_found");
  create({{"id", "s2"}, {"skills", json::array({"same"})}});
  EXPECT_EQ(read(mount("s2") / "skills/same/SKILL.md"), "how to");
}

TEST_F(DaemonSessions, BindWorkdirs) {
  const auto projects = root_ / "projects";
  std::filesystem::create_directories(projects / "a");
  std::filesystem::create_directories(projects / "b");
  std::filesystem::create_symlink("/etc", projects / "escape");
  start({"--workdir-allow-root", projects});
  const auto bound = create({{"id", "s1"}, {"workdir", projects / "a"}, {"device_id", "d"}});
  EXPECT_EQ(bound["workdir"], (projects / "a").string());
  EXPECT_EQ(bound["workdir_policy"], "existing");
  EXPECT_EQ(bound["cwd"], (mount("s1") / "workdir").string());
  write(mount("s1") / "workdir/inside", "x");
  EXPECT_EQ(read(projects / "a/inside"), "x");
  write(projects / "a/outside", "y");
  EXPECT_EQ(read(mount("s1") / "workdir/outside"), "y");

  for (const std::string& path :
       {std::string("/etc"), std::string(projects / "escape"), std::string("relative"),
        std::string(root_ / "state"), std::string(projects / "none")}) {
    const auto session = create({{"workdir", path}});
    EXPECT_EQ(session["workdir"], nullptr) << path;
    EXPECT_EQ(session["workdir_policy"], "managed");
    EXPECT_EQ(session["workdir_fallback"]["requested"], path);
  }
  const auto switched =
      ask("POST", "/v1/sessions/s1/workdir", json({{"workdir", projects / "b"}, {"device_id", "d"}}).dump());
  EXPECT_EQ(switched.json()["remounted"], true);
  for (const auto& refused : {json{{"workdir", "/etc"}}, json::object()}) {
    const auto answer = ask("POST", "/v1/sessions/s1/workdir", refused.dump());
    EXPECT_THAT(answer.status, ::testing::AnyOf(403, 404)) << answer.body;
    EXPECT_EQ(ask("GET", "/v1/sessions/s1").json()["workdir"], (projects / "b").string());
  }
  EXPECT_EQ(switched.json()["previous_workdir"], (projects / "a").string());
  EXPECT_FALSE(std::filesystem::exists(mount("s1") / "workdir/inside"));
  EXPECT_EQ(ask("GET", "/v1/workdirs").json()["workdirs"][0]["path"], (projects / "b").string());
  ask("DELETE", "/v1/sessions/s1");
  EXPECT_EQ(create({{"id", "s1"}, {"device_id", "d"}})["workdir"], (projects / "b").string());
  EXPECT_EQ(create({{"id", "s2"}, {"device_id", "d"}})["workdir"], nullptr);
}

TEST_F(DaemonSessions, BindNoWholeHomeHoweverItIsNamed) {
  const auto projects = root_ / "projects";
  std::filesystem::create_directories(projects / "people/home/mine");
  std::filesystem::create_directory_symlink(projects / "people", root_ / "link");
  for (const char* name : {".", "people", "people/home", "people/home/mine"})
    ASSERT_EQ(::chown((projects / name).c_str(), kAlice.uid, kAlice.gid), 0);
  const OneMoreUser alice(kAlice.uid, root_ / "link/home", root_);
  start({"--workdir-allow-root", projects});
  const json owner{{"uid", kAlice.uid}, {"gid", kAlice.gid}};
  for (const auto& path :
       {std::string("~"), (root_ / "link/home").string(), (projects / "people/home").string(),
        (projects / "people").string(), projects.string()}) {
    const auto session = create({{"workdir", path}, {"owner", owner}});
    EXPECT_EQ(session["workdir"], nullptr) << path;
    EXPECT_THAT(session["workdir_fallback"].dump(), ::testing::HasSubstr("whole home")) << path;
  }
  EXPECT_EQ(create({{"workdir", "~/mine"}, {"owner", owner}})["workdir"],
            (projects / "people/home/mine").string());
  stop();
}

TEST_F(DaemonSessions, AreListedInPages) {
  start();
  const std::set<std::string> ids{"a1", "a2", "b1", "b2", "b3"};
  for (const auto& id : ids) create({{"id", id}, {"labels", {{"kind", id.substr(0, 1)}}}});
  const auto list = [&](const std::string& query) { return ask("GET", "/v1/sessions?" + query).json(); };
  EXPECT_EQ(list("limit=5")["truncated"], false);
  EXPECT_EQ(list("limit=4")["truncated"], true);
  EXPECT_EQ(list("limit=20000")["sessions"].size(), 5u);
  EXPECT_EQ(list("limit=2&label=kind=a")["truncated"], false) << "of those with the label";
  EXPECT_EQ(list("limit=2&prefix=b")["truncated"], true);
  const auto ids_of = [](const json& page) {
    std::vector<std::string> found;
    for (const auto& session : page["sessions"]) found.push_back(session["id"]);
    return found;
  };
  EXPECT_THAT(ids_of(list("after=")), ::testing::ElementsAreArray(ids)) << "by id, whenever they were used";
  const auto page = list("after=a1&limit=2");
  EXPECT_THAT(ids_of(page), ::testing::ElementsAre("a2", "b1"));
  EXPECT_EQ(page["truncated"], true);
  EXPECT_THAT(ids_of(list("after=b1&prefix=b")), ::testing::ElementsAre("b2", "b3"));
  EXPECT_EQ(list("after=b1&limit=2")["truncated"], false);
}

TEST_F(DaemonSessions, BindTheirWorkdirAgainOnceItIsThereAgain) {
  const auto workdir = root_ / "projects/w", away = root_ / "projects/away";
  std::filesystem::create_directories(workdir);
  write(workdir / "f", "here");
  start({"--keeper", "--workdir-allow-root", root_ / "projects"});
  create({{"id", "s1"}, {"workdir", workdir}});
  const auto mount_again = [&] {
    EXPECT_EQ(ask("POST", "/v1/sessions/s1/unmount").status, 200);
    EXPECT_EQ(ask("POST", "/v1/sessions/s1/mount").status, 200);
  };
  const auto replace_daemon = [&] { kill_daemon(); };
  for (const auto& begin_anew : std::vector<std::function<void()>>{mount_again, replace_daemon}) {
    std::filesystem::rename(workdir, away);
    begin_anew();
    const auto without = ask("POST", "/v1/sessions/s1/labels", R"({"labels":{"a":"b"}})").json();
    EXPECT_EQ(without["workdir"], nullptr);
    EXPECT_EQ(without["workdir_policy"], "managed");
    EXPECT_EQ(without["cwd"], (mount("s1") / "outputs").string());
    EXPECT_EQ(without["workdir_fallback"]["requested"], workdir.string());
    std::filesystem::rename(away, workdir);
    begin_anew();
    const auto with = ask("GET", "/v1/sessions/s1").json();
    EXPECT_EQ(with["workdir"], workdir.string());
    EXPECT_EQ(with["workdir_policy"], "existing");
    EXPECT_EQ(with["workdir_fallback"], nullptr);
    EXPECT_EQ(read(mount("s1") / "workdir/f"), "here");
  }
}

TEST_F(DaemonSessions, BindRepositoriesByTheirRemote) {
  const auto repository = root_ / "projects/r";
  std::filesystem::create_directories(repository.parent_path());
  if (std::system(("git init -q " + repository.string() + " && git -C " + repository.string() +
                   " remote add origin git@example.org:team/r.git")
                      .c_str()) != 0)
    GTEST_SKIP() << "git is not installed";
  start({"--workdir-allow-root", root_ / "projects"});
  const json request{
      {"workdir_policy", "repo-bound"}, {"git_url", "https://example.org/team/r"}, {"branch", "main"}};
  EXPECT_EQ(create(request)["workdir_policy"], "managed");
  auto with_path = request;
  with_path["workdir"] = repository;
  EXPECT_EQ(create(with_path)["workdir_policy"], "repo-bound");
  EXPECT_EQ(create(request)["workdir"], repository.string());
  with_path["git_url"] = "https://example.org/team/other";
  EXPECT_THAT(create(with_path)["workdir_fallback"]["reason"], ::testing::HasSubstr("remote"));
}

TEST_F(DaemonSessions, DoNotWaitForARepositoryThatIsAFifo) {
  const auto config = root_ / "projects/r/.git/config";
  for (const char* folder : {"objects", "refs"})
    std::filesystem::create_directories(config.parent_path() / folder);
  write(config.parent_path() / "HEAD", "ref: refs/heads/main\n");
  ASSERT_EQ(::mkfifo(config.c_str(), 0666), 0);
  start({"--workdir-allow-root", root_ / "projects"});
  const json request{{"workdir", root_ / "projects/r"},
                     {"workdir_policy", "repo-bound"},
                     {"git_url", "https://example.org/r"}};
  auto session = std::async(std::launch::async, [&] { return create(request); });
  const bool is_answered = session.wait_for(kTimeout) == std::future_status::ready;
  EXPECT_TRUE(is_answered);
  if (!is_answered) {
    const FileDescriptor writer(::open(config.c_str(), O_RDWR | O_CLOEXEC));
    std::filesystem::remove(config);
  }
  EXPECT_EQ(session.get()["workdir_policy"], "managed");
}

TEST_F(DaemonSessions, AreBroughtBackWhenTheirWorkdirBecameALinkIntoThem) {
  const auto workdir = root_ / "projects/w";
  std::filesystem::create_directories(workdir);
  start({"--keeper", "--workdir-allow-root", root_ / "projects"});
  EXPECT_EQ(create({{"id", "s1"}, {"workdir", workdir}})["workdir"], workdir.string());
  std::filesystem::rename(workdir, root_ / "projects/w2");
  std::filesystem::create_directory_symlink(mount("s1") / "outputs", workdir);
  kill_daemon();
  auto session = std::async(std::launch::async, [&] { return ask("GET", "/v1/sessions/s1").json(); });
  const bool is_back = session.wait_for(kTimeout) == std::future_status::ready;
  EXPECT_TRUE(is_back);
  if (!is_back) end_mounts_below(root_);
  const auto found = session.get();
  EXPECT_EQ(found["state"], "mounted");
  EXPECT_EQ(found["workdir"], nullptr);
  EXPECT_EQ(found["workdir_fallback"]["requested"], workdir.string());
  EXPECT_THAT(found["workdir_fallback"]["reason"], ::testing::HasSubstr("link"));
}

TEST_F(DaemonSessions, AreAllListedHoweverManyTheyAre) {
  constexpr int kMany = 1001;
  const auto state = root_ / "state";
  std::filesystem::create_directories(state);
  std::filesystem::permissions(state, std::filesystem::perms(0700));
  {
    const auto registry = daemon::Registry::open(state / "sessions.db", false);
    ASSERT_TRUE(registry);
    for (int i = 0; i < kMany; ++i) {
      daemon::SessionRecord record(*SessionId::parse("s" + std::to_string(i)));
      record.created_at = daemon::time_now();
      record.state = daemon::SessionPhase::kUnmounted;
      ASSERT_TRUE((*registry)->insert(record));
    }
  }
  start();
  EXPECT_EQ(ask("GET", "/v1/sessions").json()["sessions"].size(), static_cast<std::size_t>(kMany));
  EXPECT_EQ(ask("GET", "/v1/sessions?limit=7").json()["sessions"].size(), 7u);
}

TEST_F(DaemonSessions, TakeLabelsOfABoundedSizeInAll) {
  start();
  create({{"id", "s1"}});
  json labels;
  for (int i = 0; i < 16; ++i) labels["l" + std::to_string(i)] = std::string(4000, 'x');
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/labels", json{{"labels", labels}}.dump()).status, 200);
  labels["more"] = std::string(4000, 'x');
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/labels", json{{"labels", labels}}.dump()).code(), "invalid_request");
  EXPECT_EQ(ask("GET", "/v1/sessions/s1").json()["labels"].size(), 16u);
}

}  // namespace
}  // namespace okcvm::test
