#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/tools/http_client.h"

namespace okcvm::test {

/// A real okcvmd with private directories, ended and cleared away after each test. Skipped where mounting is
/// not possible.
class DaemonFixture : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  /// Starts it and waits until it serves.
  void start(const std::vector<std::string>& options = {});
  /// Starts it when it is expected to refuse; answers its exit status and what it said.
  std::pair<int, std::string> start_in_vain(const std::vector<std::string>& options = {});
  void signal(int number);
  /// Answers the exit status of the program that start() started; -1 if a signal ended it.
  int wait_for_end();
  int stop();
  /// The process that serves, which with --keeper is not the one that was started.
  pid_t serving_pid();
  /// The process that was started.
  pid_t keeper_pid() const { return child_; }
  /// Kills what serves, though not its keeper.
  void kill_daemon();

  HttpAnswer ask(const std::string& method, const std::string& target, const std::string& body = {},
                 const std::map<std::string, std::string>& headers = {});
  /// As another user of the host.
  HttpAnswer ask_as(uid_t uid, const std::string& method, const std::string& target,
                    const std::string& body = {});
  HttpClient connect_as(uid_t uid);
  nlohmann::json create(const nlohmann::json& request);
  void add_skill(const std::string& name, const std::string& text);
  std::string log() const;

  /// Polls a condition that another process brings about, for up to 30 seconds.
  static bool comes_true(const std::function<bool()>& condition);
  /// The entries of a folder of a process in /proc: "fd", "task".
  static std::size_t count_in_proc(pid_t process, const char* folder);

  std::filesystem::path mount(const std::string& id) const { return root_ / "mnt" / ("okcvm-" + id); }
  std::string socket() const { return root_ / "run" / "control.sock"; }
  static std::string read(const std::filesystem::path& file);
  static void write(const std::filesystem::path& file, const std::string& text);

  std::filesystem::path root_;

 private:
  pid_t launch(const std::vector<std::string>& options);
  pid_t child_ = -1;
};

/// With a session "s1".
class DaemonWithSession : public DaemonFixture {
 protected:
  void SetUp() override;
};

}  // namespace okcvm::test
