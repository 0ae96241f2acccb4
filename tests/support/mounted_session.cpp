#include "tests/support/mounted_session.h"

#include <sys/stat.h>

#include <sstream>

namespace okcvm::test {

void MountedSession::SetUp() {
  if (const auto reason = why_no_mounts(); !reason.empty()) GTEST_SKIP() << reason;
  Watchdog::instance().expect_progress(Watchdog::usual_limit());
  session_ = std::make_unique<Session>();
}

void MountedSession::TearDown() {
  session_.reset();
  Watchdog::instance().rest();
}

void MountedSession::start_with(const Session::Adjust& adjust) {
  session_.reset();
  session_ = std::make_unique<Session>("12ab34cd", adjust);
}

std::uint64_t MountedSession::count_of(std::string_view operation) {
  for (const auto& one : session().driver().statistics().operations)
    if (one.name == operation) return one.count;
  return 0;
}

std::filesystem::path MountedSession::shared_in_session() {
  const auto directory = outputs() / "shared";
  EXPECT_OK(::mkdir(directory.c_str(), 0777));
  EXPECT_OK(::chmod(directory.c_str(), 0777));
  return directory;
}

void MountedSession::expect_as_native(const Story& story) {
  std::ostringstream in_session, in_plain;
  story(shared_in_session(), in_session);
  story(plain(), in_plain);
  EXPECT_EQ(in_session.str(), in_plain.str());
}

}  // namespace okcvm::test
