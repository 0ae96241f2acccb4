#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/support/process.h"
#include "tests/tools/daemon_fixture.h"

namespace okcvm::test {
namespace {

using nlohmann::json;

class DaemonSnapshots : public DaemonWithSession {
 protected:
  HttpAnswer post(const std::string& route, const json& body = json::object(),
                  const std::map<std::string, std::string>& headers = {}) {
    return ask("POST", "/v1/sessions/s1/" + route, body.dump(), headers);
  }
  json get(const std::string& route) { return ask("GET", "/v1/sessions/s1/" + route).json(); }
  std::filesystem::path file() const { return mount("s1") / "outputs/f"; }

  /// Begins what takes hours, and answers when it is seen to be at work.
  HttpClient begin(const std::string& method, const std::string& route) {
    write(file(), "");
    std::filesystem::resize_file(file(), std::uintmax_t{1} << 42);
    auto client = connect_as(0);
    client.send(method + " /v1/sessions/s1/" + route +
                " HTTP/1.1\r\nHost: okcvm\r\nAccept: application/x-ndjson\r\nContent-Length: 0\r\n\r\n");
    client.receive_until("progress");
    return client;
  }
};

TEST_F(DaemonSnapshots, OfMuchAreGivenUpWhenTheSessionIsDeleted) {
  for (const auto& [method, route] :
       {std::pair("POST", "snapshots"), std::pair("POST", "fork"), std::pair("GET", "diff?from=")}) {
    if (std::string(method) == "GET") {
      EXPECT_EQ(post("snapshots").status, 201);
    }
    auto working = begin(method, route);
    EXPECT_EQ(ask("DELETE", "/v1/sessions/s1").status, 200) << route;
    EXPECT_THAT(working.receive_until("\"busy\""), ::testing::HasSubstr("\"error\"")) << route;
    create({{"id", "s1"}});
  }
}

TEST_F(DaemonSnapshots, OfMuchAreGivenUpWhenWhoWatchesThemIsGone) {
  const auto id = post("snapshots").json()["id"].get<std::string>();
  for (const auto& [method, route] :
       {std::pair("POST", "snapshots"), std::pair("GET", "diff"), std::pair("GET", "verify")}) {
    begin(method, route);
    EXPECT_EQ(get("snapshots/" + id)["snapshot"]["id"], id) << route;  // waits for the store
  }
}

TEST_F(DaemonSnapshots, AreRestoredAtPathsThatAreNoText) {
  const auto outputs = mount("s1") / "outputs";
  for (const char* name : {"\xff b", "c", "d"}) write(outputs / name, "old");
  const auto id = post("snapshots").json()["id"];
  for (const char* name : {"\xff b", "c", "d"}) write(outputs / name, "new");
  const auto restored =
      post("restore", {{"snapshot", id}, {"paths", {"outputs/c"}}, {"encoded_paths", {"outputs/%FF%20b"}}});
  ASSERT_EQ(restored.status, 200) << restored.body;
  EXPECT_EQ(restored.json()["total"], 2);
  EXPECT_EQ(read(outputs / "\xff b"), "old");
  EXPECT_EQ(read(outputs / "c"), "old");
  EXPECT_EQ(read(outputs / "d"), "new");
  const auto refused = [&](const json& paths) {
    return post("restore", {{"snapshot", id}, {"encoded_paths", paths}}).code();
  };
  for (const auto& paths :
       {json::array(), json{"outputs/%zz"}, json{"%00"}, json{""}, json{1}, json("outputs/d")})
    EXPECT_EQ(refused(paths), "invalid_request") << paths;
  EXPECT_EQ(post("restore", {{"snapshot", id}, {"paths", {"../x"}}, {"encoded_paths", {"outputs/d"}}}).code(),
            "path_traversal_blocked");
  EXPECT_EQ(refused({"outputs/%2e%2e/x"}), "path_traversal_blocked");
  EXPECT_EQ(post("restore", {{"snapshot", id}, {"encoded_paths", {"outputs/d"}}}).json()["total"], 1);
}

TEST_F(DaemonSnapshots, TellOfAllThatIsNoTextSoThatItCanBeNamed) {
  const auto outputs = mount("s1") / "outputs";
  write(outputs / "n\xe9", "a file that is recognised by its content");
  ASSERT_EQ(::mkfifo((outputs / "p\xe9").c_str(), 0644), 0);
  const FileDescriptor open(::open((outputs / "w\xe9").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
  const auto snapshot = post("snapshots").json();
  EXPECT_EQ(snapshot["encoded_in_flight"], json{"outputs/w%E9"}) << snapshot;
  EXPECT_EQ(snapshot["encoded_left_out"], json{"outputs/p%E9"}) << snapshot;
  std::filesystem::rename(outputs / "n\xe9", outputs / "plain");
  const auto changes = get("diff")["changes"];
  ASSERT_EQ(changes.size(), 1u) << changes;
  EXPECT_EQ(changes[0]["kind"], "renamed");
  EXPECT_EQ(changes[0]["encoded_renamed_from"], "outputs/n%E9");
  std::filesystem::remove(outputs / "p\xe9");
  write(outputs / "plain", "changed");
  EXPECT_FALSE(post("snapshots").json().contains("encoded_left_out"));
}

TEST_F(DaemonSnapshots, AreVerifiedWithoutAWordOfWhereTheyAreKept) {
  write(file(), "one");
  ASSERT_EQ(post("snapshots").status, 201);
  const auto repository = root_ / "state/snapshots/s1.git";
  write(repository / "HEAD", "ref: refs/heads/none\n");
  write(repository / "config", "[core]\n\trepositoryformatversion = 0\n\tbare = true\n\tfilemode = maybe\n");
  const auto found = get("verify");
  ASSERT_EQ(found["problems"].size(), 2u) << found;
  EXPECT_THAT(found["problems"][0], ::testing::HasSubstr("HEAD"));
  EXPECT_THAT(found["problems"][1], ::testing::HasSubstr("config"));
  EXPECT_THAT(found.dump(), ::testing::Not(::testing::HasSubstr(root_.string())));
}

TEST_F(DaemonSnapshots, AreTakenShownComparedAndRestored) {
  write(file(), "one");
  EXPECT_TRUE(get("verify").at("snapshot").is_null()) << "there is none";
  const auto first = post("snapshots", {{"label", "first"}});
  ASSERT_EQ(first.status, 201) << first.body;
  const auto id = first.json()["id"].get<std::string>();
  EXPECT_EQ(post("snapshots").json()["unchanged"], true);
  write(file(), "two two");
  const auto diff = get("diff");
  ASSERT_EQ(diff["changes"].size(), 1u) << diff;
  EXPECT_EQ(diff["changes"][0]["kind"], "changed");
  EXPECT_EQ(post("restore", {{"snapshot", id}, {"dry_run", true}}).json()["changes"].size(), 1u);
  EXPECT_EQ(read(file()), "two two");
  EXPECT_EQ(get("diff?from=" + id.substr(0, 8))["from"], id);
  EXPECT_EQ(get("diff")["from"], id) << "the newest";
  EXPECT_EQ(get("diff?from=&to="), get("diff"));
  EXPECT_EQ(post("restore", {{"snapshot", id.substr(0, 8)}}).json()["snapshot"], id);
  EXPECT_EQ(read(file()), "one");
  EXPECT_EQ(post("restore", {{"snapshot", id}, {"paths", {"temp"}}, {"dry_run", true}}).status, 200)
      << "not on disk yet";
  EXPECT_EQ(post("undo").status, 200);
  EXPECT_EQ(read(file()), "two two");
  EXPECT_EQ(get("snapshots?limit=1")["snapshots"].size(), 1u);
  EXPECT_EQ(get("snapshots?limit=1")["truncated"], true);
  const auto all = get("snapshots")["snapshots"];
  const auto rest = get("snapshots?limit=1&after=" + all[0]["id"].get<std::string>());
  EXPECT_EQ(rest["snapshots"][0]["id"], all[1]["id"]);
  EXPECT_EQ(get("snapshots/" + id)["snapshot"]["label"], "first");
  EXPECT_EQ(get("verify")["ok"], true);
  EXPECT_EQ(get("verify")["snapshot"], all[0]["id"]);
}

TEST_F(DaemonSnapshots, AreComparedInAnswersOfABoundedSize) {
  constexpr std::size_t kMost = 10'000, kFiles = kMost + 5;
  write(file(), "one");
  const auto before = post("snapshots", {{"label", "before"}}).json()["id"].get<std::string>();
  for (std::size_t i = 0; i < kFiles; ++i)
    ASSERT_EQ(::mknod((mount("s1") / "outputs" / std::to_string(i)).c_str(), S_IFREG | 0644, 0), 0);
  const auto expect_most = [&](const json& answer, const char* rows) {
    EXPECT_EQ(answer[rows].size(), kMost);
    EXPECT_GE(answer["total"], kFiles);
    EXPECT_EQ(answer["truncated"], true);
  };
  expect_most(get("diff"), "changes");
  expect_most(get("verify"), "live_differences");
  const auto after = post("snapshots").json()["id"].get<std::string>();
  expect_most(get("snapshots/" + after), "changes");
  expect_most(post("restore", {{"snapshot", before}, {"dry_run", true}}).json(), "changes");
  expect_most(post("restore", {{"snapshot", before}}).json(), "changes");
  EXPECT_FALSE(std::filesystem::exists(mount("s1") / "outputs/0"));
  const auto all = get("diff?from=" + before);
  EXPECT_EQ(all["total"], 0);
  EXPECT_EQ(all["truncated"], false);
}

TEST_F(DaemonSnapshots, ShowTheirProgress) {
  write(file(), "one");
  const auto answer = post("snapshots", {{"label", "x"}}, {{"Accept", "application/x-ndjson"}});
  const auto start = answer.body.rfind('\n', answer.body.size() - 2);
  const auto last = json::parse(answer.body.substr(start == std::string::npos ? 0 : start + 1));
  EXPECT_EQ(last["result"]["label"], "x");
  const auto refused = post("restore", {{"snapshot", "0000000000"}}, {{"Accept", "application/x-ndjson"}});
  EXPECT_THAT(refused.body, ::testing::HasSubstr("\"unknown_snapshot\""));
}

TEST_F(DaemonSnapshots, RefuseWhatTheyDoNotKnow) {
  write(file(), "one");
  const auto id = post("snapshots").json()["id"].get<std::string>();
  for (const char* name : {"0000000000000000000000000000000000000000", "zz", "", "../x", "HEAD"}) {
    const auto answer = post("restore", {{"snapshot", name}});
    EXPECT_EQ(answer.code(), "unknown_snapshot") << name;
    EXPECT_EQ(answer.status, 400);
  }
  EXPECT_EQ(post("restore", {{"snapshot", id}, {"paths", {"../x"}}}).code(), "path_traversal_blocked");
  EXPECT_EQ(post("restore", {{"snapshot", id}, {"paths", "x"}}).code(), "invalid_request");
  EXPECT_EQ(post("restore").code(), "invalid_request");
  const auto short_name = post("restore", {{"snapshot", id.substr(0, 3)}});
  EXPECT_EQ(short_name.code(), "unknown_snapshot");
  EXPECT_THAT(short_name.body, ::testing::HasSubstr("at least 4 digits"));
  EXPECT_EQ(read(file()), "one");
  write(file(), "two");
  for (const bool dry_run : {true, false}) {
    const auto nothing = post("restore", {{"snapshot", id}, {"paths", json::array()}, {"dry_run", dry_run}});
    EXPECT_EQ(nothing.code(), "invalid_request") << "no paths are not all paths";
    EXPECT_THAT(nothing.body, ::testing::HasSubstr("leave it out"));
    for (const auto& root : {json{""}, json{"."}, json{"outputs/f", ""}})
      EXPECT_EQ(post("restore", {{"snapshot", id}, {"paths", root}, {"dry_run", dry_run}}).code(),
                "invalid_request");
  }
  EXPECT_EQ(read(file()), "two");
}

TEST_F(DaemonSnapshots, HoldWhatChangedBetweenRefusedRenames) {
  const auto outputs = mount("s1") / "outputs";
  for (const char* name : {"a", "b"}) {
    std::filesystem::create_directory(outputs / name);
    write(outputs / name / "file", name);
  }
  ASSERT_EQ(post("snapshots").status, 201);
  EXPECT_EQ(::rename((outputs / "a").c_str(), (outputs / "b").c_str()), -1);
  write(outputs / "a/new", "new");
  write(outputs / "a/file", "changed");
  EXPECT_EQ(::rename((outputs / "b").c_str(), (outputs / "a").c_str()), -1);
  EXPECT_EQ(post("snapshots").status, 201);
  EXPECT_EQ(get("verify")["total"], 0);
}

TEST_F(DaemonSnapshots, NameTheFirstOfMuchThatTheyLeaveOut) {
  write(file(), "one");
  for (int i = 0; i < 1001; ++i)
    ASSERT_EQ(::mkfifo((mount("s1") / "outputs" / std::to_string(10'000 + i)).c_str(), 0600), 0);
  const auto taken = post("snapshots").json();
  EXPECT_EQ(taken["left_out"].size(), 1000u);
  EXPECT_EQ(taken["left_out"][0], "outputs/10000");
  EXPECT_EQ(taken["left_out_total"], 1001);
  EXPECT_EQ(taken["in_flight_total"], 0);
}

TEST_F(DaemonSnapshots, OfAForkCostWhatChangedInIt) {
  for (int i = 0; i < 50; ++i) write(mount("s1") / "outputs" / std::to_string(i), std::string(20'000, 'x'));
  ASSERT_EQ(post("fork", {{"id", "copy"}}).status, 201);
  write(mount("copy") / "outputs/7", "other");
  const auto taken = ask("POST", "/v1/sessions/copy/snapshots").json();
  EXPECT_EQ(taken["stats"]["rescanned"], false);
  EXPECT_EQ(taken["stats"]["bytes_read"], 5);
  EXPECT_EQ(taken["stats"]["files"], 50);
  EXPECT_EQ(ask("GET", "/v1/sessions/copy/verify").json()["total"], 0);
  EXPECT_EQ(ask("GET", "/v1/sessions/copy/snapshots/" + taken["id"].get<std::string>()).json()["total"], 1);
}

TEST_F(DaemonSnapshots, CountFromTheStateThatWasKeptLast) {
  const auto is_rescanned = [&](const std::string& text) {
    write(file(), text);
    const auto taken = post("snapshots").json();
    return taken["stats"]["rescanned"].get<bool>();
  };
  EXPECT_FALSE(is_rescanned("one"));
  const auto first = get("snapshots")["snapshots"][0]["id"];
  EXPECT_FALSE(is_rescanned("two"));
  EXPECT_EQ(post("restore", {{"snapshot", first}}).status, 200);
  EXPECT_EQ(read(file()), "one");
  EXPECT_FALSE(is_rescanned("after a restore"));
  EXPECT_EQ(post("unmount").status, 200);
  EXPECT_EQ(post("mount").status, 200);
  EXPECT_FALSE(is_rescanned("after it was mounted anew"));
  EXPECT_EQ(post("restore", {{"snapshot", first}}).status, 200);
  stop();
  start();
  EXPECT_FALSE(is_rescanned("after the daemon ended"));
  write(mount("s1") / "outputs/late", "in the newest alone");
  post("snapshots");
  const auto git =
      "git --git-dir=" + (root_ / "state/snapshots/s1.git").string() + " update-ref refs/heads/main ";
  ASSERT_EQ(run_script(git + "main~1", "/").exit_code, 0);
  EXPECT_TRUE(is_rescanned("after somebody moved the newest back"));
  ASSERT_EQ(post("fork", {{"id", "copy"}}).status, 201);
  EXPECT_EQ(read(mount("copy") / "outputs/late"), "in the newest alone");
}

TEST_F(DaemonSnapshots, OfAForkNameNothingThatWasLeftOutOfIt) {
  write(file(), "one");
  ASSERT_EQ(::mkfifo((mount("s1") / "outputs/fifo").c_str(), 0600), 0);
  ASSERT_EQ(post("snapshots").json()["left_out_total"], 1);
  ASSERT_EQ(post("fork", {{"id", "copy"}}).status, 201);
  write(mount("copy") / "outputs/f", "other");
  const auto taken = ask("POST", "/v1/sessions/copy/snapshots").json();
  EXPECT_EQ(taken["left_out_total"], 0);
  EXPECT_EQ(taken["stats"]["rescanned"], false);
  EXPECT_EQ(ask("GET", "/v1/sessions/copy/verify").json()["total"], 0);
}

TEST_F(DaemonSnapshots, HoldAZoneThatAFileWithoutANameBroughtIntoBeing) {
  write(mount("s1") / "uploads/f", "one");
  ASSERT_EQ(post("snapshots").status, 201);
  if (const int file = ::open((mount("s1") / "outputs").c_str(), O_TMPFILE | O_RDWR, 0600); file >= 0)
    ::close(file);
  else
    GTEST_SKIP() << "the file system has no files without names";
  write(mount("s1") / "uploads/f", "two");
  ASSERT_EQ(post("snapshots").status, 201);
  EXPECT_EQ(get("verify")["total"], 0);
}

TEST_F(DaemonSnapshots, GiveAZoneItsTimesBackThoughItWasNotWrittenYet) {
  const auto modified = [&](const char* zone) {
    struct stat status {};
    EXPECT_EQ(::stat((mount("s1") / zone).c_str(), &status), 0);
    return std::pair{status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
  };
  const std::pair before{modified("outputs"), modified("uploads")};
  const auto id = post("snapshots").json()["id"].get<std::string>();
  write(file(), "one");
  std::filesystem::last_write_time(mount("s1") / "uploads", std::filesystem::file_time_type{});
  EXPECT_EQ(post("restore", {{"snapshot", id}}).status, 200);
  EXPECT_EQ((std::pair{modified("outputs"), modified("uploads")}), before);
}

TEST_F(DaemonSnapshots, LookAtEverythingOnceVerifyFoundWhatNobodyRecorded) {
  write(file(), "one");
  const auto id = post("snapshots").json()["id"].get<std::string>();
  stop();
  write(root_ / "state/workspaces/s1/outputs/behind", "the driver's back");
  start();
  EXPECT_EQ(get("diff")["total"], 0) << "nobody knows of it yet";
  EXPECT_EQ(get("verify")["live_differences"].size(), 1u);
  EXPECT_EQ(get("diff")["changes"].size(), 1u);
  EXPECT_EQ(post("restore", {{"snapshot", id}}).json()["changes"].size(), 1u);
  EXPECT_FALSE(std::filesystem::exists(mount("s1") / "outputs/behind"));
  const auto rest = get("verify?snapshot=" + id)["live_differences"];
  EXPECT_EQ(rest.size(), 0u) << rest;
}

TEST_F(DaemonSnapshots, GoByTheRecordAfterVerifyBesideAWriter) {
  write(file(), "one");
  ASSERT_EQ(post("snapshots").status, 201);
  std::atomic<bool> is_done = false;
  std::thread writer([&] {
    for (int i = 0; !is_done; ++i) write(file(), std::to_string(i));
  });
  for (int i = 0; i < 20; ++i) EXPECT_EQ(get("verify")["ok"], true);
  is_done = true;
  writer.join();
  EXPECT_EQ(post("snapshots").json()["stats"]["rescanned"], false);
}

TEST_F(DaemonSnapshots, BringBackAWorkspaceThatWasLost) {
  write(file(), "one");
  const auto id = post("snapshots").json()["id"].get<std::string>();
  stop();
  std::filesystem::remove_all(root_ / "state/workspaces/s1");
  start();
  EXPECT_NE(get("diff")["total"], 0);
  ASSERT_EQ(post("snapshots").status, 201);
  EXPECT_EQ(get("verify")["total"], 0);
  ASSERT_EQ(post("restore", {{"snapshot", id}}).status, 200);
  EXPECT_EQ(read(file()), "one");
}

TEST_F(DaemonSnapshots, BecomeSessionsOfTheirOwn) {
  write(file(), "one");
  ASSERT_EQ(::chown((mount("s1") / "outputs").c_str(), 1234, 1234), 0);
  const auto forked = post("fork", {{"id", "copy"}});
  ASSERT_EQ(forked.status, 201) << forked.body;
  const auto origin = forked.json()["forked_from"];
  EXPECT_EQ(origin["session"], "s1");
  EXPECT_EQ(origin["snapshot"], get("snapshots")["snapshots"][0]["id"]);
  EXPECT_EQ(ask("GET", "/v1/sessions/copy").json()["forked_from"], origin);
  EXPECT_TRUE(ask("GET", "/v1/sessions/s1").json().at("forked_from").is_null());
  EXPECT_EQ(read(mount("copy") / "outputs/f"), "one");
  struct stat zone {};
  ASSERT_EQ(::stat((mount("copy") / "outputs").c_str(), &zone), 0);
  EXPECT_EQ(zone.st_uid, 1234u) << "as the snapshot has it";
  EXPECT_EQ(ask("GET", "/v1/sessions/copy/verify").json()["total"], 0);
  write(mount("copy") / "outputs/f", "other");
  EXPECT_EQ(read(file()), "one");
  write(file(), "two");
  EXPECT_EQ(post("fork", {{"id", "copy"}}).code(), "already_exists");
  EXPECT_EQ(post("fork", {{"id", ".."}}).code(), "invalid_request");
  EXPECT_EQ(ask("GET", "/v1/sessions/s1/snapshots").json()["snapshots"].size(), 1u);
  EXPECT_EQ(post("fork", {{"snapshot", "0000000000"}}).code(), "unknown_snapshot");
  for (const auto& labels : {json{{"", "nameless"}}, json{{"long", std::string(4097, 'x')}}})
    EXPECT_EQ(post("fork", {{"labels", labels}}).code(), "invalid_request") << labels;
  EXPECT_EQ(ask("GET", "/v1/sessions").json()["sessions"].size(), 2u);
}

TEST_F(DaemonSnapshots, OfNothingBecomeSessionsWithoutAWorkspace) {
  ASSERT_EQ(post("fork", {{"id", "copy"}}).status, 201);
  EXPECT_FALSE(std::filesystem::exists(root_ / "state/workspaces/copy"));
  EXPECT_EQ(ask("GET", "/v1/sessions/copy/info").json()["materialized"], false);
  EXPECT_EQ(ask("GET", "/v1/sessions/copy/verify").json()["total"], 0);
  EXPECT_EQ(stop(), 0);
  start();
  EXPECT_EQ(ask("GET", "/v1/health").json()["affected"].size(), 0u);
  EXPECT_EQ(ask("GET", "/v1/sessions/copy").json()["forked_from"]["session"], "s1");
  write(mount("copy") / "outputs/f", "one");
  EXPECT_EQ(ask("POST", "/v1/sessions/copy/snapshots").json()["stats"]["files"], 1);
}

TEST_F(DaemonSnapshots, OfAnUnmountedSessionAreNotTakenForWhatIsThereNow) {
  write(file(), "one");
  const auto id = post("snapshots").json()["id"].get<std::string>();
  write(file(), "two");
  ASSERT_EQ(post("unmount").status, 200);
  const auto refused = post("fork", {{"id", "copy"}});
  EXPECT_EQ(refused.code(), "busy") << refused.body;
  EXPECT_THAT(refused.body, ::testing::HasSubstr("mount it first"));
  EXPECT_EQ(ask("GET", "/v1/sessions/copy").status, 404);
  ASSERT_EQ(post("fork", {{"id", "old"}, {"snapshot", id}}).status, 201);
  EXPECT_EQ(read(mount("old") / "outputs/f"), "one") << "which was asked for by name";
  ASSERT_EQ(post("mount").status, 200);
  ASSERT_EQ(post("fork", {{"id", "copy"}}).status, 201);
  EXPECT_EQ(read(mount("copy") / "outputs/f"), "two");
}

TEST_F(DaemonSnapshots, ThatCannotBecomeASessionLeaveNothingForGood) {
  write(file(), "one");
  const auto bin = root_ / "state/discarded", workspace = root_ / "state/workspaces/copy";
  std::filesystem::remove(bin);
  write(bin, "nothing can be put away here");
  write(mount("copy"), "nothing can be mounted here");
  EXPECT_GE(post("fork", {{"id", "copy"}}).status, 400);
  EXPECT_EQ(ask("GET", "/v1/sessions/copy").json()["state"], "unmounted");
  EXPECT_EQ(ask("POST", "/v1/sessions/copy/mount").code(), "busy");
  EXPECT_TRUE(std::filesystem::exists(workspace));
  EXPECT_EQ(stop(), 0);
  std::filesystem::remove(bin);
  std::filesystem::remove(mount("copy"));
  start();
  EXPECT_EQ(ask("GET", "/v1/sessions/copy").status, 404);
  EXPECT_FALSE(std::filesystem::exists(workspace));
  EXPECT_FALSE(std::filesystem::exists(root_ / "state/snapshots/copy.git"));
}

TEST_F(DaemonSnapshots, StandBesideCheckpoints) {
  write(file(), "turn 1");
  const auto first = post("checkpoints", {{"id", "t1"}, {"data", {{"turn", 1}}}, {"snapshot", true}});
  ASSERT_EQ(first.status, 201) << first.body;
  write(file(), "turn 2");
  EXPECT_EQ(
      post("checkpoints", {{"id", "t2"}, {"data", {{"turn", 2}}}, {"snapshot", true}}).json()["parent_id"],
      "t1");
  EXPECT_EQ(get("checkpoints/latest")["data"]["turn"], 2);
  EXPECT_EQ(get("checkpoints")["checkpoints"].size(), 2u);
  const auto back = post("checkpoints/t1/restore");
  EXPECT_EQ(back.json()["checkpoint"]["data"]["turn"], 1) << back.body;
  EXPECT_EQ(read(file()), "turn 1");
  EXPECT_EQ(get("checkpoints/latest")["id"], "t1");
  EXPECT_EQ(post("checkpoints", {{"data", nullptr}}).json()["parent_id"], "t1");
  EXPECT_EQ(post("checkpoints", {{"id", "t1"}, {"data", 1}}).code(), "already_exists");
  EXPECT_EQ(post("checkpoints", {{"data", 1}, {"parent_id", "none"}}).code(), "not_found");
  EXPECT_EQ(post("checkpoints", {{"data", 1}, {"snapshot", "none"}}).code(), "unknown_snapshot");
  EXPECT_EQ(post("checkpoints").code(), "invalid_request");
}

TEST_F(DaemonSnapshots, AreThoseOfTheHeadThoughCheckpointsAreRestoredAtOnce) {
  for (const std::string id : {"a", "b"}) {
    write(file(), id);
    ASSERT_EQ(post("checkpoints", {{"id", id}, {"data", id}, {"snapshot", true}}).status, 201);
  }
  for (int round = 0; round < 60 && !HasFailure(); ++round) {
    std::vector<std::thread> clients;
    for (const std::string id : {"a", "b"})
      clients.emplace_back([&, id] { EXPECT_EQ(post("checkpoints/" + id + "/restore").status, 200); });
    for (auto& client : clients) client.join();
    EXPECT_EQ(get("checkpoints/latest")["id"], read(file()));
  }
}

TEST_F(DaemonSnapshots, AreReachedByTheOlderRoutes) {
  write(file(), "one");
  const std::string base = "/api/session/workspace/";
  const auto taken = ask("POST", base + "snapshots?session=s1", R"({"label":"turn"})");
  ASSERT_EQ(taken.status, 200) << taken.body;
  EXPECT_EQ(taken.json()["label"], "turn");
  write(file(), "two");
  EXPECT_EQ(ask("GET", base + "snapshots?session=s1").json()["snapshots"][0]["timestamp"],
            taken.json()["created_at"]);
  const auto id = taken.json()["id"].get<std::string>();
  EXPECT_EQ(ask("POST", base + "restore?session=s1", json({{"snapshot_id", id}}).dump()).json()["restored"],
            true);
  EXPECT_EQ(read(file()), "one");
  const auto refused = ask("POST", base + "restore?session=s1", R"({"snapshot_id":"0000000000"})");
  EXPECT_EQ(refused.status, 400);
  EXPECT_TRUE(refused.json()["detail"].is_string());
  EXPECT_EQ(ask("GET", base + "snapshots").status, 400);
}

TEST_F(DaemonSnapshots, AreToldOfAsEvents) {
  HttpClient events(socket());
  events.send("GET /v1/events?session=s1 HTTP/1.1\r\n\r\n");
  events.receive_until(": okcvm events");
  write(file(), "one");
  post("snapshots", {{"label", "seen"}});
  EXPECT_THAT(events.receive_until("\n\n\r\n"), ::testing::_);
  EXPECT_THAT(events.receive_until("}\n\n"), ::testing::HasSubstr("\"label\":\"seen\""));
  const auto metrics = ask("GET", "/metrics").body;
  EXPECT_THAT(metrics, ::testing::HasSubstr("okcvm_sessions_mounted 1\n"));
  EXPECT_THAT(metrics, ::testing::HasSubstr("route=\"/v1/sessions/{id}/snapshots\",status=\"201\"} 1"));
}

TEST_F(DaemonSnapshots, CanBeSwitchedOff) {
  EXPECT_EQ(stop(), 0);
  start({"--snapshots", "off"});
  write(file(), "works");
  EXPECT_EQ(post("snapshots").code(), "snapshots_disabled");
  EXPECT_EQ(ask("GET", "/v1/sessions/s1").json()["snapshots"], "off");
}

TEST_F(DaemonSnapshots, OfARepositoryThatCannotBeOpenedAreOffUntilItCanBe) {
  write(file(), "one");
  post("snapshots");
  EXPECT_EQ(stop(), 0);
  const auto head = root_ / "state/snapshots/s1.git/HEAD";
  std::filesystem::rename(head, root_ / "HEAD");
  start();
  EXPECT_EQ(read(file()), "one");
  write(file(), "two");
  const auto refused = post("snapshots");
  EXPECT_EQ(refused.code(), "snapshots_disabled");
  EXPECT_THAT(refused.body, ::testing::HasSubstr("each call tries again"));
  EXPECT_EQ(post("mount").status, 200);
  EXPECT_EQ(post("snapshots").code(), "snapshots_disabled");
  std::filesystem::rename(root_ / "HEAD", head);
  const auto id = post("snapshots").json()["id"].get<std::string>();
  write(file(), "three");
  EXPECT_EQ(post("restore", {{"snapshot", id}}).status, 200);
  EXPECT_EQ(read(file()), "two");
}

TEST_F(DaemonSnapshots, OfAnUnmountedSessionThatCouldNotBeOpenedAreTriedAgainAsWell) {
  write(file(), "one");
  ASSERT_EQ(post("snapshots").status, 201);
  ASSERT_EQ(post("unmount").status, 200);
  EXPECT_EQ(stop(), 0);
  const auto head = root_ / "state/snapshots/s1.git/HEAD";
  std::filesystem::rename(head, root_ / "HEAD");
  start();
  EXPECT_EQ(ask("GET", "/v1/sessions/s1/snapshots").code(), "snapshots_disabled");
  std::filesystem::rename(root_ / "HEAD", head);
  EXPECT_EQ(ask("GET", "/v1/sessions/s1/snapshots").json()["snapshots"].size(), 1u);
}

}  // namespace
}  // namespace okcvm::test
