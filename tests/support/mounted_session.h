#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>

#include "tests/support/expect.h"
#include "tests/support/file_io.h"
#include "tests/support/process.h"
#include "tests/support/session.h"
#include "tests/support/watchdog.h"

namespace okcvm::test {

/// A fixture with one mounted session. Skips, saying why, where sessions cannot be mounted; a test that hangs
/// has its mount aborted.
class MountedSession : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  /// Starts again with an unwritten session of another configuration.
  void start_with(const Session::Adjust& adjust);

  Session& session() { return *session_; }
  std::filesystem::path mount() const { return session_->mount(); }
  std::filesystem::path outputs() const { return session_->outputs(); }
  std::filesystem::path uploads() const { return session_->uploads(); }
  std::filesystem::path temp() const { return session_->temp(); }
  std::filesystem::path skills() const { return session_->skills(); }
  std::filesystem::path plain() const { return session_->plain(); }

  /// How many requests of a kind the kernel made, by its name in the protocol (`GETATTR`).
  std::uint64_t count_of(std::string_view operation);

  /// A directory in outputs/ that everybody may write to.
  std::filesystem::path shared_in_session();

  /// Tells a story (what calls answered, what files look like) in a directory of the session and in a plain
  /// one on the same file system. Every difference between the two is a failure.
  using Story = std::function<void(const std::filesystem::path& here, std::ostream& log)>;
  void expect_as_native(const Story& story);

 private:
  std::unique_ptr<Session> session_;
};

}  // namespace okcvm::test
