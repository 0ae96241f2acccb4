#include "policy/rel_path.h"

#include <gtest/gtest.h>

namespace okcvm {
namespace {

TEST(RelPath, AcceptsWhatStaysInside) {
  for (const char* text : {"outputs", "outputs/a b", "outputs/\xff\xfe", "a/.git/b", "...", "a/..b"})
    EXPECT_TRUE(RelPath::parse(text)) << text;
  EXPECT_TRUE(RelPath::parse("")->is_root());
  EXPECT_TRUE(RelPath::parse(".")->is_root());
  EXPECT_EQ(RelPath::parse("outputs/")->text(), "outputs");
}

TEST(RelPath, RefusesWhatLeadsOutWithTheCodeForIt) {
  for (const char* text : {"..", "../x", "a/..", "a/../b", "/etc/passwd", "a/./b", "/"})
    EXPECT_EQ(RelPath::parse(text).error().code, Code::kPathTraversalBlocked) << text;
}

TEST(RelPath, RefusesMalformedPaths) {
  using namespace std::string_view_literals;
  EXPECT_EQ(RelPath::parse("a//b").error().code, Code::kInvalidRequest);
  EXPECT_EQ(RelPath::parse("a\0b"sv).error().code, Code::kInvalidRequest);
  EXPECT_EQ(RelPath::parse(std::string(256, 'n')).error().errno_value, ENAMETOOLONG);
  std::string deep = "a";
  while (deep.size() < 4096) deep += "/a";
  EXPECT_EQ(RelPath::parse(deep).error().errno_value, ENAMETOOLONG);
}

TEST(RelPath, KnowsItsParts) {
  const auto path = *RelPath::parse("outputs/a/b");
  EXPECT_EQ(path.top(), "outputs");
  EXPECT_EQ(path.leaf(), "b");
  EXPECT_EQ(path.depth(), 3u);
  EXPECT_EQ(path.parent().text(), "outputs/a");
  EXPECT_TRUE(path.is_within(*RelPath::parse("outputs/a")));
  EXPECT_TRUE(path.is_within(path));
  EXPECT_FALSE(path.is_within(*RelPath::parse("outputs/a/b/c")));
  EXPECT_FALSE(RelPath::parse("outputs/ab")->is_within(*RelPath::parse("outputs/a")));
}

}  // namespace
}  // namespace okcvm
