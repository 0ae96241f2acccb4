#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/process.h"
#include "tests/tools/daemon_fixture.h"

namespace okcvm::test {

using Json = nlohmann::json;

/// A daemon that serves many tests, one after the other.
class SeedDaemon final : public DaemonFixture {
 public:
  using DaemonFixture::add_skill;
  using DaemonFixture::ask;
  using DaemonFixture::ask_as;
  using DaemonFixture::mount;
  using DaemonFixture::read;
  using DaemonFixture::SetUp;
  using DaemonFixture::socket;
  using DaemonFixture::start;
  using DaemonFixture::stop;
  using DaemonFixture::TearDown;
  using DaemonFixture::write;
  const std::filesystem::path& root() const { return root_; }

 private:
  void TestBody() override {}
};

/// One requirement of a seed document on a real mount. The suite shares a daemon; each test has a session of
/// its own, made for it and deleted after it.
class SeedTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { start_suite({}); }
  static void TearDownTestSuite();
  /// Starts the suite's daemon; "ROOT" in an option stands for its private directory.
  static void start_suite(std::vector<std::string> options);
  static SeedDaemon& daemon();

  void SetUp() override;
  void TearDown() override;

  static HttpAnswer ask(const std::string& method, const std::string& target, const Json& body = nullptr);
  /// A route of this test's session: about("GET", "/info").
  HttpAnswer about(const std::string& method, const std::string& rest, const Json& body = nullptr);
  /// The same with bytes as its body.
  HttpAnswer send(const std::string& method, const std::string& rest, const std::string& bytes);
  /// A session more, which a test makes and need not delete.
  Json create(const Json& request = Json::object());
  /// `okcvm ARGUMENTS`.
  static CommandResult okcvm(std::vector<std::string> arguments);

  const std::string& id() const { return id_; }
  std::filesystem::path mount() const { return daemon().mount(id_); }
  std::filesystem::path outputs() const { return mount() / "outputs"; }
  std::filesystem::path temp() const { return mount() / "temp"; }
  std::filesystem::path uploads() const { return mount() / "uploads"; }
  /// Where the host keeps the session's files, and its snapshots.
  static std::filesystem::path workspace(const std::string& session);
  static std::filesystem::path repository(const std::string& session);

 private:
  std::string id_;
  std::vector<std::string> made_;
};

}  // namespace okcvm::test
