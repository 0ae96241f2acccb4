#include <filesystem>

#include "tests/tools/daemon_fixture.h"

namespace okcvm::test {
namespace {

using nlohmann::json;

class DaemonPaths : public DaemonWithSession {
 protected:
  HttpAnswer resolve(const json& request) { return ask("POST", "/v1/sessions/s1/resolve", request.dump()); }
};

TEST_F(DaemonPaths, AreResolvedByThreeConventions) {
  ASSERT_EQ(ask("PUT", "/v1/sessions/s1/files/outputs/d/f", "x").status, 201);
  std::filesystem::create_symlink("d/f", mount("s1") / "outputs/link");
  EXPECT_EQ(resolve({{"path", "outputs/d/f"}}).json()["type"], "file");
  EXPECT_EQ(resolve({{"path", "outputs/link"}, {"mode", "physical"}}).json()["path"], "outputs/d/f");
  EXPECT_EQ(resolve({{"path", "/outputs\\d\\f"}, {"mode", "rebase"}}).json()["path"], "outputs/d/f");
  EXPECT_EQ(resolve({{"path", "/outputs/d/f"}}).code(), "path_traversal_blocked");
  EXPECT_EQ(resolve({{"path", "/../etc"}, {"mode", "rebase"}}).code(), "path_traversal_blocked");
  EXPECT_EQ(resolve({{"path", "outputs/none"}}).json()["exists"], false);
  EXPECT_EQ(resolve({{"path", "outputs/none"}, {"must_exist", true}}).code(), "not_found");
  EXPECT_EQ(resolve({{"path", "skills"}, {"for_write", true}}).code(), "read_only");
  EXPECT_EQ(resolve({{"path", "workdir/x"}, {"for_write", true}}).code(), "read_only") << "none is bound";
  EXPECT_EQ(resolve({{"path", "outputs"}, {"mode", "other"}}).code(), "invalid_request");
}

TEST_F(DaemonPaths, AreWalkedPhysicallyAsTheKernelWalks) {
  ASSERT_EQ(ask("PUT", "/v1/sessions/s1/files/outputs/d/e/f", "x").status, 201);
  std::filesystem::create_symlink("../outputs/d/e", mount("s1") / "temp/deep");
  const std::string here = mount("s1");
  for (const auto& [path, physical] :
       std::vector<std::pair<std::string, std::string>>{{"outputs/../uploads", "uploads"},
                                                        {"temp/deep/..", "outputs/d"},
                                                        {"temp/./deep//f", "outputs/d/e/f"},
                                                        {"temp/none/../deep/f", "outputs/d/e/f"},
                                                        {"outputs/..", ""},
                                                        {here, ""},
                                                        {here + "/temp/deep/../e/f", "outputs/d/e/f"}}) {
    const auto answer = resolve({{"path", path}, {"mode", "physical"}});
    EXPECT_EQ(answer.json()["path"], physical) << path;
    EXPECT_EQ(answer.json()["mount_path"], physical.empty() ? here : here + "/" + physical) << path;
  }
  EXPECT_EQ(resolve({{"path", "temp/none/../deep"}, {"mode", "physical"}, {"must_exist", true}}).code(),
            "not_found");
  for (const char* path : {"outputs/d/e/f/..", "outputs/d/e/f/../f", "outputs/d/e/f/", "temp/deep/f/."})
    for (const bool must_exist : {true, false})
      EXPECT_EQ(resolve({{"path", path}, {"mode", "physical"}, {"must_exist", must_exist}}).code(),
                "invalid_request")
          << path;
  EXPECT_EQ(resolve({{"path", "/" + here + "/outputs"}, {"mode", "physical"}}).json()["path"], "outputs");
  for (const std::string& path : {std::string("outputs/../../etc"), std::string(".."), std::string("/etc"),
                                  std::string("/"), here + "x/y", here + "/.."})
    EXPECT_EQ(resolve({{"path", path}, {"mode", "physical"}}).code(), "path_traversal_blocked") << path;
}

TEST_F(DaemonPaths, AreNamedAnewInPrompts) {
  const auto answer =
      ask("POST", "/v1/sessions/s1/adapt-prompt", R"({"prompt":"see /mnt/okcomputer/output/x"})");
  EXPECT_EQ(answer.json()["prompt"], "see " + mount("s1").string() + "/outputs/x");
}

TEST_F(DaemonPaths, ThatAreNoTextAreGivenEncoded) {
  ASSERT_EQ(ask("PUT", "/v1/sessions/s1/files/outputs/%FF/f", "x").status, 201);
  std::filesystem::create_directory_symlink("\xff", mount("s1") / "outputs/link");
  const auto told = resolve({{"encoded_path", "outputs/%FF/%66"}}).json();
  EXPECT_EQ(told["encoded_path"], "outputs/%FF/f");
  EXPECT_EQ(told["exists"], true);
  EXPECT_EQ(told["zone"], "outputs");
  EXPECT_EQ(resolve({{"path", "outputs/link/f"}, {"mode", "physical"}}).json()["encoded_path"],
            "outputs/%FF/f");
  EXPECT_FALSE(resolve({{"encoded_path", "outputs/link"}}).json().contains("encoded_path"));
  EXPECT_EQ(resolve({{"encoded_path", "/outputs%5C%FF"}, {"mode", "rebase"}}).json()["type"], "directory");
  EXPECT_EQ(resolve({{"encoded_path", "%2e%2e/x"}}).code(), "path_traversal_blocked");
  for (const auto& wrong : {json{{"encoded_path", "outputs/%zz"}}, json{{"encoded_path", "outputs/%00"}},
                            json{{"encoded_path", "a"}, {"path", "a"}}, json::object()})
    EXPECT_EQ(resolve(wrong).code(), "invalid_request") << wrong;
}

TEST_F(DaemonPaths, AreJudgedByWhereTheirLinksLeadHoweverMuchIsMissingBehindThem) {
  const auto outputs = mount("s1") / "outputs", temp = mount("s1") / "temp";
  std::filesystem::create_directory_symlink("../skills", outputs / "sk");
  std::filesystem::create_directory_symlink("../outputs", temp / "out");
  std::filesystem::create_directory_symlink("../skills/no/such", outputs / "none");
  std::filesystem::create_directory_symlink(mount("s1") / "skills", outputs / "absolute");
  for (const auto& [path, physical] :
       std::vector<std::pair<std::string, std::string>>{{"outputs/sk/a", "skills/a"},
                                                        {"outputs/sk/a/b", "skills/a/b"},
                                                        {"outputs/sk/a/b/c/d", "skills/a/b/c/d"},
                                                        {"outputs/none", "skills/no/such"},
                                                        {"outputs/none/a/b", "skills/no/such/a/b"},
                                                        {"outputs/absolute/a/b", "skills/a/b"},
                                                        {"temp/out/sk/a/b", "skills/a/b"},
                                                        {"temp/out/a/b", "outputs/a/b"},
                                                        {"outputs/a/b", "outputs/a/b"},
                                                        {"other/a/b", "other/a/b"}}) {
    const auto zone = physical.starts_with("other") ? "" : physical.substr(0, physical.find('/'));
    for (const std::string mode : {"strict", "physical"}) {
      const auto answer = resolve({{"path", path}, {"mode", mode}}).json();
      const auto& told = mode == "physical" ? physical : path;
      EXPECT_EQ(answer["path"], told) << answer;
      EXPECT_EQ(answer["mount_path"], (mount("s1") / told).string());
      EXPECT_EQ(answer["exists"], false) << path;
      EXPECT_EQ(answer["zone"], zone) << path << mode;
      EXPECT_EQ(answer["writable"], zone == "outputs") << path << mode;
      EXPECT_EQ(resolve({{"path", path}, {"mode", mode}, {"for_write", true}}).status,
                zone == "outputs" ? 200 : 403)
          << path << mode;
      EXPECT_EQ(resolve({{"path", path}, {"mode", mode}, {"must_exist", true}}).code(), "not_found") << path;
    }
  }
  std::filesystem::create_directory_symlink("/etc", root_ / "state/workspaces/s1/outputs/host");
  for (const char* mode : {"strict", "physical"})
    EXPECT_EQ(resolve({{"path", "outputs/host/a/b"}, {"mode", mode}}).code(), "path_traversal_blocked")
        << mode;
  EXPECT_EQ(resolve({{"path", "outputs/a/" + std::string(256, 'n')}}).code(), "invalid_request");
}

}  // namespace
}  // namespace okcvm::test
