#include <fcntl.h>
#include <unistd.h>

#include "tests/support/mounted_session.h"

namespace okcvm::test {
namespace {

/// A session whose workdir/ is a directory that the host uses, too.
class Workdir : public MountedSession {
 protected:
  void SetUp() override {
    MountedSession::SetUp();
    if (IsSkipped()) return;
    start_with([&](fusefs::MountConfig& config) {
      config.workdir = open_file(host_.path(), O_RDONLY | O_DIRECTORY);
    });
  }

  std::filesystem::path host() const { return host_.path(); }
  std::filesystem::path workdir() const { return mount() / "workdir"; }

 private:
  ScratchDirectory host_{"workdir"};
};

TEST_F(Workdir, WhatIsAppendedComesAfterWhatTheHostAppended) {
  write(host() / "log", "");
  const auto ours = open_file(workdir() / "log", O_WRONLY | O_APPEND);
  const auto hosts = open_file(host() / "log", O_WRONLY | O_APPEND);
  std::string all;
  for (int i = 0; i < 20; ++i) {
    const std::string line = "host " + std::to_string(i) + "\n",
                      answer = "session " + std::to_string(i) + "\n";
    write_all(hosts, line);
    write_all(ours, answer);
    all += line + answer;
  }
  EXPECT_EQ(read(host() / "log"), all);
  const auto seen = open_file(workdir() / "log", O_RDONLY);
  EXPECT_EQ(read(seen), all);
}

}  // namespace
}  // namespace okcvm::test
