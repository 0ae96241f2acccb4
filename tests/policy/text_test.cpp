#include <gtest/gtest.h>

#include <limits>

#include "policy/iso_time.h"
#include "policy/percent_encoding.h"
#include "policy/random_bits.h"
#include "policy/utf8.h"

namespace okcvm {
namespace {

TEST(RandomName, Has16HexDigitsThatDiffer) {
  const auto name = random_name();
  EXPECT_EQ(name.size(), 16u);
  EXPECT_EQ(name.find_first_not_of("0123456789abcdef"), name.npos) << name;
  EXPECT_NE(name, random_name());
  EXPECT_NE(random_bits() >> 32, random_bits() >> 32);
}

TEST(Utf8, IsWhatUnicodeSaysItIs) {
  const auto character_of = [](std::string_view bytes) {
    const auto character = utf8_character(bytes);
    return character ? std::pair(character->code_point, character->size) : std::pair(U'\0', std::size_t{0});
  };
  EXPECT_EQ(character_of("ab"), std::pair(U'a', std::size_t{1}));
  EXPECT_EQ(character_of("\xc3\xafx"), std::pair(U'\u00ef', std::size_t{2}));
  EXPECT_EQ(character_of("\xe2\x82\xac"), std::pair(U'\u20ac', std::size_t{3}));
  EXPECT_EQ(character_of("\xf4\x8f\xbf\xbf\xff"), std::pair(U'\U0010ffff', std::size_t{4}));
  for (const std::string_view none : {"", "\x80", "\xff", "\xc3", "\xe2\x82", "\xf0\x9f\x98", "\xe2\x82x",
                                      "\xc0\xaf", "\xe0\x80\xaf", "\xf0\x80\x80\xaf",  // overlong
                                      "\xed\xa0\x80", "\xed\xbf\xbf",                  // surrogates
                                      "\xf4\x90\x80\x80", "\xf5\x80\x80\x80"})         // past the last
    EXPECT_EQ(character_of(none).second, 0u) << testing::PrintToString(none);
  EXPECT_TRUE(is_utf8(""));
  EXPECT_TRUE(is_utf8(std::string_view("na\xc3\xafve\0 \xef\xbf\xbf", 11)));
  EXPECT_FALSE(is_utf8("na\xc3\xafve \xff"));
  EXPECT_FALSE(is_utf8("cut \xc3"));
}

TEST(PercentEncoding, CarriesAnyByte) {
  EXPECT_EQ(percent_encoded_path("outputs/a b?#%.txt"), "outputs/a%20b%3F%23%25.txt");
  EXPECT_EQ(percent_encoded("a/b"), "a%2Fb");
  EXPECT_EQ(percent_encoded_path("\xff\n"), "%FF%0A");
}

TEST(IsoTime, IsADateWhateverTheTime) {
  constexpr auto kMost = std::numeric_limits<time_t>::max(), kLeast = std::numeric_limits<time_t>::min();
  EXPECT_EQ(time_text({0, 0}), "1970-01-01T00:00:00.000Z");
  EXPECT_EQ(time_text({253'402'300'799, 999'000'000}), "9999-12-31T23:59:59.999Z");
  EXPECT_EQ(time_text({253'402'300'800, 0}), "9999-12-31T23:59:59.000Z");
  EXPECT_EQ(time_text({kMost, 0}), "9999-12-31T23:59:59.000Z");
  EXPECT_EQ(time_text({-62'167'219'200, 0}), "0000-01-01T00:00:00.000Z");
  EXPECT_EQ(time_text({kLeast, 0}), "0000-01-01T00:00:00.000Z");
}

TEST(IsoTime, IsReadOnlyIfItIsUtc) {
  const auto time_of = [](std::string_view text) {
    const auto time = parse_time(text);
    return time ? std::pair(time->tv_sec, time->tv_nsec) : std::pair(time_t{-1}, -1L);
  };
  EXPECT_EQ(time_of("1970-01-02T00:00:01.500Z"), std::pair(time_t{86'401}, 500'000'000L));
  EXPECT_EQ(time_of("2026-11-21T22:05:05Z"), std::pair(time_t{1'795'298'705}, 0L));
  EXPECT_EQ(time_of("2026-11-21T22:05:05.1234567891+00:00"), std::pair(time_t{1'795'298'705}, 123'456'789L));
  for (const char* text :
       {"yesterday", "2026-11-21T22:05:05", "2026-11-21T22:05:05+02:00", "2026-11-21T22:05:05Z "})
    EXPECT_FALSE(parse_time(text)) << text;
}

}  // namespace
}  // namespace okcvm
