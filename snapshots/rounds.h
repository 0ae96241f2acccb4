#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include "policy/change_set.h"
#include "snapshots/capture.h"
#include "snapshots/replay.h"
#include "snapshots/store.h"
#include "snapshots/tree.h"

namespace okcvm::snapshots {

/// The workspace as it was at one moment, as far as its names go.
struct Reading {
  std::unique_ptr<Tree> tree;
  Captured found;
  ChangeSet set;  // all of it is in the tree: this is what may be retired
};

/// A cut that says after what time it was made.
ChangeSet timed_cut(const Store::ChangeSource& changes);

/// Reads what a change set names, cuts again, and reads what came meanwhile, until the names stood still from
/// one cut to the next: a file that is renamed while it is looked for could be missing under both names. If
/// they never stand still the last round is short, and the session's operations wait for it. One use; not
/// thread-safe.
class Rounds final {
 public:
  /// A tree of the last snapshot, to be brought in line with what is there.
  using OpenTree = std::function<Result<std::unique_ptr<Tree>>()>;
  struct Start {
    OpenTree open_tree;
    bool has_base = false;  // else nothing is known, and everything is read
    Moves moves = Moves::kAreNew;
    StatIndex* index = nullptr;
  };
  /// `workspace` may not exist, and may come to be meanwhile. References are borrowed.
  Rounds(Start start, const Store::ChangeSource& changes, const std::filesystem::path& workspace,
         Batch& batch, const Progress& progress)
      : start_(std::move(start)),
        changes_(changes),
        workspace_(workspace),
        batch_(batch),
        progress_(progress) {}

  Result<Reading> read(ChangeSet set);

 private:
  Result<Reading> read_first(ChangeSet set);
  Result<Captured> capture(Tree& tree, Capture::Trust trust);
  Result<void> read_further(Reading& reading, ChangeSet next);

  Start start_;
  const Store::ChangeSource& changes_;
  const std::filesystem::path& workspace_;
  Batch& batch_;
  const Progress& progress_;
};

}  // namespace okcvm::snapshots
