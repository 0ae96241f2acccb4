#include "tests/tools_cli/program_test.h"

namespace okcvm::cli::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kId(40, 'a');

class SnapshotVerbs : public ProgramTest {
 protected:
  /// The answer as the daemon gives it to those who can read progress.
  void answer_in_the_end(const json& result) {
    daemon_answers(chunked_reply({"{\"progress\":{\"phase\":\"read\",\"done\":1,\"to",
                                  "tal\":2}}\n{\"result\":", result.dump() + "}\n"},
                                 "application/x-ndjson"));
  }
};

TEST_F(SnapshotVerbs, SnapshotPrintsItsId) {
  answer_in_the_end({{"id", kId}, {"in_flight", {"outputs/log"}}, {"left_out", json::array()}});
  const auto ran = okcvm("snapshot 12 -m 'turn 7'");
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_EQ(ran.out, kId + "\n");
  EXPECT_EQ(ran.err, "okcvm: note: being written meanwhile, captured as read: outputs/log\n");
  EXPECT_EQ(json::parse(daemon_->last().body), (json{{"label", "turn 7"}}));
  EXPECT_THAT(daemon_->last().headers["accept"], HasSubstr("application/x-ndjson"));
}

TEST_F(SnapshotVerbs, FailureAtTheEndOfTheStreamIsAFailure) {
  daemon_answers(
      chunked_reply({"{\"progress\":{}}\n", R"({"error":{"code":"no_space","message":"the disk is full"}})"},
                    "application/x-ndjson"));
  const auto ran = okcvm("snapshot 12");
  EXPECT_EQ(ran.status, 1);
  EXPECT_EQ(ran.out, "");
  EXPECT_EQ(ran.err, "okcvm: no_space: the disk is full\n");
}

TEST_F(SnapshotVerbs, StreamWithoutAnEndIsAFailure) {
  daemon_answers(chunked_reply({"{\"progress\":{}}\n"}, "application/x-ndjson"));
  const auto ran = okcvm("restore 12 abcd");
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.err, HasSubstr("okcvm: internal: the daemon stopped before it said how the work ended"));
}

TEST_F(SnapshotVerbs, AnswerWithoutAStreamIsUnderstoodToo) {
  daemon_answers(reply(200, json{{"id", kId}, {"unchanged", true}}.dump()));
  const auto ran = okcvm("snapshot 12");
  EXPECT_EQ(ran.out, kId + "\n");
  EXPECT_EQ(ran.err, "okcvm: note: nothing changed since this snapshot\n");
}

TEST_F(SnapshotVerbs, DiffNamesEachChange) {
  answer_in_the_end(
      {{"changes",
        {{{"kind", "added"}, {"path", "outputs/n\x1b"}, {"new_size", 12}},
         {{"kind", "removed"}, {"path", "outputs/o"}, {"old_size", 1}},
         {{"kind", "changed"},
          {"path", "outputs/c"},
          {"old_size", 1},
          {"new_size", 2048},
          {"unified", "-a\n+b"}},
         {{"kind", "metadata"}, {"path", "outputs/m"}, {"old_mode", "100644"}, {"new_mode", "100755"}},
         {{"kind", "renamed"}, {"path", "outputs/y"}, {"renamed_from", "outputs/x"}}}}});
  EXPECT_EQ(okcvm("diff 12 abcd").out,
            "A outputs/n\\x1b (12 B)\n"
            "D outputs/o (1 B)\n"
            "M outputs/c (1 B to 2.0 KiB)\n-a\n+b\n"
            "T outputs/m [100644 to 100755]\n"
            "R outputs/x -> outputs/y\n");
  EXPECT_EQ(daemon_->last().target, "/v1/sessions/12/diff?from=abcd&text=true");
  okcvm("diff 12 abcd ef01 --names");
  EXPECT_EQ(daemon_->last().target, "/v1/sessions/12/diff?from=abcd&to=ef01&text=false");
}

TEST_F(SnapshotVerbs, RestoreSaysHowToGoBack) {
  answer_in_the_end({{"dry_run", false},
                     {"changes", {{{"kind", "added"}, {"path", "outputs/a"}}}},
                     {"before", {{"id", kId}}}});
  EXPECT_EQ(okcvm("restore 12 abcd outputs/a 'outputs/b c'").out,
            "A outputs/a\nrestored 1 entry; 'okcvm undo' goes back to aaaaaaaaaaaa\n");
  EXPECT_EQ(json::parse(daemon_->last().body),
            (json{{"snapshot", "abcd"}, {"paths", {"outputs/a", "outputs/b c"}}}));
}

TEST_F(SnapshotVerbs, RestoreTakesPathsThatAreNoText) {
  answer_in_the_end({{"dry_run", false}, {"changes", json::array()}, {"before", nullptr}});
  EXPECT_EQ(okcvm(R"(restore 12 abcd $'outputs/\xff b' outputs/é)").status, 0);
  EXPECT_EQ(json::parse(daemon_->last().body),
            (json{{"snapshot", "abcd"}, {"paths", {"outputs/é"}}, {"encoded_paths", {"outputs/%FF%20b"}}}));
}

TEST_F(SnapshotVerbs, ChangesThatTheDaemonLeavesOutAreCounted) {
  const json row{{"kind", "added"}, {"path", "outputs/a"}};
  daemon_answers(reply(200, json{{"changes", {row, row}},
                                 {"live_differences", {row, row}},
                                 {"total", 12},
                                 {"truncated", true},
                                 {"ok", true},
                                 {"snapshot", "0123456789abcdef"},
                                 {"before", {{"id", "0123456789abcdef"}}}}
                                .dump()));
  EXPECT_THAT(okcvm("diff 12").out, ::testing::EndsWith("A outputs/a\nand 10 more entries\n"));
  EXPECT_THAT(okcvm("restore 12 abcd").out, HasSubstr("and 10 more entries\nrestored 12 entries;"));
  EXPECT_THAT(okcvm("verify 12").out, HasSubstr("differs from the snapshot in 12 entries\n"));
}

TEST_F(SnapshotVerbs, DryRunSaysThatNothingWasChanged) {
  answer_in_the_end({{"dry_run", true}, {"changes", json::array()}, {"before", nullptr}});
  EXPECT_EQ(okcvm("restore 12 abcd --dry-run").out, "no changes\nnothing was changed (--dry-run)\n");
  EXPECT_EQ(json::parse(daemon_->last().body), (json{{"snapshot", "abcd"}, {"dry_run", true}}));
}

TEST_F(SnapshotVerbs, ListShowsShortIdsAndSizes) {
  daemon_answers(reply(200, json{{"snapshots",
                                  {{{"id", kId},
                                    {"label", "turn 7"},
                                    {"created_at", "2020-01-01T00:00:00.000Z"},
                                    {"stats", {{"files", 10}, {"bytes", 2048}, {"changed", 3}}}}}}}
                                .dump()));
  const auto ran = okcvm("snapshots 12 -n 1");
  EXPECT_THAT(ran.out, HasSubstr("SNAPSHOT      TAKEN"));
  EXPECT_THAT(ran.out, HasSubstr("aaaaaaaaaaaa  "));
  EXPECT_THAT(ran.out, HasSubstr("3     10  2.0 KiB  turn 7\n"));
  EXPECT_EQ(daemon_->last().target, "/v1/sessions/12/snapshots?limit=1&after=");
}

TEST_F(SnapshotVerbs, ListGoesOnWhereAnAnswerEndsAndTellsWhetherThereAreMore) {
  daemon_answers([](const SeenRequest& request) {
    const bool is_first = request.target.ends_with("after=");
    return reply(
        200, json{{"snapshots", {{{"id", is_first ? "newest" : "oldest"}}}}, {"truncated", is_first}}.dump());
  });
  const auto listed = [&](const std::string& arguments) {
    return json::parse(okcvm("snapshots 12 --json" + arguments).out);
  };
  const json newest{{"id", "newest"}}, oldest{{"id", "oldest"}};
  EXPECT_EQ(listed(""), (json{{"snapshots", {newest, oldest}}, {"truncated", false}}));
  EXPECT_EQ(listed(" -n 2"), (json{{"snapshots", {newest, oldest}}, {"truncated", false}}));
  EXPECT_EQ(listed(" -n 1"), (json{{"snapshots", {newest}}, {"truncated", true}}));
}

TEST_F(SnapshotVerbs, VerifyFailsWhenAnObjectIsDamaged) {
  answer_in_the_end(
      {{"ok", true}, {"objects", 9}, {"problems", json::array()}, {"live_differences", json::array()}});
  const auto without_any = okcvm("verify 12");
  EXPECT_EQ(without_any.status, 0);
  EXPECT_THAT(without_any.out, HasSubstr("compared with no snapshot\n"));
  answer_in_the_end({{"ok", false}, {"objects", 9}, {"problems", {"blob 12 is missing"}}});
  const auto ran = okcvm("verify 12");
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.out, HasSubstr("  blob 12 is missing\n"));
  EXPECT_THAT(ran.err, HasSubstr("okcvm: corrupt: "));
}

TEST_F(SnapshotVerbs, ForkPrintsTheNewMountPoint) {
  answer_in_the_end({{"id", "new"}, {"mount", "/mnt/okcvm-new"}});
  EXPECT_EQ(okcvm("fork 12 abcd --id new").out, "/mnt/okcvm-new\n");
  EXPECT_EQ(json::parse(daemon_->last().body), (json{{"snapshot", "abcd"}, {"id", "new"}}));
}

TEST_F(SnapshotVerbs, ProgressIsNotShownOffATerminal) {
  answer_in_the_end({{"id", kId}});
  EXPECT_EQ(okcvm("snapshot 12").err, "");
}

TEST_F(SnapshotVerbs, CheckpointKeepsAnyJsonDocument) {
  daemon_answers(reply(201, R"({"id":"c1"})"));
  EXPECT_EQ(okcvm("checkpoint save 12 --id c1 --parent c0 --with-snapshot", R"({"turn":[1,2,null]})").out,
            "c1\n");
  EXPECT_EQ(
      json::parse(daemon_->last().body),
      (json{{"data", {{"turn", {1, 2, nullptr}}}}, {"id", "c1"}, {"parent_id", "c0"}, {"snapshot", true}}));
  // As it is: what could be rounded is the daemon's to refuse.
  okcvm("checkpoint save 12", "[123456789012345678901234567890]\n");
  EXPECT_EQ(daemon_->last().body, "{\"data\":[123456789012345678901234567890]\n}");
  EXPECT_THAT(okcvm("checkpoint save 12", "{").err,
              HasSubstr("okcvm: invalid_request: standard input is not a JSON"));
  EXPECT_EQ(okcvm("checkpoint save 12 --snapshot abcd --with-snapshot", "{}").status, 2);
}

TEST_F(SnapshotVerbs, CheckpointComesBackAsItWasSaved) {
  daemon_answers(reply(200, R"({"id":"c1","data":{"z":1,"a":[2]}})"));
  EXPECT_EQ(okcvm("checkpoint load 12").out, "{\"z\":1,\"a\":[2]}\n");
  EXPECT_EQ(daemon_->last().target, "/v1/sessions/12/checkpoints/latest");
  okcvm("checkpoint load 12 c1 --restore");
  EXPECT_EQ(daemon_->last().method + " " + daemon_->last().target,
            "POST /v1/sessions/12/checkpoints/c1/restore");
}

}  // namespace
}  // namespace okcvm::cli::test
