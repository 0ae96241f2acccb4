#include "tools/daemon/host/log.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace okcvm::daemon {
namespace {

class LogTest : public ::testing::Test {
 protected:
  void TearDown() override { set_up_log("error", "text"); }

  static std::string logged(const char* format, const RequestLine& line) {
    ::testing::internal::CaptureStderr();
    set_up_log("info", format);
    log_request(line);
    return ::testing::internal::GetCapturedStderr();
  }
};

TEST_F(LogTest, IsLinesOfTextThatNamesCannotForge) {
  const std::string bytes = "caf\xc3\xa9 \xe2\x82\xac|\n|\x1b[2J|\x7f|\xc2\x9b|\xff|\xe2\x82|\xc3";
  const auto line = logged("text", {"1", "s1", "GET", bytes, 200, 0, 0.5});
  EXPECT_TRUE(line.ends_with("GET caf\xc3\xa9 \xe2\x82\xac|?|?[2J|?|??|?|??|? 200 0.5ms\n")) << line;
}

TEST_F(LogTest, IsJsonWhateverBytesAreInIt) {
  const std::string bytes = "\xff\"\n\x1b\xc3";
  const auto line = nlohmann::json::parse(logged("json", {bytes, bytes, bytes, bytes, 400, 0, 0.5}));
  EXPECT_EQ(line["session"], "\ufffd\"\n\x1b\ufffd");
  EXPECT_EQ(line["status"], 400);
}

}  // namespace
}  // namespace okcvm::daemon
