#pragma once

#include <string>
#include <vector>

#include "policy/error.h"
#include "snapshots/disk.h"
#include "snapshots/renames.h"
#include "snapshots/staging.h"

namespace okcvm::snapshots {

/// `no_space` where less than the bytes of the files that come in are free. Those with holes may need less
/// than their size and are not counted. `ahead`: bytes that are written already.
Result<void> check_space(const Disk& disk, const Work& work, Tree& after, std::uint64_t ahead);

/// Carries a plan out on the workspace in two halves: prepare() does all that can fail for want of space or
/// for damage, beside the workspace; apply() then only renames and sets attributes, and can take every step
/// back. What is replaced or removed waits in the staging folder until the whole is done. Not thread-safe.
class Swap final {
 public:
  /// `before` is what the disk holds once the names of `work` are given, `after` what it shall hold. All
  /// outlive this.
  Swap(const Disk& disk, Staging& staging, Tree& before, Tree& after, const Work& work,
       const std::vector<RelPath>& scope)
      : disk_(disk), staging_(staging), before_(before), after_(after), work_(work), scope_(scope) {}

  /// Builds what comes in. Nothing of the workspace is touched. `no_space` up front where that can be told.
  Result<void> prepare();
  /// Does it. If a step fails, those before it are taken back, and the workspace is as it was.
  Result<void> apply();
  /// After apply(): the workspace becomes as it was.
  Result<void> undo();
  /// False when a step could not be taken back: the journal has to decide.
  bool is_whole() const { return is_whole_; }

 private:
  enum class Move : std::uint8_t { kExchange, kPlace, kRemove, kRename };
  struct Step {
    Move move;
    std::string path;
    std::string staged;
    std::string from = {};  // of kRename
    bool done = false;
    bool exchanged = false;                                    // in one step, not in two
    std::vector<std::pair<std::string, timespec>> times = {};  // of the directories that it changes, before
  };
  struct Repaint {
    std::string path;
    const Node* from;  // null: of something that snapshots leave out
    const Node* to;
  };

  Result<void> prepare_names();
  void plan_times();
  Result<void> move(Step& step);
  Result<void> take_back(const Step& step) const;
  Result<void> set_times_back(const Step& step) const;
  Result<void> repaint(const std::string& path, const Node& node) const;
  Result<void> roll_back(Error reason);

  const Disk& disk_;
  Staging& staging_;
  Tree& before_;
  Tree& after_;
  const Work& work_;
  const std::vector<RelPath>& scope_;
  std::vector<Step> names_;  // first
  std::vector<Step> steps_;
  std::vector<Repaint> repaints_;
  bool is_whole_ = true;
};

}  // namespace okcvm::snapshots
