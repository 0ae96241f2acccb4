#include "tools/daemon/host/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/support/process.h"

namespace okcvm::daemon {
namespace {

class OptionsTest : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(file_); }

  void write_file(const std::string& text) { std::ofstream(file_) << text; }
  Result<Options> read(std::vector<const char*> arguments, std::vector<const char*> environment = {}) {
    arguments.insert(arguments.begin(), "okcvmd");
    environment.push_back(nullptr);
    return read_options(static_cast<int>(arguments.size()), arguments.data(), environment.data());
  }
  Result<Options> read_with_file(std::vector<const char*> arguments,
                                 std::vector<const char*> environment = {}) {
    arguments.insert(arguments.end(), {"--config", file_.c_str()});
    return read(arguments, environment);
  }
  std::string refusal(const Result<Options>& options) { return options ? "" : options.error().message; }

  const std::string file_ = ::testing::TempDir() + "okcvmd-options-" + std::to_string(::getpid()) + ".conf";
};

TEST_F(OptionsTest, DefaultsAreTheDesigns) {
  const auto options = read({});
  ASSERT_TRUE(options);
  EXPECT_EQ(options->state_dir, "/var/lib/okcvm");
  EXPECT_EQ(options->socket, "/run/okcvm/control.sock");
  EXPECT_THAT(options->skills_dirs, ::testing::ElementsAre("/var/lib/okcvm/skills"));
  EXPECT_EQ(options->session_ttl_days, 7);
  EXPECT_TRUE(options->snapshots);
  EXPECT_TRUE(options->workdir_allow_roots.empty());
}

TEST_F(OptionsTest, CommandLineGoesBeforeEnvironmentBeforeFile) {
  write_file("state-dir = /from/file\nrun-dir=/from/file # no comment here\nmount-root = /from/file\n");
  auto options = read_with_file({"--state-dir", "/from/line"},
                                {"OKCVM_STATE_DIR=/from/env", "OKCVM_MOUNT_ROOT=/from/env"});
  ASSERT_TRUE(options) << refusal(options);
  EXPECT_EQ(options->state_dir, "/from/line");
  EXPECT_EQ(options->mount_root, "/from/env");
  EXPECT_EQ(options->run_dir, "/from/file # no comment here");
  std::ostringstream printed;
  print_config(*options, printed);
  EXPECT_THAT(printed.str(), ::testing::HasSubstr("state-dir = /from/line  # command line\n"));
  EXPECT_THAT(printed.str(), ::testing::HasSubstr("mount-root = /from/env  # OKCVM_MOUNT_ROOT\n"));
  EXPECT_THAT(printed.str(), ::testing::HasSubstr("# " + file_ + "\n"));
  EXPECT_THAT(printed.str(), ::testing::HasSubstr("session-ttl-days = 7  # default\n"));
}

TEST_F(OptionsTest, RepeatableOnesCollect) {
  write_file("[okcvmd]\nworkdir-allow-root = /a\nworkdir-allow-root = /b/\n");
  auto options =
      read_with_file({"--skills-dir", "/s1", "--skills-dir", "/s2"}, {"OKCVM_SYMLINK_HOST_ROOT=/usr:/opt"});
  ASSERT_TRUE(options) << refusal(options);
  EXPECT_THAT(options->workdir_allow_roots, ::testing::ElementsAre("/a", "/b"));
  EXPECT_THAT(options->skills_dirs, ::testing::ElementsAre("/s1", "/s2"));
  EXPECT_THAT(options->symlink_host_roots, ::testing::ElementsAre("/usr", "/opt"));
}

TEST_F(OptionsTest, WrongFilesAreRefusedWithTheirLine) {
  for (const auto& [text, reason] : std::vector<std::pair<std::string, std::string>>{
           {"\n# c\nno-such = 1\n", ":3: unknown option 'no-such'"},
           {"state-dir\n", ":1: 'name = value'"},
           {"session-ttl-days = seven\n", ":1: 'seven' is refused"},
           {"session-ttl-days = 99999999999999999999\n", ":1:"},
           {"session-ttl-days = -1\n", ":1:"},
           {"state-dir = relative\n", "absolute"},
           {"snapshots = maybe\n", "on|off"},
           {"state-dir=/a\nstate-dir=/b\n", ":2: 'state-dir' is given more than once"},
           {"config = /x\n", "unknown option"},
           {"print-config = on\n", "unknown option"}}) {
    write_file(text);
    EXPECT_THAT(refusal(read_with_file({})), ::testing::HasSubstr(reason)) << text;
  }
  EXPECT_THAT(refusal(read({"--config", "/no/such/file"})), ::testing::HasSubstr("/no/such/file"));
}

TEST_F(OptionsTest, WrongCommandLinesAreRefused) {
  for (const auto& arguments :
       std::vector<std::vector<const char*>>{{"--no-such"},
                                             {"--state", "/x"},
                                             {"stray"},
                                             {"--state-dir"},
                                             {"--state-dir", "/a", "--state-dir", "/b"},
                                             {"--log-level", "loud"},
                                             {"--max-sessions", "0"},
                                             {"--max-sessions", "1e3"}})
    EXPECT_FALSE(read(arguments)) << arguments.front();
  EXPECT_THAT(refusal(read({}, {"OKCVM_SESSION_TTL_DAYS=x"})),
              ::testing::HasSubstr("OKCVM_SESSION_TTL_DAYS"));
}

TEST_F(OptionsTest, RelativePathsAreTakenFromTheWorkingDirectory) {
  const auto here = std::filesystem::current_path();
  auto options = read({"--state-dir", "state", "--run-dir=../run", "--skills-dir", "./a/"},
                      {"OKCVM_MOUNT_ROOT=mnt", "OKCVM_SYMLINK_HOST_ROOT=/usr:opt"});
  ASSERT_TRUE(options) << refusal(options);
  EXPECT_EQ(options->state_dir, here / "state");
  EXPECT_EQ(options->run_dir, here.parent_path() / "run");
  EXPECT_EQ(options->socket, here.parent_path() / "run/control.sock");
  EXPECT_EQ(options->mount_root, here / "mnt");
  EXPECT_THAT(options->skills_dirs, ::testing::ElementsAre(here / "a"));
  EXPECT_THAT(options->symlink_host_roots, ::testing::ElementsAre("/usr", (here / "opt").string()));

  const std::string file = "okcvmd-relative-" + std::to_string(::getpid()) + ".conf";
  std::ofstream(here / file) << "state-dir = /from/file\n";
  options = read({"--config", file.c_str()});
  ASSERT_TRUE(options) << refusal(options);
  EXPECT_EQ(options->config, here / file);
  EXPECT_EQ(options->state_dir, "/from/file");
  std::filesystem::remove(here / file);

  EXPECT_THAT(refusal(read({"--config", ""})), ::testing::HasSubstr("a path is needed"));
  write_file("state-dir = relative\n");
  EXPECT_THAT(refusal(read_with_file({})), ::testing::HasSubstr("does not know where okcvmd is started"));
}

TEST_F(OptionsTest, WhatIsPrintedInVainFails) {
  for (const std::string option : {"--help", "--help-table", "--version", "--print-config"}) {
    const auto run = [&](const std::string& redirection) {
      return test::run_script(OKCVMD_PROGRAM " " + option + redirection, "/").exit_code;
    };
    EXPECT_EQ(run(" >/dev/null"), 0) << option;
    EXPECT_EQ(run(" >/dev/full"), 1) << option;
    EXPECT_EQ(run(" >&-"), 1) << option;
  }
}

TEST_F(OptionsTest, HelpSaysHowTheEnvironmentRepeatsAnOption) {
  std::ostringstream help;
  print_help(help);
  EXPECT_THAT(help.str(), ::testing::HasSubstr("OKCVM_SKILLS_DIR=/a:/b"));
}

TEST_F(OptionsTest, HelpNamesEveryOption) {
  std::ostringstream help, table;
  print_help(help);
  print_help_table(table);
  for (const auto& row : option_table()) {
    EXPECT_THAT(help.str(), ::testing::HasSubstr("--" + std::string(row.name)));
    EXPECT_THAT(table.str(), ::testing::HasSubstr(std::string(row.name) + "\t"));
  }
}

}  // namespace
}  // namespace okcvm::daemon
