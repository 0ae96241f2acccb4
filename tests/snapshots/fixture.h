#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "policy/fault.h"
#include "snapshots/store.h"
#include "tests/support/expect.h"
#include "tests/support/file_io.h"
#include "tests/support/manifest.h"
#include "tests/support/process.h"
#include "tests/support/scratch.h"

namespace okcvm::test {

/// The driver's record of changes, kept by hand.
class ChangeRecord {
 public:
  void note(ChangeKind kind, const std::string& path, const std::string& target = {});
  /// From now on nothing is known.
  void lose_track() { rescan_ = true; }
  void open_for_writing(const std::string& path);
  void nothing_is_open() { open_.clear(); }
  snapshots::Store::ChangeSource source();

  int cuts = 0;
  int retired = 0;
  std::vector<RelPath> still_mapped;  // as last told

 private:
  std::vector<Change> changes_;
  std::vector<RelPath> open_;
  std::uint64_t start_ = 0;
  bool rescan_ = false;
  std::string counts_from_;
};

RelPath rel(std::string_view path);

/// One fault, as long as it is there.
class Fault final {
 public:
  explicit Fault(const std::string& asked) {
    ::setenv("OKCVM_FAULT", asked.c_str(), 1);
    fault_reset();
  }
  ~Fault() {
    ::unsetenv("OKCVM_FAULT");
    fault_reset();
  }
  Fault(const Fault&) = delete;
  Fault& operator=(const Fault&) = delete;
};

/// What `work` answers, done under one.
template <typename Work>
auto under_fault(const std::string& asked, const Work& work) {
  const Fault fault(asked);
  return work();
}

/// A session's backing folder and its store, without a mount: tests change the folder and say what they did.
class SnapshotTest : public ::testing::Test {
 protected:
  SnapshotTest();

  std::filesystem::path workspace() const { return scratch_ / "workspaces/s1"; }
  std::filesystem::path repository() const { return scratch_ / "snapshots/s1.git"; }
  std::filesystem::path in(std::string_view path) const { return workspace() / path; }
  snapshots::StoreConfig config() const {
    snapshots::StoreConfig config{repository(), workspace()};
    config.created_at = {1'000'000'000, 0};
    if (writes_ahead_) config.much = 0;
    return config;
  }

  /// The store, opened when it is first asked for.
  snapshots::Store& store();
  /// As after a restart of the daemon.
  void reopen() { store_.reset(); }

  void make_zones();
  /// Runs shell commands in the workspace; the whole workspace counts as changed.
  void shell(const std::string& script);
  /// Renames, and says so.
  void move(const std::string& from, const std::string& to) {
    std::filesystem::rename(in(from), in(to));
    record_.note(ChangeKind::kMoved, from, to);
  }
  /// A snapshot that must succeed.
  snapshots::Snapshot snapshot(const std::string& label = "");
  snapshots::RestoreResult restore(const snapshots::Snapshot& to, const std::vector<std::string>& paths = {});
  snapshots::Store::RestoreHooks hooks();
  /// Restores with ENOSPC at the first, second, ... time that each of these points is passed, until there is
  /// no such time more. When it was done `look` is called, and it is undone. Each time all is as it was
  /// before, of which `look_before` sees more than the manifest tells.
  void restore_failing_at(std::initializer_list<const char*> points, const snapshots::Snapshot& to,
                          const std::function<void()>& look, const std::function<void()>& look_before);
  /// Goes from what one script leaves to what another does, back, forward by undo, back by undo, and forward,
  /// and compares everything each time.
  void there_and_back(const std::string& first, const std::string& second);

  Manifest manifest() const { return manifest_of(workspace()); }
  /// What is in the workspace is what the snapshot holds, in every respect.
  void expect_exact(const snapshots::Snapshot& taken);
  void expect_same(const Manifest& expected, const Manifest& actual);
  /// `git fsck --strict` has nothing to say.
  void expect_sound_repository();
  std::string git(const std::string& arguments);

  /// Restores write all that comes in before programs would have to wait. To be set before anything else.
  bool writes_ahead_ = false;
  ScratchDirectory scratch_{"snapshots"};
  ChangeRecord record_;
  std::vector<RelPath> invalidated_;

 private:
  std::unique_ptr<snapshots::Store> store_;
  int forks_ = 0;
};

}  // namespace okcvm::test
