// The unit files, the manual pages and the scripts that are installed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <sstream>

#include "tests/support/process.h"
#include "tests/support/scratch.h"

namespace okcvm::cli::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ServiceFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ostringstream text;
    text << std::ifstream(OKCVM_SOURCE "/systemd/okcvmd.service.in").rdbuf();
    unit_ = std::regex_replace(text.str(), std::regex("@OKCVMD@"), "/bin/true");
    std::ofstream(scratch_ / "okcvmd.service") << unit_;
    std::filesystem::copy_file(OKCVM_SOURCE "/systemd/okcvmd.socket", scratch_ / "okcvmd.socket");
  }

  okcvm::test::CommandResult run(const std::string& script) {
    return okcvm::test::run_script(script, scratch_.path());
  }

  okcvm::test::ScratchDirectory scratch_{"units"};
  std::string unit_;
};

TEST_F(ServiceFiles, UnitsAreVerifiedBySystemd) {
  if (!okcvm::test::have_program("systemd-analyze")) GTEST_SKIP() << "systemd-analyze is not installed";
  const auto ran = run("systemd-analyze verify --man=no ./okcvmd.service ./okcvmd.socket");
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_EQ(ran.output, "");
}

TEST_F(ServiceFiles, ExposureIsAtMostMedium) {
  if (!okcvm::test::have_program("systemd-analyze")) GTEST_SKIP() << "systemd-analyze is not installed";
  const auto ran = run("systemd-analyze security --offline=true --no-pager --threshold=74 ./okcvmd.service");
  EXPECT_EQ(ran.exit_code, 0) << ran.output;
}

TEST_F(ServiceFiles, NothingGivesTheServiceAMountNamespace) {
  EXPECT_THAT(unit_, HasSubstr("\nPrivateMounts=no\n")) << "PrivateNetwork= implies it since systemd 254";
  for (const char* setting :
       {"PrivateTmp",        "PrivateDevices",       "PrivateUsers",          "PrivateIPC",
        "ProtectSystem",     "ProtectHome",          "ProtectKernelTunables", "ProtectKernelModules",
        "ProtectKernelLogs", "ProtectControlGroups", "ProtectProc",           "ProcSubset",
        "ReadOnlyPaths",     "ReadWritePaths",       "InaccessiblePaths",     "BindPaths",
        "BindReadOnlyPaths", "TemporaryFileSystem",  "RootDirectory",         "RootImage",
        "MountFlags",        "DynamicUser",          "LogNamespace",          "ExecPaths",
        "NoExecPaths",       "MountImages",          "ExtensionImages"})
    EXPECT_THAT(unit_, Not(HasSubstr("\n" + std::string(setting) + "=")))
        << "sessions would be invisible to the host";
}

TEST_F(ServiceFiles, MountsAreKeptWhileOneDaemonFollowsAnother) {
  for (const char* line :
       {"Type=notify", "FileDescriptorStoreMax=", "Restart=always", "WatchdogSec=", "ExecReload="})
    EXPECT_THAT(unit_, HasSubstr(std::string("\n") + line));
}

TEST_F(ServiceFiles, ScriptsAreGoodShell) {
  for (const char* script : {"tools/quickstart.sh", "tools/test.sh", "tools/packaging/check_package.sh",
                             "tools/packaging/check_service.sh", "tools/packaging/clean_root.sh", ".ci/run"})
    EXPECT_EQ(run("bash -n " OKCVM_SOURCE "/" + std::string(script)).output, "") << script;
  for (const char* script : {"tools/man/fill_in_options.sh", "tools/packaging/postinst",
                             "tools/packaging/prerm", "tools/packaging/postrm"})
    EXPECT_EQ(run("sh -n " OKCVM_SOURCE "/" + std::string(script)).output, "") << script;
}

TEST_F(ServiceFiles, ManualPagesNameTheDaemonsOptionsAndAreClean) {
  for (const std::string page : {"okcvmd.8", "okcvmd.conf.5", "okcvm-fs.7"}) {
    ASSERT_EQ(
        run(OKCVM_SOURCE "/tools/man/fill_in_options.sh " OKCVMD_PROGRAM " " OKCVM_SOURCE "/tools/man/" +
            page + ".in 1.2.3 > " + page)
            .exit_code,
        0);
    const auto text = run("cat " + page).output;
    EXPECT_THAT(text, HasSubstr("workdir\\-allow\\-root"));
    EXPECT_THAT(text, HasSubstr("okcvm-fs 1.2.3"));
    EXPECT_THAT(text, Not(::testing::ContainsRegex("@[A-Z]+@"))) << "a placeholder is left";
    if (!okcvm::test::have_program("groff")) continue;
    EXPECT_EQ(run("groff -man -Tutf8 -ww -z " + page).output, "") << page;
  }
}

TEST_F(ServiceFiles, SampleConfigurationIsAcceptedAndSetsNothing) {
  ASSERT_EQ(run(OKCVM_SOURCE "/tools/man/fill_in_options.sh " OKCVMD_PROGRAM " " OKCVM_SOURCE
                             "/tools/man/okcvmd.conf.in 1.2.3 > okcvmd.conf")
                .exit_code,
            0);
  const auto plain = run(OKCVMD_PROGRAM " --config $PWD/okcvmd.conf --print-config");
  EXPECT_EQ(plain.exit_code, 0) << plain.output;
  EXPECT_THAT(plain.output, Not(HasSubstr("okcvmd.conf\n"))) << "nothing is set by it";
  const auto changed = run("sed 's/^#log-level = .*/log-level = debug/' okcvmd.conf > edited; " OKCVMD_PROGRAM
                           " --config $PWD/edited --print-config");
  EXPECT_THAT(changed.output, HasSubstr("log-level = debug  # " + (scratch_ / "edited").string()));
}

}  // namespace
}  // namespace okcvm::cli::test
