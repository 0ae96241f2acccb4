#include <gtest/gtest.h>

#include "policy/symlink_rule.h"

/// What the fuzzers of tests/fuzz found, kept from coming back.
namespace okcvm {
namespace {

TEST(FuzzFindings, ALinkTextWithANulByteIsNotContained) {
  using namespace std::string_view_literals;
  const LinkPlace place{1, "/mnt/okcvm-1", {}};
  EXPECT_FALSE(link_is_contained("\0"sv, place));
  EXPECT_FALSE(link_is_contained("../..\0x"sv, place)) << "followed, this is ../..";
  EXPECT_TRUE(link_is_contained("../x", place));
}

}  // namespace
}  // namespace okcvm
