#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/process.h"
#include "tests/support/scratch.h"
#include "tests/tools_cli/fake_daemon.h"

namespace okcvm::cli::test {

struct ProgramResult {
  int status = -1;
  std::string out;
  std::string err;

  nlohmann::json json() const { return nlohmann::json::parse(out, nullptr, false); }
};

/// Runs the okcvm program that was built, against a daemon that says what a test tells it to.
class ProgramTest : public ::testing::Test {
 protected:
  /// From now on the socket answers so.
  void daemon_answers(FakeDaemon::Answer answer);
  void daemon_answers(const std::string& bytes);

  /// `okcvm WORDS` in a shell, so WORDS are quoted as a user would; `input` is its standard input.
  ProgramResult okcvm(const std::string& words, const std::string& input = "");
  /// The same with the output going to `redirection` ("| head -c 3", ">/dev/full").
  ProgramResult okcvm_into(const std::string& words, const std::string& redirection,
                           const std::string& input = "");

  std::string socket() const { return (scratch_ / "control.sock").string(); }
  std::string file(const std::string& name, const std::string& bytes) const;

  okcvm::test::ScratchDirectory scratch_{"cli"};
  std::unique_ptr<FakeDaemon> daemon_;
};

}  // namespace okcvm::cli::test
