#include "tools/cli/text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tools/cli/base64.h"
#include "tools/cli/event_stream.h"

namespace okcvm::cli {
namespace {

TEST(Text, NamesCannotWriteToATerminal) {
  EXPECT_EQ(visible("plain name.txt"), "plain name.txt");
  EXPECT_EQ(visible("\x1b[2Jgone"), "\\x1b[2Jgone");
  EXPECT_EQ(visible("a\nb\tc\rd"), "a\\x0ab\\x09c\\x0dd");
  EXPECT_EQ(visible("a\nb\tc", true), "a\nb\tc");
  EXPECT_EQ(visible("\x7f"), "\\x7f");
  EXPECT_EQ(visible("\xc2\x9b"), "\\xc2\\x9b") << "CSI as a C1 control";
  EXPECT_EQ(visible("gpj.\u202Eexe"), "gpj.\\xe2\\x80\\xaeexe") << "right-to-left override";
  EXPECT_EQ(visible("a\u200Fb\u061Cc"), "a\\xe2\\x80\\x8fb\\xd8\\x9cc") << "right-to-left marks";
}

TEST(Text, JsonCannotWriteToATerminalAndSaysTheSame) {
  EXPECT_EQ(visible_json("{\n  \"na\xc3\xafve \xf0\x9f\x98\x80\": 1\n}\n"),
            "{\n  \"na\xc3\xafve \xf0\x9f\x98\x80\": 1\n}\n");
  const std::string name =
      "\x7f \xc2\x9b"
      "2J \u202E \u2069 \x1b";
  const auto shown = visible_json(nlohmann::json(name).dump());
  EXPECT_EQ(shown, R"("\u007f \u009b2J \u202e \u2069 \u001b")");
  EXPECT_EQ(nlohmann::json::parse(shown), name);
}

TEST(Text, NamesThatAreNotUtf8AreShownInHexadecimal) {
  EXPECT_EQ(visible("na\xc3\xafve \xe2\x82\xac \xf0\x9f\x98\x80"),
            "na\xc3\xafve \xe2\x82\xac \xf0\x9f\x98\x80");
  EXPECT_EQ(visible("\xff\xfe"), "\\xff\\xfe");
  EXPECT_EQ(visible("\xc3"), "\\xc3") << "cut short";
  EXPECT_EQ(visible("\xc0\xaf"), "\\xc0\\xaf") << "overlong";
  EXPECT_EQ(visible("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "surrogate";
  EXPECT_EQ(visible("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80") << "past the last code point";
}

TEST(Text, SizesAreRoundedForPeople) {
  EXPECT_EQ(human_size(0), "0 B");
  EXPECT_EQ(human_size(1023), "1023 B");
  EXPECT_EQ(human_size(1024), "1.0 KiB");
  EXPECT_EQ(human_size(1536), "1.5 KiB");
  EXPECT_EQ(human_size(1048575), "1.0 MiB");
  EXPECT_EQ(human_size(UINT64_MAX), "16.0 EiB");
}

TEST(Text, TimesAreShownAsAges) {
  EXPECT_EQ(age("1970-01-01T00:00:00Z", 1), "now");
  EXPECT_EQ(age("1970-01-01T00:00:00Z", 119), "119 s ago");
  EXPECT_EQ(age("1970-01-01T00:00:00Z", 7200), "2 h ago");
  EXPECT_EQ(age("1970-01-01T00:00:00Z", 864000), "10 days ago");
  EXPECT_EQ(age("not a time", 0), "not a time");
}

TEST(Text, TableColumnsAreAsWideAsTheirWidestCell) {
  Table table({"NAME", ">SIZE"});
  table.row({"a", "1"});
  table.row({"h\xc3\xa9llo \x1b[0m", "1000"});
  EXPECT_EQ(table.text(),
            "NAME           SIZE\n"
            "a                 1\n"
            "h\xc3\xa9llo \\x1b[0m  1000\n");
}

TEST(Text, TableColumnsAreThoseOfATerminal) {
  Table table({"NAME", "NOTE"});
  table.row({"日本語", "wide"});
  table.row({"e\u0301te\u0301", "combined"});
  table.row({"abcdefg", "plain"});
  EXPECT_EQ(table.text(), "NAME     NOTE\n日本語   wide\ne\u0301te\u0301      combined\nabcdefg  plain\n");
}

TEST(Text, Base64IsThatOfTheStandard) {
  EXPECT_EQ(to_base64(""), "");
  EXPECT_EQ(to_base64("f"), "Zg==");
  EXPECT_EQ(to_base64("fo"), "Zm8=");
  EXPECT_EQ(to_base64("foo"), "Zm9v");
  EXPECT_EQ(to_base64("foob"), "Zm9vYg==");
  EXPECT_EQ(to_base64("fooba"), "Zm9vYmE=");
  EXPECT_EQ(to_base64("foobar"), "Zm9vYmFy");
  EXPECT_EQ(to_base64(std::string("\0\xff\xfe", 3)), "AP/+");
}

TEST(EventStream, DataIsPutTogetherHoweverItIsCut) {
  const std::string stream =
      ": keep-alive\n\nid: 1\nevent: session\ndata: {\"a\":\ndata: 1}\n\ndata:x\r\n\r\nevent: none\n\n";
  for (std::size_t size = 1; size <= stream.size(); ++size) {
    std::vector<std::string> events;
    EventStream reader([&](const std::string& data) -> Outcome<void> {
      events.push_back(data);
      return {};
    });
    for (std::size_t at = 0; at < stream.size(); at += size)
      ASSERT_TRUE(reader.take(stream.substr(at, size)));
    EXPECT_EQ(events, (std::vector<std::string>{"{\"a\":\n1}", "x"})) << size;
  }
}

}  // namespace
}  // namespace okcvm::cli
