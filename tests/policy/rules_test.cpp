#include <gtest/gtest.h>

#include <array>
#include <string>

#include "policy/session_id.h"
#include "policy/symlink_rule.h"
#include "policy/zones.h"

namespace okcvm {
namespace {

TEST(SessionId, FollowsItsGrammar) {
  for (const char* text : {"12ab34cd", "A", "a.b_c-d", "0"}) EXPECT_TRUE(SessionId::parse(text)) << text;
  for (const std::string& text : {std::string(), std::string("-a"), std::string(".a"), std::string("a/b"),
                                  std::string("a b"), std::string(65, 'a'), std::string("a\0b", 3)})
    EXPECT_EQ(SessionId::parse(text).error().code, Code::kInvalidRequest) << text;
  EXPECT_EQ(SessionId::from_random(0x12ab).text(), "000012ab");
}

TEST(Zones, RenamesAndLinksBetweenZones) {
  EXPECT_EQ(rename_error(Zone::kOutputs, Zone::kTemp), 0);
  EXPECT_EQ(rename_error(Zone::kOutputs, Zone::kWorkdir), EXDEV);
  EXPECT_EQ(rename_error(Zone::kSkills, Zone::kOutputs), EROFS);
  EXPECT_EQ(rename_error(Zone::kOutputs, Zone::kSkills), EROFS);
  EXPECT_EQ(rename_error(Zone::kWorkdir, Zone::kWorkdir), 0);
  EXPECT_EQ(link_error(Zone::kSkills, Zone::kOutputs), EXDEV);
  EXPECT_EQ(link_error(Zone::kSkills, Zone::kSkills), EROFS);
  EXPECT_EQ(link_error(Zone::kRoot, Zone::kOutputs), EROFS);
  EXPECT_EQ(link_error(Zone::kUploads, Zone::kTemp), 0);
  EXPECT_EQ(link_error(Zone::kOutputs, Zone::kWorkdir), EXDEV);
}

struct LinkCase {
  const char* text;
  std::size_t depth;
  bool contained;
};

TEST(SymlinkRule, JudgesTheTextWhereTheLinkStands) {
  const std::array roots{std::string("/usr")};
  constexpr std::array cases{
      LinkCase{"a", 0, true},
      LinkCase{"..", 0, false},
      LinkCase{"..", 1, true},
      LinkCase{"../../x", 1, false},
      LinkCase{"../../x", 2, true},
      LinkCase{"a/../b", 5, false},
      LinkCase{"./../x", 1, true},
      LinkCase{"..//../x", 2, true},
      LinkCase{"/etc/passwd", 3, false},
      LinkCase{"/mnt/s", 0, true},
      LinkCase{"/mnt/s/outputs", 0, true},
      LinkCase{"/mnt/s/../x", 0, false},
      LinkCase{"/mnt/sx", 0, false},
      LinkCase{"/usr/bin/env", 0, true},
      LinkCase{"/usrx", 0, false},
      LinkCase{"", 1, false},
      LinkCase{"...", 0, true},
      LinkCase{"a/...", 0, true},
  };
  for (const auto& row : cases)
    EXPECT_EQ(link_is_contained(row.text, {row.depth, "/mnt/s", roots}), row.contained) << row.text;
  EXPECT_FALSE(link_is_contained("/mnt/s", {3, "", {}}));
}

}  // namespace
}  // namespace okcvm
