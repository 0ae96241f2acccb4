// What is written about the daemon, held against the daemon itself.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "tests/tools_cli/real_daemon.h"
#include "tools/cli/verbs.h"
#include "tools/daemon/host/options.h"
#include "tools/daemon/routes/router.h"

namespace okcvm::cli::test {
namespace {

using ::testing::Contains;

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(OKCVM_SOURCE "/" + path).rdbuf();
  EXPECT_FALSE(text.str().empty()) << path;
  return text.str();
}

/// "GET /v1/sessions/{}": what a name in braces is called does not matter.
std::string without_names(const std::string& route) {
  return std::regex_replace(route, std::regex(R"(\{[^}]*\})"), "{}");
}

std::string name_of(daemon::Method method) {
  constexpr std::array kNames{"GET", "POST", "PUT", "DELETE"};
  return kNames.at(static_cast<std::size_t>(method));
}

std::set<std::string> routes_of_the_daemon() {
  std::set<std::string> routes;
  for (const auto& route : daemon::route_table())
    routes.insert(without_names(name_of(route.method) + " " + std::string(route.pattern)));
  return routes;
}

/// Paths stand two spaces in, methods four.
std::set<std::string> routes_of_openapi() {
  std::set<std::string> routes;
  std::istringstream lines(text_of("tools/openapi.yaml"));
  std::string path;
  for (std::string line; std::getline(lines, line) && line != "components:";) {
    std::smatch match;
    if (std::regex_match(line, match, std::regex(R"(  (/\S*):)"))) path = match[1];
    if (std::regex_match(line, match, std::regex(R"(    (get|put|post|delete):)"))) {
      std::string method = match[1];
      std::transform(method.begin(), method.end(), method.begin(), ::toupper);
      routes.insert(without_names(method + " " + path));
    }
  }
  return routes;
}

TEST(Documentation, OpenApiHasTheRoutesOfTheDaemonAndNoOthers) {
  EXPECT_EQ(routes_of_openapi(), routes_of_the_daemon());
}

TEST(Documentation, OpenApiMarksTheRoutesThatShowProgress) {
  std::size_t marked = 0;
  std::istringstream lines(text_of("tools/openapi.yaml"));
  for (std::string line; std::getline(lines, line);) marked += line == "      x-progress: true";
  std::size_t shown = 0;
  for (const auto& route : daemon::route_table()) shown += route.shows_progress;
  EXPECT_EQ(marked, shown);
}

TEST(Documentation, EveryVerbAsksARouteOfTheDaemon) {
  const auto routes = routes_of_the_daemon();
  for (const auto& verb : verbs()) {
    if (verb.route.empty()) continue;
    EXPECT_THAT(routes, Contains(without_names(std::string(verb.route)))) << verb.name;
  }
}

TEST(Documentation, EveryErrorCodeIsInOpenApi) {
  const auto text = text_of("tools/openapi.yaml");
  for (auto code = Code::kInvalidRequest; code <= Code::kInternal;
       code = static_cast<Code>(static_cast<int>(code) + 1))
    EXPECT_THAT(text, ::testing::ContainsRegex("[[ ]" + std::string(text_of(code).name) + "[],]"));
}

/// The examples of okcvmd(8) as a user would type them: what stands between .EX and .EE.
std::string examples_of_the_manual() {
  std::string examples;
  std::istringstream lines(text_of("tools/man/okcvmd.8.in"));
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    if (line == ".EX" || line == ".EE")
      inside = line == ".EX";
    else if (inside)
      examples += line + "\n";
  }
  examples = std::regex_replace(examples, std::regex(R"(\\-)"), "-");
  return std::regex_replace(examples, std::regex(R"(\\e)"), "\\");
}

TEST(Documentation, ExamplesOfTheManualWork) {
  if (const auto reason = why_no_daemon(); !reason.empty()) GTEST_SKIP() << reason;
  if (!okcvm::test::have_program("curl")) GTEST_SKIP() << "curl is not installed";
  const RealDaemon daemon;
  ASSERT_EQ(daemon.problem(), "");
  auto script = examples_of_the_manual();
  ASSERT_GT(std::count(script.begin(), script.end(), '\n'), 10);
  script = std::regex_replace(script, std::regex("/run/okcvm/control\\.sock"), daemon.socket());
  const auto ran = daemon.run("set -x\n" + script);
  EXPECT_EQ(ran.exit_code, 0) << ran.output << daemon.log();
  EXPECT_THAT(ran.output, ::testing::HasSubstr("first draft\n"));
}

TEST(Documentation, VerbsWorkAgainstTheDaemonThatTheyAreFor) {
  if (const auto reason = why_no_daemon(); !reason.empty()) GTEST_SKIP() << reason;
  const RealDaemon daemon;
  ASSERT_EQ(daemon.problem(), "");
  const auto ran = daemon.run(R"SH(
    mount=$(okcvm create --id life -l team=blue)
    test "$(okcvm path li)" = "$mount"
    printf 'one\0two' | okcvm write life outputs/a/bytes --new
    okcvm read life outputs/a/bytes | cmp - "$mount/outputs/a/bytes"
    test "$(okcvm ls life outputs)" = '[DIR]  outputs/a/'
    test "$(okcvm ls life outputs/a/bytes)" = '[FILE] outputs/a/bytes (7 bytes)'
    head -c 3000000 /dev/urandom > blob
    cat blob | okcvm upload life - --name blob.bin
    cmp blob "$mount/uploads/blob.bin"
    first=$(okcvm snapshot life -m first)
    echo changed > "$mount/outputs/a/bytes"
    okcvm diff life
    okcvm snapshots life
    okcvm show life "$first" --names
    okcvm restore life "${first:0:8}" outputs/a/bytes --dry-run
    okcvm restore life "${first:0:8}" outputs/a/bytes
    printf 'one\0two' | cmp - "$mount/outputs/a/bytes"
    okcvm undo life
    test "$(cat "$mount/outputs/a/bytes")" = changed
    fork=$(okcvm fork life "$first" --id branch)
    printf 'one\0two' | cmp - "$fork/outputs/a/bytes"
    okcvm verify life
    echo '{"turn": 7}' | okcvm checkpoint save life --with-snapshot
    test "$(okcvm checkpoint load life)" = '{"turn":7}'
    okcvm checkpoint list life
    test "$(echo see /mnt/okcomputer/output/x | okcvm adapt-prompt life)" = "see $mount/outputs/x"
    test "$(okcvm resolve life outputs/a)" = "$mount/outputs/a"
    okcvm info life; okcvm list; okcvm skills; okcvm agents; okcvm workdirs; okcvm top; okcvm status
    okcvm unmount life; test "$(okcvm load lif)" = "$mount"
    okcvm reset life
    okcvm clean --dry-run
    okcvm delete bran | grep -q "name it in full"; okcvm delete branch; okcvm delete life; okcvm delete life
    test "$(okcvm list --json)" = '{"sessions":[],"truncated":false}'
  )SH");
  EXPECT_EQ(ran.exit_code, 0) << ran.output << daemon.log();
}

}  // namespace
}  // namespace okcvm::cli::test
