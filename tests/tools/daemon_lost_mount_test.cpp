// Mounts that are taken away from outside.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mount.h>

#include <filesystem>
#include <optional>
#include <string>

#include "tests/support/file_io.h"
#include "tests/tools/daemon_fixture.h"

namespace okcvm::test {
namespace {

namespace fs = std::filesystem;

class LostMounts : public DaemonWithSession {
 protected:
  /// Whether the daemon has a file without a name open in the session's workspace.
  bool is_receiving() {
    std::error_code gone;
    for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(serving_pid()) + "/fd")) {
      const auto file = fs::read_symlink(entry, gone).string();
      if (file.find("workspaces/s1/") != file.npos && file.ends_with("(deleted)")) return true;
    }
    return false;
  }
  std::string state() { return ask("GET", "/v1/sessions/s1").json().value("state", ""); }

  /// Begins to send a file, and takes the mount away.
  HttpClient lose_under_an_upload() {
    HttpClient uploader(socket());
    uploader.send("PUT /v1/sessions/s1/files/outputs/large HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n" +
                  std::string(1000, 'x'));
    EXPECT_TRUE(comes_true([&] { return is_receiving(); }));
    EXPECT_EQ(::umount2(mount("s1").c_str(), MNT_DETACH), 0);
    EXPECT_TRUE(comes_true([&] { return state() == "unmounted"; }));
    return uploader;
  }
  /// Whether the session, which was mounted anew, stays that when the uploader goes.
  void expect_to_stay(std::optional<HttpClient> uploader) {
    write(mount("s1") / "outputs/file", "new");
    uploader.reset();
    EXPECT_TRUE(comes_true([&] { return !is_receiving(); }));
    EXPECT_EQ(state(), "mounted");
    EXPECT_EQ(read(mount("s1") / "outputs/file"), "new");
    EXPECT_FALSE(fs::is_empty(root_ / "run/sessions"));
  }
};

TEST_F(LostMounts, AreMountedAnewForGoodThoughAnUploadGoesOn) {
  auto uploader = lose_under_an_upload();
  ASSERT_EQ(ask("POST", "/v1/sessions/s1/mount").status, 200);
  expect_to_stay(std::move(uploader));
}

TEST_F(LostMounts, AreMountedAnewThoughAProgramStandsInTheFormerOne) {
  const FileDescriptor stands_in(::open(mount("s1").c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(::umount2(mount("s1").c_str(), MNT_DETACH), 0);
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/mount").status, 200);
  write(mount("s1") / "outputs/file", "new");
  EXPECT_EQ(read(root_ / "state/workspaces/s1/outputs/file"), "new");
}

TEST_F(LostMounts, OfABindOfTheSessionToItsOwnPlaceNothingIsLeft) {
  const auto place = mount("s1");
  ASSERT_EQ(::mount(place.c_str(), place.c_str(), nullptr, MS_BIND, nullptr), 0);
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/unmount").status, 200);
  EXPECT_FALSE(fs::exists(place));
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/mount").status, 200);
}

TEST_F(LostMounts, TheRunTimeDirectoryThatWasLostIsMadeAnewForRootAlone) {
  fs::remove_all(root_ / "run/sessions");
  create({{"id", "s2"}});
  EXPECT_EQ(mode_of(root_ / "run/sessions"), 0700u);
}

TEST_F(LostMounts, SayWhatToDoAboutWhatIsInTheirPlace) {
  const auto refused = [&](const char* next) {
    const auto answer = ask("POST", "/v1/sessions/s1/mount");
    EXPECT_EQ(answer.code(), "busy");
    EXPECT_THAT(answer.body, ::testing::HasSubstr(next));
    EXPECT_THAT(answer.body, ::testing::HasSubstr("okcvm load"));
    EXPECT_THAT(answer.body, ::testing::Not(::testing::HasSubstr("state")));
  };
  ASSERT_EQ(ask("POST", "/v1/sessions/s1/unmount").status, 200);
  fs::create_directory(mount("s1"));
  write(mount("s1") / "precious", "bytes");
  refused("move");
  ASSERT_EQ(::mount("none", mount("s1").c_str(), "tmpfs", 0, nullptr), 0);
  refused("unmount");
  ASSERT_EQ(::umount2(mount("s1").c_str(), 0), 0);
  EXPECT_EQ(read(mount("s1") / "precious"), "bytes");
  fs::remove(mount("s1") / "precious");
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/mount").status, 200);
}

TEST_F(LostMounts, AreNotTheNextOnesOfTheirName) {
  auto uploader = lose_under_an_upload();
  ASSERT_EQ(ask("DELETE", "/v1/sessions/s1").status, 200);
  create({{"id", "s1"}});
  expect_to_stay(std::move(uploader));
}

}  // namespace
}  // namespace okcvm::test
