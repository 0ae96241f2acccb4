#include "snapshots/rounds.h"

#include <algorithm>
#include <chrono>

#include "snapshots/replay.h"

namespace okcvm::snapshots {
namespace {

constexpr int kRounds = 4;

/// Whether a path came, went or moved between two cuts. Files that are open for writing are in every set with
/// their content, so that says nothing.
bool names_changed(const ChangeSet& before, const ChangeSet& now) {
  const auto new_from = now.changes.begin() + static_cast<std::ptrdiff_t>(before.changes.size());
  return std::any_of(new_from, now.changes.end(), [](const Change& change) {
    return change.kind != ChangeKind::kContent && change.kind != ChangeKind::kAttributes;
  });
}

/// What a set lists beyond the one before it.
ChangeSet beyond(const ChangeSet& before, const ChangeSet& now) {
  ChangeSet fresh;
  fresh.changes.assign(now.changes.begin() + static_cast<std::ptrdiff_t>(before.changes.size()),
                       now.changes.end());
  return fresh;
}

/// Whether all that happened since the set before is among the changes that this one lists beyond it.
bool continues(const ChangeSet& before, const ChangeSet& now) {
  return (before.rescan || !now.rescan) && now.lost_at == before.lost_at &&
         now.changes.size() >= before.changes.size() &&
         std::equal(before.changes.begin(), before.changes.end(), now.changes.begin());
}

}  // namespace

ChangeSet timed_cut(const Store::ChangeSource& changes) {
  const auto before = std::chrono::system_clock::now().time_since_epoch();
  ChangeSet set = changes.cut();
  set.cut_after_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(before).count();
  return set;
}

Result<Captured> Rounds::capture(Tree& tree, Capture::Trust trust) {
  auto disk = Disk::open(workspace_);
  if (!disk) return fail(disk.error());
  auto found = Capture(tree, *disk ? &**disk : nullptr, batch_, trust, progress_).run();
  // Before the next cut, which tells whether these are still their names, or under the hold.
  if (found && changes_.still_mapped && !found->still_mapped.empty())
    changes_.still_mapped(found->still_mapped);
  return found;
}

Result<Reading> Rounds::read_first(ChangeSet set) {
  auto tree = start_.open_tree();
  if (!tree) return fail(tree.error());
  auto followed = replay(set, start_.moves, **tree);
  if (followed && !*followed) {
    set.rescan = true;
    set.rescan_reason = "too much was renamed";
    tree = start_.open_tree();
    if (!tree) return fail(tree.error());
    followed = replay(set, start_.moves, **tree);
  }
  if (!followed) return fail(followed.error());
  if (!start_.has_base) (*tree)->root().mark(kMarkWhole);
  start_.index->drop();
  auto found = capture(**tree, {start_.index, set.cut_after_ns, set.rescan && start_.has_base, true});
  if (!found) return fail(found.error());
  return Reading{std::move(*tree), std::move(*found), std::move(set)};
}

/// The tree is no longer that of a snapshot, so what the index and the moves say of it does not hold.
Result<void> Rounds::read_further(Reading& reading, ChangeSet next) {
  // None of these moves is followed, so that is never too long.
  if (auto replayed = replay(beyond(reading.set, next), Moves::kMayBeKnown, *reading.tree); !replayed)
    return fail(replayed.error());
  auto found = capture(*reading.tree, {start_.index, next.cut_after_ns, false, false});
  if (!found) return fail(found.error());
  reading.found.add(std::move(*found));
  reading.set = std::move(next);
  return {};
}

Result<Reading> Rounds::read(ChangeSet set) {
  std::shared_ptr<void> held;
  const auto cut_held = [&] {
    if (!held && changes_.hold) held = changes_.hold();
    return timed_cut(changes_);
  };
  auto reading = read_first(std::move(set));
  for (int round = 2; reading && changes_.cut && round <= kRounds; ++round) {
    ChangeSet next = round == kRounds ? cut_held() : timed_cut(changes_);
    if (!continues(reading->set, next)) {
      next.rescan = true;
      reading = read_first(std::move(next));
      continue;
    }
    if (!names_changed(reading->set, next)) break;
    if (auto read = read_further(*reading, std::move(next)); !read) return fail(read.error());
  }
  return reading;
}

}  // namespace okcvm::snapshots
