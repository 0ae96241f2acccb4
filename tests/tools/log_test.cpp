#include "tools/daemon/host/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>

#include "policy/file_descriptor.h"

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

TEST_F(LogTest, WaitsForNobodyWhoDoesNotReadIt) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const FileDescriptor reader(ends[0]), writer(ends[1]), former(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0));
  ASSERT_GT(::fcntl(writer.get(), F_SETPIPE_SZ, 16'384), 0);
  ASSERT_GE(::dup2(writer.get(), STDERR_FILENO), 0);
  set_up_log("info", "text");
  const auto read_all = [&] {
    std::string text(65'536, '\0');
    const auto size = ::read(reader.get(), text.data(), text.size());
    return text.substr(0, static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  };
  const std::string filling(1000, '.');
  for (int line = 0; line < 40; ++line) log_info("{} {}", line, filling);
  const auto first = read_all();
  log_info("read again");
  const auto then = read_all();
  ::dup2(former.get(), STDERR_FILENO);
  EXPECT_EQ(first.find(" 39 "), first.npos);
  EXPECT_NE(then.find("lines were left out"), then.npos) << then;
  EXPECT_TRUE(then.ends_with("info read again\n")) << then;
}

}  // namespace
}  // namespace okcvm::daemon
