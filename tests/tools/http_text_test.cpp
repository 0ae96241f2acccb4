#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "policy/percent_encoding.h"
#include "tools/daemon/http/uri.h"
#include "tools/daemon/routes/fields.h"

namespace okcvm::daemon {
namespace {

std::string refusal_of(Fields& fields) {
  const auto ended = fields.end();
  return ended ? "" : ended.error().message;
}

TEST(Uri, DecodesAnyBytesButNul) {
  EXPECT_EQ(*percent_decoded("a%2Fb%ff+c"), "a/b\xff+c");
  for (const char* text : {"%", "%1", "%zz", "a%00b"}) EXPECT_FALSE(percent_decoded(text)) << text;
  const std::string bytes = "\x01 \xff%?#/x";
  EXPECT_EQ(*percent_decoded(percent_encoded(bytes)), bytes);
}

TEST(Uri, ReadsQueries) {
  EXPECT_THAT(*parse_query("a=1&b=&c&d=x%26y&e=my+report%2B2"),
              ::testing::ElementsAre(std::pair("a", "1"), std::pair("b", ""), std::pair("c", ""),
                                     std::pair("d", "x&y"), std::pair("e", "my report+2")));
  EXPECT_FALSE(parse_query("a=1&a=2"));
}

TEST(Range, IsHeldAgainstTheSize) {
  const auto range = [](const char* header) { return **parse_range(header, 100); };
  EXPECT_EQ(range("bytes=0-0").size, 1u);
  EXPECT_EQ(range("bytes=10-").size, 90u);
  EXPECT_EQ(range("bytes=10-1000").size, 90u);
  EXPECT_EQ(range("bytes=10-99999999999999999999").size, 90u);
  EXPECT_EQ(range("bytes=-10").offset, 90u);
  EXPECT_EQ(range("bytes=-1000").size, 100u);
  for (const char* header :
       {"bytes=100-", "bytes=-0", "bytes=18446744073709551615-", "bytes=99999999999999999999-"})
    EXPECT_FALSE(parse_range(header, 100));
  for (const char* header : {"bytes=5-1", "lines=1-2", "bytes=0-1,3-4", "bytes=a-b", "bytes=-"})
    EXPECT_FALSE(*parse_range(header, 100)) << header;
}

TEST(Fields, ReadWhatIsThere) {
  Fields fields(R"({"t":"x","f":true,"n":5,"m":{"a":"b"},"l":["p","q"],"o":{"uid":3},"z":null})");
  EXPECT_EQ(fields.text("t"), "x");
  EXPECT_TRUE(fields.flag("f"));
  EXPECT_EQ(fields.integer("n", 0, 9), 5);
  EXPECT_EQ(fields.texts_by_name("m")->at("a"), "b");
  EXPECT_THAT(*fields.texts("l"), ::testing::ElementsAre("p", "q"));
  auto inner = fields.object("o");
  EXPECT_EQ(inner->integer("uid", 0, 9), 3);
  fields.adopt(*inner);
  EXPECT_EQ(fields.text("z"), std::nullopt);
  EXPECT_EQ(refusal_of(fields), "");
}

TEST(Fields, NameWhatIsWrong) {
  const auto text = [](const char* body) {
    Fields fields(body);
    static_cast<void>(fields.text("t"));
    static_cast<void>(fields.integer("n", 0, 9));
    static_cast<void>(fields.flag("f"));
    return refusal_of(fields);
  };
  EXPECT_THAT(text(R"({"t":1})"), ::testing::HasSubstr("t: "));
  EXPECT_THAT(text(R"({"n":"1"})"), ::testing::HasSubstr("n: "));
  for (const char* body :
       {R"({"n":10})", R"({"n":-1})", R"({"n":1.5})", R"({"n":18446744073709551615})", R"({"n":1e2})"})
    EXPECT_THAT(text(body), ::testing::HasSubstr("n: ")) << body;
  EXPECT_THAT(text(R"({"f":"yes"})"), ::testing::HasSubstr("f: "));
  EXPECT_THAT(text(R"({"other":1})"), ::testing::HasSubstr("other: there is no such field"));
  EXPECT_THAT(text(R"({"t":"a","t":"b"})"), ::testing::HasSubstr("twice"));
  for (const char* body : {"[]", "1", "{", "{}x", "\"\xff\"", "{\"t\":\"\xc3\x28\"}", "{\"n\":1e999}", "nul"})
    EXPECT_NE(text(body), "") << body;
  EXPECT_EQ(text(""), "");
  EXPECT_EQ(text(" \n"), "");
}

TEST(Fields, RefuseNumbersThatWouldBeRounded) {
  const auto refusal = [](const std::string& value) {
    Fields fields("{\"data\":" + value + "}");
    static_cast<void>(fields.required_value("data"));
    return refusal_of(fields);
  };
  for (const char* value : {"18446744073709551615", "-9223372036854775808", "[0,-0,1]", "1e30", "-1.5E+300",
                            "12345678901234567890.5", R"("123456789012345678901234567890")",
                            R"(["a\"99999999999999999999999","\\",7])", R"({"99999999999999999999999":1})"})
    EXPECT_EQ(refusal(value), "") << value;
  for (const char* value :
       {"18446744073709551616", "-9223372036854775809", R"(["\\",99999999999999999999999])",
        R"({"a\"":{"b":[1,123456789012345678901234567890]}})"})
    EXPECT_THAT(refusal(value), ::testing::HasSubstr("64 bits")) << value;
}

/// What is refused of some JSON before anybody asks for its fields.
std::string refusal_of(const std::string& body) {
  Fields fields(body);
  static_cast<void>(fields.has("data") ? fields.required_value("data") : nlohmann::json());
  return refusal_of(fields);
}

std::string data_of(std::size_t count, const std::string& value) {
  std::string body = "{\"data\":[" + value;
  for (std::size_t i = 1; i < count; ++i) body += "," + value;
  return body + "]}";
}

TEST(Fields, RefuseDeepNesting) {
  const auto nested = [](std::size_t depth) {  // in the object
    return "{\"data\":" + std::string(depth, '[') + std::string(depth, ']') + "}";
  };
  EXPECT_EQ(refusal_of(nested(63)), "");
  for (const std::size_t depth : {64, 100'000})
    EXPECT_EQ(refusal_of(nested(depth)), "the body cannot be used: it is nested too deeply") << depth;
}

TEST(Fields, RefuseMoreValuesThanAreWorthTheirMemory) {
  Fields many(data_of(150'000, "{}"));
  EXPECT_EQ(many.required_value("data").size(), 150'000u);
  EXPECT_EQ(refusal_of(many), "");
  for (const char* value : {"{}", "[]", "0", "\"\"", "true", "null", "1.5"})
    EXPECT_THAT(refusal_of(data_of(200'001, value)), ::testing::HasSubstr("more than 200000 values"))
        << value;
  EXPECT_EQ(refusal_of(data_of(199'998, "{}")), "") << "with the list and the object around it";
  EXPECT_THAT(refusal_of(data_of(199'999, "{}")), ::testing::HasSubstr("values"));
}

TEST(Fields, RefuseWhatIsNotPlainJson) {
  const std::string invalid = "the body cannot be used: it is not valid JSON in UTF-8";
  for (const std::string& body :
       {std::string("{}\0{", 4), std::string("{\"data\":\"\0\"}", 12), std::string(R"({"data":"\ud800"})"),
        std::string(R"({"data":"\udc00\ud800"})"), std::string(R"({"\udfff":1})"),
        std::string("{\"data\":\"\xed\xa0\x80\"}"), std::string("{} {}"), std::string(R"({"data":1e999})"),
        std::string(R"({"data":[1,]})"), std::string(R"({"data":01})")})
    EXPECT_EQ(refusal_of(body), invalid) << body;
  EXPECT_EQ(refusal_of(R"({"data":"\ud83d\ude00\u0000"})"), "");
  EXPECT_EQ(refusal_of(R"({"data":[{"a":1},{"a":{"b":1,"c":{"a":1}}}]})"), "") << "of different objects";
  for (const char* body : {R"({"data":1,"data":1})", R"({"x":[{"data":1,"b":{},"d\u0061ta":2}]})"})
    EXPECT_EQ(refusal_of(body), "the body cannot be used: it names \"data\" twice") << body;
}

TEST(Mode, IsOctal) {
  EXPECT_EQ(parse_mode("0750"), 0750u);
  EXPECT_EQ(parse_mode("7"), 7u);
  for (const char* text : {"", "8", "-1", "1000", "0o7", "rwx"}) EXPECT_FALSE(parse_mode(text)) << text;
}

}  // namespace
}  // namespace okcvm::daemon
