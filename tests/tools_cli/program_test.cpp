#include "tests/tools_cli/program_test.h"

#include <fstream>
#include <sstream>

namespace okcvm::cli::test {

namespace {

std::string bytes_of(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

}  // namespace

void ProgramTest::daemon_answers(FakeDaemon::Answer answer) {
  daemon_.reset();
  daemon_ = std::make_unique<FakeDaemon>(scratch_ / "control.sock", std::move(answer));
}

void ProgramTest::daemon_answers(const std::string& bytes) {
  daemon_answers([bytes](const SeenRequest&) { return bytes; });
}

ProgramResult ProgramTest::okcvm(const std::string& words, const std::string& input) {
  return okcvm_into(words, ">out", input);
}

ProgramResult ProgramTest::okcvm_into(const std::string& words, const std::string& redirection,
                                      const std::string& input) {
  file("in", input);
  file("out", "");
  const auto ran = okcvm::test::run(
      {.arguments = {"bash", "-c",
                     "set -o pipefail; " OKCVM_PROGRAM " " + words + " <in 2>err " + redirection},
       .directory = scratch_.path(),
       .environment = {"OKCVM_SOCKET=" + socket(), "TZ=UTC"},
       .timeout = std::chrono::seconds(60)});
  EXPECT_FALSE(ran.timed_out) << "okcvm " << words;
  return {ran.exit_code, bytes_of(scratch_ / "out"), bytes_of(scratch_ / "err")};
}

std::string ProgramTest::file(const std::string& name, const std::string& bytes) const {
  std::ofstream(scratch_ / name, std::ios::binary) << bytes;
  return (scratch_ / name).string();
}

}  // namespace okcvm::cli::test
