#include "tests/tools_cli/program_test.h"

namespace okcvm::cli::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const json kSession{{"id", "12ab34cd"},
                    {"mount", "/mnt/okcvm-12ab34cd"},
                    {"state", "mounted"},
                    {"owner", {{"uid", 1000}, {"gid", 1000}, {"name", "alice"}}},
                    {"mode", "0700"},
                    {"created_at", "2026-11-21T22:05:05.123Z"},
                    {"last_used_at", "2026-11-21T22:05:05.123Z"},
                    {"labels", {{"team", "blue"}}},
                    {"skills", {"pdf", "xlsx"}},
                    {"agent", nullptr},
                    {"workdir_fallback", nullptr}};

class SessionVerbs : public ProgramTest {
 protected:
  void answer_with(const json& body) { daemon_answers(reply(200, body.dump())); }
};

TEST_F(SessionVerbs, CreatePrintsTheMountPointAlone) {
  answer_with(kSession);
  const auto ran = okcvm("create");
  EXPECT_EQ(ran.status, 0);
  EXPECT_EQ(ran.out, "/mnt/okcvm-12ab34cd\n");
  EXPECT_EQ(ran.err, "");
  EXPECT_EQ(daemon_->last().method + " " + daemon_->last().target, "POST /v1/sessions");
  EXPECT_EQ(json::parse(daemon_->last().body), json::object());
}

TEST_F(SessionVerbs, CreateSendsWhatWasAskedFor) {
  answer_with(kSession);
  ASSERT_EQ(
      okcvm("create --id s1 --mode 0750 --owner 1000:100 -l a=b --label 'c=d=e' -s pdf -s xlsx --agent x "
            "--parent-agent root --task t --workdir rel --workdir-policy existing --device-id mac "
            "--git-url u --branch main")
          .status,
      0);
  EXPECT_EQ(json::parse(daemon_->last().body), (json{{"id", "s1"},
                                                     {"mode", "0750"},
                                                     {"owner", {{"uid", 1000}, {"gid", 100}}},
                                                     {"labels", {{"a", "b"}, {"c", "d=e"}}},
                                                     {"skills", {"pdf", "xlsx"}},
                                                     {"agent", "x"},
                                                     {"parent_agent", "root"},
                                                     {"task", "t"},
                                                     {"workdir", scratch_.path().string() + "/rel"},
                                                     {"workdir_policy", "existing"},
                                                     {"device_id", "mac"},
                                                     {"git_url", "u"},
                                                     {"branch", "main"}}));
}

TEST_F(SessionVerbs, CreateSaysWhyAWorkdirIsNotUsed) {
  auto session = kSession;
  session["workdir_fallback"] = {{"requested", "/etc"}, {"reason", "it is a sensitive directory"}};
  answer_with(session);
  const auto ran = okcvm("create --workdir /etc");
  EXPECT_EQ(ran.status, 0);
  EXPECT_EQ(ran.out, "/mnt/okcvm-12ab34cd\n");
  EXPECT_EQ(ran.err, "okcvm: note: the workdir /etc is not used: it is a sensitive directory\n");
}

TEST_F(SessionVerbs, InfoSaysWhyAWorkdirIsNotUsed) {
  auto session = kSession;
  session["workdir_fallback"] = {{"requested", "/srv/a"}, {"reason", "it is gone"}};
  answer_with(session);
  EXPECT_THAT(okcvm("info 12").out, HasSubstr("\nworkdir unbound  /srv/a: it is gone\n"));
}

TEST_F(SessionVerbs, RootSaysWhoseAgentIsMeant) {
  answer_with(
      {{"agent", "a b"}, {"parent_agent", "root"}, {"children", json::array()}, {"session", kSession}});
  EXPECT_THAT(okcvm("agents 'a b' --owner 1000 --json").json()["agent"], "a b");
  EXPECT_EQ(daemon_->last().target, "/v1/agents/a%20b?owner=1000");
  EXPECT_EQ(okcvm("agents --owner 1000").status, 2);
}

TEST_F(SessionVerbs, CreateRefusesWhatItCannotSend) {
  answer_with(kSession);
  EXPECT_EQ(okcvm("create --label nothing").status, 2);
  EXPECT_EQ(okcvm("create --owner alice").status, 2);
  EXPECT_EQ(okcvm("create --owner 1:").status, 2);
  EXPECT_EQ(okcvm("create --owner 4294967296").status, 2);
  const auto ran = okcvm("create --task $'\\xff'");
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.err, HasSubstr("not UTF-8"));
  EXPECT_TRUE(daemon_->seen().empty());
}

TEST_F(SessionVerbs, ListIsATableForPeopleAndJsonForPrograms) {
  answer_with({{"sessions", {kSession}}});
  const auto table = okcvm("list --prefix 12 -n 5");
  EXPECT_THAT(table.out, HasSubstr("SESSION   STATE    OWNER"));
  EXPECT_THAT(table.out, HasSubstr("12ab34cd  mounted  alice"));
  EXPECT_THAT(table.out, HasSubstr("team=blue"));
  EXPECT_EQ(daemon_->last().target, "/v1/sessions?prefix=12&limit=5");
  EXPECT_EQ(okcvm("list --json").json(), (json{{"sessions", {kSession}}}));
}

TEST_F(SessionVerbs, ListCutsLabelsThatWouldNotFitATerminal) {
  auto session = kSession;
  session["labels"] = {{"note", "日本" + std::string(4096, 'x')}};
  answer_with({{"sessions", {session}}});
  const auto table = okcvm("list").out;
  EXPECT_THAT(table, HasSubstr("  note=日本xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…  /mnt/okcvm-12ab34cd\n"));
  EXPECT_EQ(okcvm("list --json").json(), (json{{"sessions", {session}}}));
}

TEST_F(SessionVerbs, ListOfMoreThanTheDaemonTellsAtOnceIsComplete) {
  const auto session = [](const char* id, const char* used) {
    return json{{"id", id}, {"last_used_at", used}};
  };
  const auto a = session("a", "2026-11-21T22:05:05.000Z"), b = session("b", "2026-11-21T22:05:07.000Z"),
             c = session("c", "2026-11-21T22:05:06.000Z");
  daemon_answers([&](const SeenRequest& request) {
    const auto page = [](const json& sessions, bool truncated) {
      return reply(200, json{{"sessions", sessions}, {"truncated", truncated}}.dump());
    };
    if (request.target.find("after=") == std::string::npos) return page(json::array({b}), true);
    if (request.target.ends_with("after=")) return page(json::array({a, b}), true);
    return page(json::array({c}), false);
  });
  EXPECT_EQ(okcvm("list --json").json()["sessions"], json::array({b, c, a}));
  EXPECT_EQ(daemon_->last().target, "/v1/sessions?after=b");
  EXPECT_EQ(okcvm("list --prefix x -n 2 --json").json()["sessions"], json::array({b, c}));
  EXPECT_EQ(daemon_->last().target, "/v1/sessions?prefix=x&after=b");
  EXPECT_EQ(okcvm("list -n 1 --json").json()["sessions"], json::array({b}));
  EXPECT_EQ(daemon_->last().target, "/v1/sessions?limit=1") << "one is enough";
}

TEST_F(SessionVerbs, AgentsOfMoreThanTheDaemonTellsAtOnceAreComplete) {
  const json a{{"agent", "a"}, {"session", "s1"}}, b{{"agent", "b@x"}, {"session", "s1"}},
      c{{"agent", "c"}, {"session", "s2"}};
  daemon_answers([&](const SeenRequest& request) {
    const bool is_first = request.target == "/v1/agents?after=";
    return reply(200,
                 json{{"agents", is_first ? json{a, b} : json::array({c})}, {"truncated", is_first}}.dump());
  });
  EXPECT_EQ(okcvm("agents --json").json(), (json{{"agents", {a, b, c}}, {"truncated", false}}));
  EXPECT_EQ(daemon_->last().target, "/v1/agents?after=s1%2Fb%40x");
}

TEST_F(SessionVerbs, InfoJoinsTheSessionAndItsUse) {
  daemon_answers([](const SeenRequest& request) {
    if (!request.target.ends_with("/info")) return reply(200, kSession.dump());
    return reply(
        200,
        json{{"id", "12ab34cd"}, {"files", 3}, {"directories", 1}, {"bytes", 2048}, {"materialized", true}}
            .dump());
  });
  const auto info = okcvm("info 12 --json").json();
  EXPECT_EQ(info["mount"], "/mnt/okcvm-12ab34cd");
  EXPECT_EQ(info["files"], 3);
  EXPECT_EQ(daemon_->last().target, "/v1/sessions/12ab34cd/info");
  const auto text = okcvm("info 12").out;
  EXPECT_THAT(text, HasSubstr("contents         3 files, 1 directory, 2.0 KiB\n"));
  EXPECT_THAT(text, HasSubstr("created          2026-11-21 22:05:05\n"));
}

TEST_F(SessionVerbs, PathPrintsTheMountPoint) {
  answer_with(kSession);
  EXPECT_EQ(okcvm("path 12").out, "/mnt/okcvm-12ab34cd\n");
  EXPECT_EQ(daemon_->last().target, "/v1/sessions/12");
}

TEST_F(SessionVerbs, LoadMountsByPrefix) {
  answer_with(kSession);
  EXPECT_EQ(okcvm("load 12").out, "/mnt/okcvm-12ab34cd\n");
  EXPECT_EQ(daemon_->last().method + " " + daemon_->last().target, "POST /v1/sessions/12/mount");
}

TEST_F(SessionVerbs, LabelNamesWhatItSetsAndRemoves) {
  answer_with(kSession);
  EXPECT_EQ(okcvm("label 12").out, "team=blue\n");
  EXPECT_EQ(daemon_->last().method, "GET");
  EXPECT_EQ(okcvm("label 12 run=7 'note=a b=c' -r other").out, "team=blue\n");
  EXPECT_EQ(daemon_->last().method + " " + daemon_->last().target, "POST /v1/sessions/12/labels");
  EXPECT_EQ(json::parse(daemon_->last().body),
            (json{{"set", {{"run", "7"}, {"note", "a b=c"}}}, {"remove", {"other"}}}));
  EXPECT_EQ(okcvm("label 12 -r team --json").json(),
            (json{{"id", "12ab34cd"}, {"labels", {{"team", "blue"}}}}));
  EXPECT_EQ(okcvm("label 12 team").status, 2);
}

TEST_F(SessionVerbs, UnmountForcesOnlyWhenTold) {
  answer_with(kSession);
  okcvm("unmount 12");
  EXPECT_EQ(daemon_->last().body, R"({"force":false})");
  okcvm("unmount 12 --force");
  EXPECT_EQ(daemon_->last().body, R"({"force":true})");
}

/// Answers as the daemon does: one session for its id or a prefix, a list that may not be the whole, and
/// deletion by whole id only.
FakeDaemon::Answer sessions_named(const std::vector<std::string>& ids) {
  return [ids](const SeenRequest& request) {
    if (request.method == "DELETE") return reply(200, json{{"id", "x"}, {"deleted", true}}.dump());
    const std::string folder = "/v1/sessions/";
    if (!request.target.starts_with(folder)) {
      auto rows = json::array();
      for (const auto& id : ids)
        if (id.size() > 2) rows.push_back({{"id", id}});
      return reply(200, json{{"sessions", rows}}.dump());
    }
    std::vector<std::string> found;
    for (const auto& id : ids) {
      if (id == request.target.substr(folder.size())) return reply(200, json{{"id", id}}.dump());
      if (id.starts_with(request.target.substr(folder.size()))) found.push_back(id);
    }
    if (found.size() > 1) return refusal(409, "ambiguous_prefix", "several");
    return found.empty() ? refusal(404, "not_found", "none") : reply(200, json{{"id", found[0]}}.dump());
  };
}

TEST_F(SessionVerbs, DeleteFindsTheWholeIdFirst) {
  daemon_answers(sessions_named({"12ab34cd"}));
  EXPECT_EQ(okcvm("delete 12ab").out, "deleted 12ab34cd\n");
  EXPECT_EQ(daemon_->last().target, "/v1/sessions/12ab34cd");
}

TEST_F(SessionVerbs, DeleteOfAWholeIdIsNotAmbiguousWithLongerOnes) {
  daemon_answers(sessions_named({"12", "12ab34cd", "12ab34ce"}));
  EXPECT_EQ(okcvm("delete 12").status, 0);
  EXPECT_EQ(daemon_->last().target, "/v1/sessions/12");
}

TEST_F(SessionVerbs, DeleteGivenTwiceDeletesNoSessionOfALongerName) {
  daemon_answers([&, answer = sessions_named({"job-10"})](const SeenRequest& request) {
    if (request.method == "DELETE") {
      EXPECT_EQ(request.target, "/v1/sessions/job-1");
    }
    return request.method == "DELETE" ? reply(200, R"({"id":"job-1","deleted":false})") : answer(request);
  });
  const auto ran = okcvm("delete job-1");
  EXPECT_EQ(ran.status, 0);
  EXPECT_EQ(ran.out, "there is no session job-1: nothing to do (to delete job-10, name it in full)\n");
}

TEST_F(SessionVerbs, DeleteGivenTwiceIsDoneThoughSeveralNamesBeginLikeIt) {
  daemon_answers([answer = sessions_named({"build-1", "build-2"})](const SeenRequest& request) {
    return request.method == "DELETE" ? reply(200, R"({"id":"build","deleted":false})") : answer(request);
  });
  const auto ran = okcvm("delete build");
  EXPECT_EQ(ran.status, 0);
  EXPECT_EQ(ran.out, "there is no session build: nothing to do\n");
}

TEST_F(SessionVerbs, DeleteGivenTwiceDeletesNoSessionWhoseIdWasMadeUp) {
  daemon_answers([answer = sessions_named({"2dee2d40"})](const SeenRequest& request) {
    return request.method == "DELETE" ? reply(200, R"({"id":"2","deleted":false})") : answer(request);
  });
  EXPECT_EQ(okcvm("delete 2").out,
            "there is no session 2: nothing to do (to delete 2dee2d40, name it in full)\n");
  EXPECT_EQ(daemon_->last().target, "/v1/sessions/2");
}

TEST_F(SessionVerbs, DeleteOfAnAmbiguousPrefixDeletesNothing) {
  daemon_answers(sessions_named({"12ab34cd", "12ffffff"}));
  const auto ran = okcvm("delete 12");
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.err, HasSubstr("okcvm: ambiguous_prefix: "));
  for (const auto& request : daemon_->seen()) EXPECT_EQ(request.method, "GET");
}

TEST_F(SessionVerbs, DeleteOfNothingIsDone) {
  daemon_answers([](const SeenRequest& request) {
    return request.method == "GET" ? refusal(404, "not_found", "none")
                                   : reply(200, R"({"id":"gone","deleted":false})");
  });
  const auto ran = okcvm("delete gone");
  EXPECT_EQ(ran.status, 0);
  EXPECT_EQ(ran.out, "there is no session gone: nothing to do\n");
}

TEST_F(SessionVerbs, CleanSaysWhatItRemovedAndKept) {
  answer_with(
      {{"removed", {"a", "b"}}, {"skipped", {{{"id", "c"}, {"reason", "open files"}}}}, {"dry_run", false}});
  EXPECT_EQ(okcvm("clean --older-than-days 3").out, "removed 2 sessions: a, b\nkept c: open files\n");
  EXPECT_EQ(daemon_->last().body, R"({"older_than_days":3})");
  okcvm("clean --dry-run");
  EXPECT_EQ(daemon_->last().body, R"({"dry_run":true})");
}

TEST_F(SessionVerbs, AgentsAreShownAsATree) {
  answer_with({{"agents",
                {{{"agent", "root"},
                  {"parent_agent", nullptr},
                  {"session", "s1"},
                  {"depth", 0},
                  {"owner", {{"uid", 7}}}},
                 {{"agent", "kid"},
                  {"parent_agent", "root"},
                  {"session", "s1"},
                  {"depth", 2},
                  {"owner", {{"uid", 7}}}}}}});
  EXPECT_EQ(okcvm("agents").out,
            "AGENT  PARENT  SESSION  UID\n"
            "root   -       s1         7\n"
            "  kid  root    s1         7\n");
}

TEST_F(SessionVerbs, AnAgentIsShownWithWhatItsSessionHolds) {
  daemon_answers([](const SeenRequest& request) {
    return reply(200, request.target == "/v1/agents/kid"
                          ? R"({"agent":"kid","parent_agent":"root","children":[],"session":{"id":"s1"}})"
                          : R"({"files":3,"directories":1,"bytes":5,"materialized":true,"open_files":2})");
  });
  const auto told = okcvm("agents kid").out;
  EXPECT_EQ(daemon_->last().target, "/v1/sessions/s1/info");
  EXPECT_THAT(told, HasSubstr("contents         3 files, 1 directory, 5 B\n"));
  EXPECT_THAT(told, HasSubstr("on disk          yes\nopen files       2\n"));
}

TEST_F(SessionVerbs, AWorkdirIsNotSwitchedUnderOpenFilesUnlessForced) {
  answer_with({{"session", {{"id", "12"}}}});
  okcvm("workdir 12 /srv/a");
  EXPECT_EQ(daemon_->last().body, R"({"workdir":"/srv/a","force":false})");
  okcvm("workdir 12 /srv/a --force");
  EXPECT_EQ(daemon_->last().body, R"({"workdir":"/srv/a","force":true})");
}

TEST_F(SessionVerbs, SkillsOfTheHostAndOfASession) {
  daemon_answers([](const SeenRequest& request) {
    return reply(200, request.target == "/v1/skills"
                          ? R"({"skills":[{"name":"pdf","description":"Read PDF"}]})"
                          : R"({"skills":["pdf"]})");
  });
  EXPECT_EQ(okcvm("skills").out, "SKILL  DESCRIPTION\npdf    Read PDF\n");
  EXPECT_EQ(okcvm("skills 12").out, "pdf\n");
  EXPECT_EQ(okcvm("skill load 12 pdf").out, "loaded: pdf\n");
  EXPECT_EQ(daemon_->last().body, R"({"name":"pdf"})");
  EXPECT_EQ(okcvm("skill unload 12 'p/f'").status, 0);
  EXPECT_EQ(daemon_->last().method + " " + daemon_->last().target, "DELETE /v1/sessions/12/skills/p%2Ff");
}

}  // namespace
}  // namespace okcvm::cli::test
