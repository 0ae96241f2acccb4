// Help, completion and the manual page: all made from the one table of verbs.

#include <unistd.h>

#include "tests/tools_cli/program_test.h"
#include "tools/cli/verbs.h"

namespace okcvm::cli::test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

class Generated : public ProgramTest {
 protected:
  /// The words that bash offers for a command line, the last word of which is being typed.
  std::vector<std::string> offered(const std::vector<std::string>& line) {
    std::string words;
    for (const auto& word : line) words += "'" + word + "' ";
    const auto ran = okcvm::test::run(
        {.arguments =
             {"bash", "-c",
              "compopt() { :; }; eval \"$(okcvm completion bash)\"; COMP_WORDS=(" + words +
                  "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _okcvm; printf '%s\\n' \"${COMPREPLY[@]}\""},
         .directory = scratch_.path(),
         .environment = {"OKCVM_SOCKET=" + socket(), "PATH=" + program_folder() + ":/usr/bin:/bin"}});
    std::vector<std::string> found;
    std::istringstream lines(ran.output);
    for (std::string text; std::getline(lines, text);)
      if (!text.empty()) found.push_back(text);
    return found;
  }

  static std::string program_folder() { return std::filesystem::path(OKCVM_PROGRAM).parent_path().string(); }
};

TEST_F(Generated, EveryVerbExplainsItself) {
  const auto overview = okcvm("help").out;
  for (const auto& verb : verbs()) {
    const std::string name(verb.name);
    EXPECT_THAT(overview, HasSubstr("  " + name + " "));
    const auto by_help = okcvm("help " + name);
    const auto by_option = okcvm(name + " --help");
    EXPECT_EQ(by_help.status, 0) << name;
    EXPECT_EQ(by_help.out, by_option.out) << name;
    EXPECT_THAT(by_help.out, HasSubstr("okcvm " + name)) << name;
    for (const auto& option : verb.options)
      EXPECT_THAT(by_help.out, HasSubstr("--" + std::string(option.name)));
  }
  EXPECT_THAT(okcvm("help skill").out, AllOf(HasSubstr("skill load"), HasSubstr("skill unload")));
  EXPECT_EQ(okcvm("skill --help").out, okcvm("help skill").out);
  EXPECT_EQ(okcvm("--help checkpoint").status, 0);
  EXPECT_EQ(okcvm("help nothing").status, 2);
  EXPECT_EQ(okcvm("--version").out, "okcvm " OKCVM_VERSION "\n");
}

TEST_F(Generated, TextIsJsonForPrograms) {
  for (const std::string words : {"help", "help create", "help skill", "help --man", "create --help",
                                  "--help", "completion bash", "completion zsh", "completion fish"}) {
    const auto ran = okcvm(words + " --json");
    EXPECT_EQ(ran.status, 0) << words;
    EXPECT_EQ(ran.json(), (nlohmann::json{{"text", okcvm(words).out}})) << words;
  }
  EXPECT_EQ(okcvm("help nothing --json").status, 2);
}

TEST_F(Generated, BashOffersVerbsAndOptions) {
  EXPECT_THAT(offered({"okcvm", "sn"}), ::testing::UnorderedElementsAre("snapshot", "snapshots"));
  EXPECT_THAT(offered({"okcvm", ""}),
              AllOf(Contains("skill"), Contains("create"), Not(Contains("skill load"))));
  EXPECT_THAT(offered({"okcvm", "skill", ""}), ::testing::UnorderedElementsAre("load", "unload"));
  EXPECT_THAT(offered({"okcvm", "restore", "--"}), AllOf(Contains("--dry-run"), Contains("--json")));
  EXPECT_THAT(offered({"okcvm", "resolve", "--mode", ""}),
              ::testing::UnorderedElementsAre("strict", "rebase", "physical"));
  EXPECT_THAT(offered({"okcvm", "completion", "b"}), ::testing::ElementsAre("bash"));
  EXPECT_THAT(offered({"okcvm", "help", "skill", ""}), ::testing::UnorderedElementsAre("load", "unload"));
  EXPECT_THAT(offered({"okcvm", "resolve", "--mode", "=", "s"}), ::testing::ElementsAre("strict"));
  EXPECT_THAT(offered({"okcvm", "resolve", "--mode", "="}), ::testing::SizeIs(3));
  EXPECT_THAT(offered({"okcvm", "a/b.*", ""}), ::testing::IsEmpty());
}

/// What registries and sessions hold is not to be trusted.
TEST_F(Generated, BashRunsNothingThatStandsInNames) {
  daemon_answers([](const SeenRequest& request) {
    if (request.target == "/v1/skills")
      return reply(200, R"json({"skills":[{"name":"$(touch${IFS}ran)"},{"name":"`touch${IFS}ran`"},
                                         {"name":"*"}]})json");
    return reply(200, R"({"sessions":[{"id":"12ab34cd"}]})");
  });
  EXPECT_THAT(offered({"okcvm", "skill", "load", "12ab34cd", ""}),
              ::testing::ElementsAre("\\$\\(touch\\$\\{IFS\\}ran\\)", "\\`touch\\$\\{IFS\\}ran\\`", "\\*"));
  EXPECT_FALSE(std::filesystem::exists(scratch_ / "ran"));
}

TEST_F(Generated, BashAsksTheDaemonForNames) {
  daemon_answers([](const SeenRequest& request) {
    if (request.target.starts_with("/v1/sessions/12ab34cd/snapshots"))
      return reply(200, R"({"snapshots":[{"id":"00112233445566778899"}]})");
    if (request.target == "/v1/skills") return reply(200, R"({"skills":[{"name":"pdf"}]})");
    if (request.target.find("/checkpoints") != std::string::npos)
      return reply(200, R"({"checkpoints":[{"id":"c2","created_at":"2026-01-01T00:00:00Z","head":true},
                                          {"id":"c1","created_at":"2026-01-01T00:00:00Z"}]})");
    if (request.target.ends_with("?stat=true")) return reply(200, R"({"type":"directory"})");
    if (request.target.find("/files/") != std::string::npos)
      return reply(200, R"({"entries":[{"name":"a b","path":"outputs/a b","type":"file"},
                                       {"name":"d","path":"outputs/d","type":"directory"}]})");
    return reply(200, R"({"sessions":[{"id":"12ab34cd"},{"id":"9900ffee"}]})");
  });
  EXPECT_THAT(offered({"okcvm", "info", "1"}), ::testing::ElementsAre("12ab34cd"));
  EXPECT_THAT(offered({"okcvm", "--json", "restore", "12ab34cd", "0"}),
              ::testing::ElementsAre("001122334455"));
  EXPECT_THAT(offered({"okcvm", "skill", "load", "12ab34cd", ""}), ::testing::ElementsAre("pdf"));
  EXPECT_THAT(offered({"okcvm", "read", "12ab34cd", "outputs/"}),
              ::testing::ElementsAre("outputs/a b", "outputs/d/"));
  EXPECT_THAT(offered({"okcvm", "read", "12ab34cd", R"("outputs/a\ )"}),
              ::testing::ElementsAre("outputs/a b"));
  EXPECT_THAT(offered({"okcvm", "create", "--skill", "p"}), ::testing::ElementsAre("pdf"));
  EXPECT_THAT(offered({"okcvm", "checkpoint", "load", "12ab34cd", ""}), ::testing::ElementsAre("c2", "c1"));
}

TEST_F(Generated, WithoutADaemonNothingIsOfferedAndNothingIsSaid) {
  EXPECT_TRUE(offered({"okcvm", "info", ""}).empty());
}

TEST_F(Generated, ScriptsAreGoodShell) {
  for (const std::string shell : {"bash", "zsh", "fish"}) {
    const auto script = okcvm("completion " + shell);
    ASSERT_EQ(script.status, 0);
    ASSERT_FALSE(script.out.empty());
    if (!okcvm::test::have_program(shell)) continue;
    const auto checked = okcvm::test::run_script(shell + " -n out", scratch_.path());
    EXPECT_EQ(checked.exit_code, 0) << shell << ": " << checked.output;
  }
}

TEST_F(Generated, FishOffersVerbsOptionsAndNames) {
  if (!okcvm::test::have_program("fish")) GTEST_SKIP() << "fish is not installed";
  daemon_answers(reply(200, R"({"sessions":[{"id":"12ab34cd","state":"mounted"}]})"));
  const auto complete = [&](const std::string& line, const std::string& default_socket = "/nowhere") {
    return okcvm::test::run(
               {.arguments = {"fish", "--no-config", "-c",
                              "okcvm completion fish | source; complete -C '" + line + "'"},
                .directory = scratch_.path(),
                .environment = {"OKCVM_SOCKET=" + default_socket, "HOME=" + scratch_.path().string(),
                                "PATH=" + program_folder() + ":/usr/bin:/bin"}})
        .output;
  };
  EXPECT_THAT(complete("okcvm snap"), AllOf(HasSubstr("snapshot\t"), HasSubstr("snapshots\t")));
  EXPECT_THAT(complete("okcvm skill "), AllOf(HasSubstr("load\t"), Not(HasSubstr("create"))));
  EXPECT_THAT(complete("okcvm restore x y --dr"), HasSubstr("--dry-run"));
  EXPECT_THAT(complete("okcvm "), AllOf(HasSubstr("create\t"), Not(HasSubstr("test:"))));
  EXPECT_THAT(complete("okcvm info ", socket()), HasSubstr("12ab34cd"));
  for (const std::string given : {"--socket ", "--socket="})
    EXPECT_THAT(complete("okcvm " + given + socket() + " info "), HasSubstr("12ab34cd"));
  EXPECT_THAT(complete("okcvm snapshots -n 5 ", socket()), HasSubstr("12ab34cd"));
  EXPECT_THAT(complete("okcvm completion "), HasSubstr("zsh"));
  EXPECT_THAT(complete("okcvm help "), AllOf(HasSubstr("create\t"), HasSubstr("skill")));
  EXPECT_THAT(complete("okcvm help skill "), AllOf(HasSubstr("unload\t"), Not(HasSubstr("create"))));
  file("a file", "");
  EXPECT_THAT(complete("okcvm create --workdir-policy "),
              AllOf(HasSubstr("managed"), Not(HasSubstr("a file"))));
}

TEST_F(Generated, ManualPageIsCleanAndComplete) {
  const auto page = okcvm("help --man");
  ASSERT_EQ(page.status, 0);
  for (const auto& verb : verbs()) {
    std::string name(verb.name);
    for (auto at = name.find('-'); at != std::string::npos; at = name.find('-', at + 2))
      name.insert(at, "\\");
    EXPECT_THAT(page.out, HasSubstr(".B " + name)) << name;
  }
  if (!okcvm::test::have_program("groff")) GTEST_SKIP() << "groff is not installed";
  const auto checked = okcvm::test::run_script("groff -man -Tutf8 -ww -z out 2>&1", scratch_.path());
  EXPECT_EQ(checked.output, "");
}

}  // namespace
}  // namespace okcvm::cli::test
