#include "snapshots/swap.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <set>

#include "policy/fault.h"
#include "snapshots/path_text.h"

namespace okcvm::snapshots {
namespace {

constexpr std::string_view kWhat = "the restore cannot change an entry";

int rename_between(int from, const std::string& name, int to, const std::string& new_name, unsigned flags) {
  fault_point("restore.rename");
  if (const int injected = fault_error("restore.rename")) return injected;
  return ::renameat2(from, name.c_str(), to, new_name.c_str(), flags) == 0 ? 0 : errno;
}

}  // namespace

Result<void> check_space(const Disk& disk, const Work& work, Tree& after, std::uint64_t ahead) {
  std::uint64_t needed = 0;
  const auto count = [&](const std::string& /*path*/, const Node& node) -> Result<void> {
    if (!node.sparse) needed += node.size;
    return {};
  };
  if (auto counted = for_each_incoming(work, after, count); !counted) return counted;
  struct statvfs space {};
  if (::fstatvfs(disk.root(), &space) != 0 || space.f_blocks == 0) return {};
  const std::uint64_t free = static_cast<std::uint64_t>(space.f_bfree) * space.f_frsize;
  if (needed <= free + ahead) return {};
  return fail(Code::kNoSpace, "the restore needs " + std::to_string(needed) + " bytes and " +
                                  std::to_string(free + ahead) + " are free; nothing was changed");
}

Result<void> Swap::prepare_names() {
  for (const auto& [from, entry, round] : work_.names) {
    if (!from.empty()) {
      names_.push_back({Move::kRename, entry.path, {}, from});
      continue;
    }
    const std::string staged = "made" + std::to_string(names_.size());
    const bool in_the_way = entry.before || before_.left_out().find(entry.path);
    if (auto built = staging_.build(after_, *entry.after, entry.path, staged, Extent::kAlone); !built)
      return built;
    names_.push_back({in_the_way ? Move::kExchange : Move::kPlace, entry.path, staged});
  }
  return {};
}

Result<void> Swap::prepare() {
  if (auto enough = check_space(disk_, work_, after_, staging_.ahead()); !enough) return enough;
  for (const auto& [group, path] : work_.link_sources) staging_.use_for_group(group, disk_, path);
  if (auto ready = prepare_names(); !ready) return ready;
  for (const auto& delta : work_.rest) {
    if (!delta.top) continue;
    const std::string staged = std::to_string(steps_.size());
    if (delta.keeps_entry()) {
      if (!(delta.before->attributes == delta.after->attributes))
        repaints_.push_back({delta.path, delta.before, delta.after});
      continue;
    }
    if (!delta.after) {
      steps_.push_back({Move::kRemove, delta.path, staged});
      continue;
    }
    const bool in_the_way = delta.before || before_.left_out().find(delta.path);
    if (auto built = staging_.build(after_, *delta.after, delta.path, staged, delta.extent); !built)
      return built;
    steps_.push_back({in_the_way ? Move::kExchange : Move::kPlace, delta.path, staged});
    // A directory that changes places with something gets another time from xfs.
    if (in_the_way && (delta.after->is_directory() || (delta.before && delta.before->is_directory())))
      repaints_.push_back({delta.path, delta.before, delta.after});
  }
  // What goes makes room for what comes.
  std::stable_partition(steps_.begin(), steps_.end(),
                        [](const Step& step) { return step.move == Move::kRemove; });
  plan_times();
  return {};
}

/// Entries that come and go change the time of the directory they are in: it gets the one that it shall have,
/// or, outside of what is restored, the one that it had.
void Swap::plan_times() {
  std::set<std::string> parents;
  for (const auto& step : steps_) parents.insert(parent_of(step.path));
  const PathChanges changes(work_.names);
  for (const auto& [from, entry, round] : work_.names) {
    parents.insert(parent_of(entry.path));
    if (!from.empty()) parents.insert(changes.after(round, parent_of(from)));
  }
  for (const auto& repaint : repaints_) parents.erase(repaint.path);
  for (const auto& parent : parents) {
    const auto path = RelPath::parse(parent);
    if (!path || path->is_root()) continue;
    const bool wanted = is_in_scope(scope_, parent);
    Tree& tree = wanted ? after_ : before_;
    auto there = before_.find(*path);
    auto node = tree.find(*path);
    if (!there || !*there || !node || !*node) continue;
    if (before_.load(**there) && tree.load(**node)) repaints_.push_back({parent, *there, *node});
  }
  // From the leaves up, and links' and files' own before those of directories.
  std::sort(repaints_.begin(), repaints_.end(),
            [](const Repaint& a, const Repaint& b) { return a.path > b.path; });
}

Result<void> Swap::move(Step& step) {
  auto parent = disk_.open_directory(parent_of(step.path));
  if (!parent) return fail(parent.error());
  auto source = step.move == Move::kRename ? disk_.open_directory(parent_of(step.from)) : FileDescriptor();
  if (!source) return fail(source.error());
  for (const auto& [directory, path] : {std::pair(&*parent, &step.path), std::pair(&*source, &step.from)}) {
    struct stat status {};
    if (!*directory) continue;
    if (::fstat(directory->get(), &status) != 0) return fail_errno(errno, kWhat, *path);
    step.times.emplace_back(parent_of(*path), status.st_mtim);
  }
  const int folder = staging_.folder();
  const std::string name = leaf_of(step.path);
  int error = 0;
  switch (step.move) {
    case Move::kRemove:
      error = rename_between(parent->get(), name, folder, step.staged, RENAME_NOREPLACE);
      break;
    case Move::kPlace:
      error = rename_between(folder, step.staged, parent->get(), name, RENAME_NOREPLACE);
      break;
    case Move::kExchange:
      error = rename_between(folder, step.staged, parent->get(), name, RENAME_EXCHANGE);
      step.exchanged = error == 0;
      if (error != EINVAL && error != ENOSYS) break;
      // A file system without it: out of the way first. Nobody looks meanwhile.
      error = rename_between(parent->get(), name, folder, step.staged + ".old", 0);
      if (error) break;
      error = rename_between(folder, step.staged, parent->get(), name, 0);
      if (error) rename_between(folder, step.staged + ".old", parent->get(), name, 0);
      break;
    case Move::kRename:
      error = rename_between(source->get(), leaf_of(step.from), parent->get(), name, RENAME_NOREPLACE);
      break;
  }
  if (error) return fail_errno(error, kWhat, step.path);
  step.done = true;
  return {};
}

Result<void> Swap::take_back(const Step& step) const {
  auto parent = disk_.open_directory(parent_of(step.path));
  if (!parent) return fail(parent.error());
  const int folder = staging_.folder();
  const std::string name = leaf_of(step.path);
  int error = 0;
  if (step.exchanged) {
    error = rename_between(folder, step.staged, parent->get(), name, RENAME_EXCHANGE);
  } else if (step.move == Move::kRemove) {
    error = rename_between(folder, step.staged, parent->get(), name, 0);
  } else if (step.move == Move::kRename) {
    auto source = disk_.open_directory(parent_of(step.from));
    if (!source) return fail(source.error());
    error = rename_between(parent->get(), name, source->get(), leaf_of(step.from), RENAME_NOREPLACE);
  } else {
    error = rename_between(parent->get(), name, folder, step.staged, 0);
    if (!error && step.move == Move::kExchange)
      error = rename_between(folder, step.staged + ".old", parent->get(), name, 0);
  }
  if (error) return fail_errno(error, kWhat, step.path);
  return {};
}

/// A step that gives names is taken back where the paths of the repaints do not hold any more.
Result<void> Swap::set_times_back(const Step& step) const {
  for (const auto& [path, modified] : step.times) {
    auto directory = disk_.open_directory(path);
    if (!directory) return fail(directory.error());
    const timespec times[] = {{0, UTIME_OMIT}, modified};
    if (::futimens(directory->get(), times) != 0) return fail_errno(errno, kWhat, path);
  }
  return {};
}

Result<void> Swap::repaint(const std::string& path, const Node& node) const {
  if (node.type == NodeType::kLink) {
    auto parent = disk_.open_directory(parent_of(path));
    if (!parent) return fail(parent.error());
    return set_link_attributes(parent->get(), leaf_of(path).c_str(), node.attributes, path);
  }
  auto fd = disk_.open(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_NOATIME | O_NOCTTY);
  if (!fd) return fail(fd.error());
  return set_attributes(fd->get(), node.attributes, path);
}

Result<void> Swap::apply() {
  is_whole_ = false;
  for (auto* steps : {&names_, &steps_})
    for (auto& step : *steps)
      if (auto moved = move(step); !moved) return roll_back(moved.error());
  for (auto& change : repaints_) {
    if (auto painted = repaint(change.path, *change.to); !painted) return roll_back(painted.error());
  }
  is_whole_ = true;
  return {};
}

Result<void> Swap::roll_back(Error reason) {
  if (auto undone = undo(); !undone) return undone;
  return fail(std::move(reason));
}

Result<void> Swap::undo() {
  is_whole_ = false;
  for (auto step = steps_.rbegin(); step != steps_.rend(); ++step)
    if (step->done)
      if (auto back = take_back(*step); !back) return back;
  // Every time that the steps changed, also where the new one was never set. Where a name was not given,
  // nothing else was done, and another thing may stand at a path.
  if (std::all_of(names_.begin(), names_.end(), [](const Step& step) { return step.done; }))
    for (const auto& change : repaints_) {
      if (!change.from) continue;
      if (auto painted = repaint(change.path, *change.from);
          !painted && !is_gone(painted.error().errno_value))
        return painted;
    }
  for (auto step = names_.rbegin(); step != names_.rend(); ++step) {
    if (!step->done) continue;
    if (auto back = take_back(*step); !back) return back;
    if (auto back = set_times_back(*step); !back) return back;
  }
  is_whole_ = true;
  return {};
}

}  // namespace okcvm::snapshots
