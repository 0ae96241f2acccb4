#include "policy/git_config.h"

#include <gtest/gtest.h>

namespace okcvm {
namespace {

TEST(GitConfig, GivesTheAddressOfOrigin) {
  EXPECT_EQ(
      remote_url_in("[core]\n\tbare = false\n"
                    "[remote \"aaa\"]\n\turl = https://example.org/a\n"
                    "[remote \"origin\"]\n\turl = git@example.org:team/r.git\n\tfetch = +refs/*:refs/*\n"
                    "[branch \"main\"]\n\tremote = origin\n"),
      "git@example.org:team/r.git");
}

TEST(GitConfig, GivesTheFirstByNameWithoutOrigin) {
  EXPECT_EQ(remote_url_in("[remote \"b\"]\nurl = two\n[remote \"a\"]\nurl = one\n"), "one");
}

TEST(GitConfig, IsReadAsGitReadsIt) {
  const std::string_view origin = "[remote \"origin\"]";
  for (const std::string_view line :
       {"url=u v", "\r\n\turl = u v\r\n", " URL = u v # remote", "\nurl = \"u v\" ; remote", "url = u \\\nv",
        "# url = x\nurl = u\" \"v  ", "url = x\nurl = u v", "mirror\nurl=u v"})
    EXPECT_EQ(remote_url_in(std::string(origin).append(line)), "u v") << line;
  EXPECT_EQ(remote_url_in("\xef\xbb\xbf[REMOTE.Origin]\nurl = u"), "u");
  EXPECT_EQ(remote_url_in("[remote \"a\\\"]b\"] url = \"a\\tb\\\\#;\" "), "a\tb\\#;");
}

TEST(GitConfig, WithoutARemoteGivesNothing) {
  for (const char* text : {"", "[core]\n", "[remote \"origin\"]\nurl\n", "[remote \"origin\"]\npushurl = u\n",
                           "url = u\n", "[include]\npath = /etc/passwd\n"})
    EXPECT_EQ(remote_url_in(text), std::nullopt) << text;
}

TEST(GitConfig, IsNotReadWhereItIsDamaged) {
  for (const char* text : {"=", "[", "[remote", "[remote \"origin\"", "[remote \"a\nb\"]", "[a]url = \"x",
                           "[a]url = \\x", "[a]url x", "[a \"b\"c]"}) {
    EXPECT_EQ(remote_url_in(text), std::nullopt) << text;
    EXPECT_EQ(remote_url_in(std::string("[remote \"origin\"]\nurl = u\n") + text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace okcvm
