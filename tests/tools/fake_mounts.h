#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "policy/thread_annotations.h"
#include "tools/daemon/sessions/sessions.h"

namespace okcvm::test {

/// Mounts that are none: they remember what they were told to show, and call hooks where a test may strike.
/// Thread-safe, except that hooks are set before.
class FakeMounts final {
 public:
  struct Shown {
    std::set<std::string> skills;
    std::string metadata;
  };
  std::optional<Shown> shown(const std::string& id) const EXCLUDES(mutex_);
  void show(const std::string& id, std::optional<Shown> shown) EXCLUDES(mutex_);

  daemon::Backends backends();

  std::function<Result<void>()> at_mount = [] { return Result<void>(); };
  std::function<Result<void>()> at_take_over = [] { return Result<void>(); };
  std::function<void()> at_unmount = [] {};
  std::function<void()> at_statistics = [] {};

 private:
  mutable Mutex mutex_;
  std::map<std::string, Shown> shown_ GUARDED_BY(mutex_);
};

/// Sessions on a real registry and fake mounts, without snapshots; root asks.
class SessionsOnFakes : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;
  /// As a daemon that starts, after one that is killed and left these devices.
  void start(std::map<std::string, FileDescriptor> kept_devices = {});
  /// The same, with the device of this session.
  void start_with_kept(const std::string& id);
  daemon::Session& create(const std::string& id);
  Result<daemon::Sessions::Created> create_agent(const std::string& agent,
                                                 const std::string& parent = "root");
  daemon::Sessions::Cleaned clean_unused_since(std::chrono::seconds ago, std::uint64_t most = 100) {
    return sessions_->clean(root_, ago, false, [most](std::string_view, std::uint64_t done, std::uint64_t) {
      return done < most;
    });
  }

  /// What the next daemon will find.
  std::optional<daemon::SessionRecord> row(const std::string& id);
  void run_sql(const std::string& sql);
  void refuse_changes();
  void accept_changes() { run_sql("DROP TRIGGER refuse"); }

  const daemon::Peer root_{};
  std::filesystem::path top_;
  daemon::EventHub events_;
  FakeMounts mounts_;
  std::unique_ptr<daemon::Sessions> sessions_;
};

}  // namespace okcvm::test
