#include "tests/seeds/seed_test.h"

#include <memory>

namespace okcvm::test {
namespace {

std::unique_ptr<SeedDaemon> the_daemon;

}  // namespace

void SeedTest::start_suite(std::vector<std::string> options) {
  the_daemon = std::make_unique<SeedDaemon>();
  the_daemon->SetUp();
  if (the_daemon->root().empty()) return;
  for (auto& option : options)
    if (option.starts_with("ROOT")) option.replace(0, 4, the_daemon->root().string());
  the_daemon->start(options);
}

void SeedTest::TearDownTestSuite() {
  the_daemon->TearDown();
  the_daemon.reset();
}

SeedDaemon& SeedTest::daemon() {
  return *the_daemon;
}

void SeedTest::SetUp() {
  if (daemon().root().empty())
    GTEST_SKIP() << "sessions cannot be mounted here (root and /dev/fuse are needed)";
  id_ = create()["id"];
}

void SeedTest::TearDown() {
  for (const auto& made : made_) ask("DELETE", "/v1/sessions/" + made);
}

HttpAnswer SeedTest::ask(const std::string& method, const std::string& target, const Json& body) {
  return daemon().ask(method, target, body.is_null() ? std::string() : body.dump());
}

HttpAnswer SeedTest::about(const std::string& method, const std::string& rest, const Json& body) {
  return ask(method, "/v1/sessions/" + id_ + rest, body);
}

HttpAnswer SeedTest::send(const std::string& method, const std::string& rest, const std::string& bytes) {
  return daemon().ask(method, "/v1/sessions/" + id_ + rest, bytes);
}

Json SeedTest::create(const Json& request) {
  const auto answer = ask("POST", "/v1/sessions", request);
  EXPECT_TRUE(answer.status == 201 || answer.status == 200) << answer.body;
  auto session = answer.json();
  if (answer.status == 201) made_.push_back(session.value("id", ""));
  return session;
}

CommandResult SeedTest::okcvm(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), OKCVM_PROGRAM);
  return run({.arguments = std::move(arguments), .environment = {"OKCVM_SOCKET=" + daemon().socket()}});
}

std::filesystem::path SeedTest::workspace(const std::string& session) {
  return daemon().root() / "state/workspaces" / session;
}

std::filesystem::path SeedTest::repository(const std::string& session) {
  return daemon().root() / "state/snapshots" / (session + ".git");
}

}  // namespace okcvm::test
