#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "policy/file_kind.h"
#include "policy/prompt_paths.h"
#include "policy/workdir_rule.h"

namespace okcvm {
namespace {

constexpr std::string_view kMount = "/mnt/okcvm-12ab34cd";

TEST(AdaptPrompt, RewritesTheOldMountAndItsOutputFolder) {
  EXPECT_EQ(adapt_prompt("Save to /mnt/okcomputer/output/a.md, read /mnt/okcomputer/upload/b", kMount).text,
            "Save to /mnt/okcvm-12ab34cd/outputs/a.md, read /mnt/okcvm-12ab34cd/upload/b");
  EXPECT_EQ(adapt_prompt("in /mnt/okcomputer/output.", kMount).text, "in /mnt/okcvm-12ab34cd/outputs.");
  EXPECT_EQ(adapt_prompt("位于/mnt/okcomputer/output。", kMount).text, "位于/mnt/okcvm-12ab34cd/outputs。");
  EXPECT_EQ(adapt_prompt("(/mnt/okcomputer)", kMount).replaced, 1u);
  EXPECT_EQ(adapt_prompt("", kMount).text, "");
}

TEST(AdaptPrompt, LeavesLongerNamesAlone) {
  for (const char* text :
       {"/mnt/okcomputer2/output", "/x/mnt-okcomputer", "a/mnt/okcomputer-old/", "/mnt/okcomputer.bak"})
    EXPECT_EQ(adapt_prompt(text, kMount).text, text);
  EXPECT_EQ(adapt_prompt("/mnt/okcomputer/output2/x", kMount).text, "/mnt/okcvm-12ab34cd/output2/x");
}

TEST(RebasePath, CountsAbsolutePathsFromTheSession) {
  EXPECT_EQ(rebase_path("/etc/passwd", kMount)->text(), "etc/passwd");
  EXPECT_EQ(rebase_path("outputs\\a\\b.txt", kMount)->text(), "outputs/a/b.txt");
  EXPECT_EQ(rebase_path("/mnt/okcvm-12ab34cd/outputs/x", kMount)->text(), "outputs/x");
  EXPECT_EQ(rebase_path("/mnt/okcvm-12ab34cdef/x", kMount)->text(), "mnt/okcvm-12ab34cdef/x");
  EXPECT_EQ(rebase_path("/mnt/okcomputer/output/x", kMount)->text(), "outputs/x");
  EXPECT_EQ(rebase_path("outputs/./a//../b", kMount)->text(), "outputs/b");
  EXPECT_TRUE(rebase_path("/", kMount)->is_root());
}

TEST(RebasePath, RefusesToLeaveTheSession) {
  for (const char* text : {"..", "/..", "outputs/../../x", "\\..\\x", "/mnt/okcvm-12ab34cd/../x"})
    EXPECT_EQ(rebase_path(text, kMount).error().code, Code::kPathTraversalBlocked) << text;
  EXPECT_EQ(rebase_path(std::string("a\0b", 3), kMount).error().code, Code::kInvalidRequest);
}

TEST(FileKind, FollowsTheSeedsTable) {
  EXPECT_EQ(kind_of_file("a.PDF"), "pdf");
  EXPECT_EQ(kind_of_file("a.tar.json"), "json");
  EXPECT_EQ(kind_of_file("photo.jpeg"), "image");
  for (const char* name : {"a", ".pdf", "a.exe", "pdf", "a."})
    EXPECT_EQ(kind_of_file(name), "unknown") << name;
  EXPECT_EQ(content_type_of("page.html"), "application/octet-stream");
}

TEST(UploadName, IsOneHarmlessComponent) {
  EXPECT_EQ(safe_upload_name("../../etc/passwd"), "passwd");
  EXPECT_EQ(safe_upload_name("C:\\docs\\Report 1.pdf"), "Report 1.pdf");
  EXPECT_EQ(safe_upload_name(".git\nignore"), ".gitignore");
  for (const char* name : {"", "..", "...", " ", "a/", "\x01"})
    EXPECT_EQ(safe_upload_name(name), "upload") << name;
  EXPECT_EQ(safe_upload_name("报告.pdf"), "报告.pdf");
  const auto cut = safe_upload_name(std::string(300, 'a') + ".pdf");
  EXPECT_EQ(cut.size(), 200u);
  EXPECT_TRUE(cut.ends_with(".pdf"));
}

class Workdir : public ::testing::Test {
 protected:
  Code check(std::string_view path) {
    const WorkdirRule rule{roots_, own_, "/home/alice"};
    const auto checked = check_workdir(path, rule);
    return checked ? Code::kInternal : checked.error().code;
  }
  bool allows(std::string_view path) {
    return check_workdir(path, WorkdirRule{roots_, own_, "/home/alice"}).has_value();
  }

  std::vector<std::string> roots_{"/home", "/srv/projects", "/var"};
  std::vector<std::string> own_{"/var/lib/okcvm", "/mnt/okcvm"};
};

TEST_F(Workdir, LiesBelowAnAllowedRoot) {
  EXPECT_TRUE(allows("/home/alice/project"));
  EXPECT_TRUE(allows("/srv/projects"));
  EXPECT_FALSE(allows("/srv/projects2"));
  EXPECT_FALSE(allows("/opt/x"));
  roots_.clear();
  EXPECT_FALSE(allows("/home/alice/project"));
}

TEST_F(Workdir, IsNeverASensitiveDirectory) {
  roots_.push_back("/");
  for (const char* path :
       {"/", "/etc", "/etc/x", "/proc/1", "/usr/local", "/home", "/home/alice", "/home/alice/.ssh",
        "/home/bob/.ssh/keys", "/home/alice/.config/x", "/run/x", "/tmp", "/var", "/var/log"})
    EXPECT_EQ(check(path), Code::kForbidden) << path;
  EXPECT_TRUE(allows("/tmp/work"));
}

TEST_F(Workdir, NeverHoldsAWholeHome) {
  const std::vector<std::string> roots{"/data"};
  const auto allows = [&](std::string_view path, std::string_view home) {
    return check_workdir(path, WorkdirRule{roots, own_, home}).has_value();
  };
  for (const char* path : {"/data/people/alice", "/data/people", "/data"})
    EXPECT_FALSE(allows(path, "/data/people/alice")) << path;
  for (const char* path : {"/data/people/alice/project", "/data/people/alic", "/data/people/bob"})
    EXPECT_TRUE(allows(path, "/data/people/alice")) << path;
  for (const char* home : {"", "/", "/nonexistent"}) EXPECT_TRUE(allows("/data", home)) << home;
}

TEST_F(Workdir, NeverOverlapsTheDaemonsTrees) {
  EXPECT_FALSE(allows("/var/lib/okcvm/workspaces/a"));
  EXPECT_FALSE(allows("/var/lib"));
  EXPECT_TRUE(allows("/var/www"));
}

TEST(WorkdirPolicyNames, AreTheSeeds) {
  EXPECT_EQ(workdir_policy_named("repo-bound"), WorkdirPolicy::kRepoBound);
  EXPECT_EQ(name_of(WorkdirPolicy::kExisting), "existing");
  EXPECT_FALSE(workdir_policy_named("Managed"));
}

TEST(Home, IsExpandedAtTheFrontOnly) {
  EXPECT_EQ(expand_home("~", "/home/a"), "/home/a");
  EXPECT_EQ(expand_home("~/p", "/home/a"), "/home/a/p");
  for (const char* path : {"~bob/p", "/x/~", "", "p"}) EXPECT_EQ(expand_home(path, "/home/a"), path);
}

TEST(GitUrl, SpellingsOfOneRepositoryAreEqual) {
  for (const char* url : {"https://github.com/a/b", "https://GitHub.com/a/b.git", "git@github.com:a/b.git",
                          "ssh://git@github.com/a/b/", "https://user:secret@github.com/a/b.git"})
    EXPECT_EQ(normal_git_url(url), "github.com/a/b") << url;
  EXPECT_EQ(normal_git_url("/srv/git/x.git"), "/srv/git/x");
  EXPECT_NE(normal_git_url("https://github.com/a/B"), normal_git_url("https://github.com/a/b"));
}

}  // namespace
}  // namespace okcvm
