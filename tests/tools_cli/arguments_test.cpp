#include "tools/cli/arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace okcvm::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Invocation parsed(const std::vector<std::string>& words) {
  auto result = parse_arguments(words);
  EXPECT_TRUE(result.has_value()) << (result ? "" : result.error().message);
  return result.value_or(Invocation{});
}

std::string refusal_of(const std::vector<std::string>& words) {
  const auto result = parse_arguments(words);
  if (result) return "accepted";
  EXPECT_EQ(result.error().code, "invalid_request");
  EXPECT_EQ(result.error().status, kUsage);
  return result.error().message;
}

TEST(Arguments, VerbOfTheDesignIsInTheTable) {
  for (const char* name : {"create",
                           "list",
                           "info",
                           "path",
                           "label",
                           "load",
                           "unmount",
                           "reset",
                           "delete",
                           "clean",
                           "skills",
                           "skill load",
                           "skill unload",
                           "upload",
                           "read",
                           "write",
                           "rm",
                           "ls",
                           "resolve",
                           "snapshot",
                           "snapshots",
                           "show",
                           "diff",
                           "restore",
                           "undo",
                           "fork",
                           "verify",
                           "adapt-prompt",
                           "checkpoint save",
                           "checkpoint load",
                           "checkpoint list",
                           "status",
                           "doctor",
                           "events",
                           "top",
                           "agents",
                           "completion",
                           "help",
                           "version"})
    EXPECT_NE(find_verb(name), nullptr) << name;
}

TEST(Arguments, TableNamesEachThingOnce) {
  std::set<std::string_view> names;
  for (const auto& verb : verbs()) {
    EXPECT_TRUE(names.insert(verb.name).second) << verb.name;
    EXPECT_NE(verb.run, nullptr) << verb.name;
    std::set<std::string_view> options;
    std::set<char> letters;
    for (const auto* part : {&verb.options, &common_options()})
      for (const auto& option : *part) {
        EXPECT_TRUE(options.insert(option.name).second) << verb.name << " --" << option.name;
        EXPECT_TRUE(option.letter == 0 || letters.insert(option.letter).second)
            << verb.name << " -" << option.letter;
        EXPECT_FALSE(option.help.empty()) << verb.name << " --" << option.name;
      }
  }
}

TEST(Arguments, OptionsMayStandAnywhere) {
  for (const auto& words :
       std::vector<std::vector<std::string>>{{"--json", "restore", "ab", "1234", "outputs/x"},
                                             {"restore", "--json", "ab", "1234", "outputs/x"},
                                             {"restore", "ab", "1234", "outputs/x", "--json"}}) {
    const auto found = parsed(words);
    EXPECT_EQ(found.verb, find_verb("restore"));
    EXPECT_TRUE(found.has("json"));
    EXPECT_EQ(found.argument("SNAP"), "1234");
    EXPECT_THAT(found.all("PATH"), ElementsAre("outputs/x"));
  }
}

TEST(Arguments, ValueOfAnOptionCanBeGivenInThreeWays) {
  EXPECT_EQ(parsed({"snapshot", "ab", "-m", "one two"}).option("label"), "one two");
  EXPECT_EQ(parsed({"snapshot", "ab", "-mone"}).option("label"), "one");
  EXPECT_EQ(parsed({"snapshot", "ab", "--label=one"}).option("label"), "one");
  EXPECT_EQ(parsed({"snapshot", "ab", "--label="}).option("label"), "");
  EXPECT_EQ(parsed({"snapshot", "ab", "-m", "--json"}).option("label"), "--json");
}

TEST(Arguments, SocketBeforeTheVerbIsNotTakenForTheVerb) {
  const auto found = parsed({"--socket", "list", "info", "ab"});
  EXPECT_EQ(found.verb, find_verb("info"));
  EXPECT_EQ(found.option("socket"), "list");
}

TEST(Arguments, WordsAfterTwoHyphensAreArguments) {
  const auto found = parsed({"read", "ab", "--", "--json"});
  EXPECT_EQ(found.argument("PATH"), "--json");
  EXPECT_FALSE(found.has("json"));
}

TEST(Arguments, LastOfAnOptionGivenTwiceCountsUnlessItRepeats) {
  EXPECT_EQ(parsed({"snapshot", "ab", "-m", "a", "-m", "b"}).option("label"), "b");
  EXPECT_THAT(parsed({"create", "-s", "pdf", "--skill", "xlsx"}).each("skill"), ElementsAre("pdf", "xlsx"));
}

TEST(Arguments, WrongUseIsRefusedWithTheWayToHelp) {
  EXPECT_THAT(refusal_of({}), HasSubstr("okcvm help"));
  EXPECT_THAT(refusal_of({"frobnicate"}), HasSubstr("no verb 'frobnicate'"));
  EXPECT_THAT(refusal_of({"skill"}), HasSubstr("load, unload"));
  EXPECT_THAT(refusal_of({"skill", "eat"}), HasSubstr("load, unload"));
  EXPECT_THAT(refusal_of({"info"}), HasSubstr("needs ID"));
  EXPECT_THAT(refusal_of({"info", "a", "b"}), HasSubstr("'b' is an unexpected argument"));
  EXPECT_THAT(refusal_of({"info", "a", "--frob"}),
              HasSubstr("unknown option '--frob'; see 'okcvm help info'"));
  EXPECT_THAT(refusal_of({"info", "a", "-x"}), HasSubstr("unknown option '-x'"));
  EXPECT_THAT(refusal_of({"info", "a", "--json=yes"}), HasSubstr("takes no value"));
  EXPECT_THAT(refusal_of({"snapshot", "a", "-m"}), HasSubstr("needs a value"));
  EXPECT_THAT(refusal_of({"info", ""}), HasSubstr("ID is empty"));
  EXPECT_THAT(refusal_of({"resolve", "a", "x", "--mode", "magic"}), HasSubstr("strict, rebase, physical"));
  EXPECT_THAT(refusal_of({"completion", "tcsh"}), HasSubstr("bash, zsh, fish"));
}

TEST(Arguments, NumbersAreWholeAndSmallEnough) {
  EXPECT_EQ(parsed({"top", "-c", "0"}).option("count"), "0");
  EXPECT_EQ(parsed({"list", "-n", "2147483647"}).option("limit"), "2147483647");
  for (const char* bad :
       {"-1", "1.5", "ten", "", " 1", "1 ", "+1", "0x10", "2147483648", "99999999999999999999"})
    EXPECT_THAT(refusal_of({"list", "-n", bad}), HasSubstr("whole number")) << bad;
  EXPECT_THAT(refusal_of({"list", "-n", "0"}), HasSubstr("from 1"));
}

TEST(Arguments, HelpLetsTheRestBeIncomplete) {
  const auto found = parsed({"restore", "--help"});
  EXPECT_EQ(found.verb, find_verb("restore"));
  EXPECT_TRUE(found.has("help"));
  EXPECT_TRUE(parsed({"--help"}).has("help"));
  EXPECT_TRUE(parsed({"-h"}).has("help"));
}

}  // namespace
}  // namespace okcvm::cli
