// What a start does after a crash.

#include <filesystem>
#include <set>
#include <system_error>

#include "policy/trees.h"
#include "snapshots/capture.h"
#include "snapshots/git_store.h"
#include "snapshots/io.h"
#include "snapshots/kept_links.h"
#include "snapshots/pack_merge.h"
#include "snapshots/replay.h"
#include "snapshots/staging_folder.h"

namespace okcvm::snapshots {
namespace {

/// Files that git and we write before they get their names. Nobody else writes here while we hold the lock.
void remove_drafts(const std::filesystem::path& repository) {
  std::error_code error;
  for (const std::string_view folder : {"", "refs", "objects", "okcvm"}) {
    if (std::filesystem::is_symlink(repository / folder, error)) continue;  // who knows whose that is
    const bool is_refs = folder == "refs";  // a tag may be called anything else
    const auto is_draft = [&](const std::string& name) {
      return name.ends_with(".lock") || (!is_refs && (name.starts_with("tmp_") || name.ends_with(".new")));
    };
    const bool deep = is_refs || folder == "objects";
    std::vector<std::filesystem::path> drafts;
    auto at = std::filesystem::recursive_directory_iterator(repository / folder, error);
    for (; !error && at != std::filesystem::recursive_directory_iterator(); at.increment(error)) {
      if (!deep && at->is_directory(error)) at.disable_recursion_pending();
      if (is_draft(at->path().filename())) drafts.push_back(at->path());
    }
    for (const auto& draft : drafts) std::filesystem::remove(draft, error);
  }
}

}  // namespace

Result<void> GitStore::recover() {
  MutexLock lock(mutex_);
  std::error_code ignored;
  for (const auto& path : {config_.repository, config_.workspace})
    std::filesystem::remove_all(draft_of(path), ignored);
  const auto is_made = is_there(config_.repository);
  if (!is_made) return fail(is_made.error());
  if (!*is_made) return {};
  // What libgit2 cannot look at it takes for no repository.
  for (const char* part : {"HEAD", "config", "objects/pack", "refs/heads"})
    if (auto seen = is_there(config_.repository / part); !seen) return fail(seen.error());
  auto opened = Repository::open(config_.repository);
  if (!opened) return fail(opened.error());
  repository_ = std::move(*opened);
  index_ = std::make_unique<StatIndex>(repository_->own_folder());
  auto held = lock_repository();
  if (!held) return fail(held.error());
  remove_drafts(config_.repository);
  if (auto cleared = Batch::clear_waiting_room(*repository_); !cleared) return cleared;
  clean_up_merge(*repository_);

  auto journal = Journal::read(*repository_);
  if (!journal) return fail(journal.error());
  if (*journal) {
    if (auto recovered = recover_restore(**journal); !recovered) return recovered;
  } else {
    auto disk = Disk::open(config_.workspace);
    if (!disk) return fail(disk.error());
    if (*disk)
      if (auto removed = remove_tree((*disk)->root(), kStagingFolder); !removed) return removed;
  }
  auto untold = Batch::recover(*repository_);
  if (!untold) return fail(untold.error());
  untold_ = *untold;
  return {};
}

/// Forward if that is possible, else back.
Result<void> GitStore::recover_restore(const Journal& journal) {
  auto before = read_commit(*repository_, journal.before);
  if (!before) return fail(before.error());
  auto after = read_commit(*repository_, journal.base);
  if (!after) return fail(after.error());
  auto disk = reach_workspace();
  if (!disk) return fail(disk.error());
  auto forward = converge(*before, *after, *after);
  if (forward) forward = name_restored(journal, *disk);
  if (!forward) {
    const auto base = repository_->ref(kBaseRef);
    if (!base || *base == journal.base) return forward;
    if (auto back = converge(*before, *after, *before); !back) return back;
  } else {
    Batch::drop_intent(*repository_);
  }
  return Journal::remove(*repository_);
}

/// What is there stays as it is, and is compared as a whole by the next snapshot.
Result<void> GitStore::give_up_restore() {
  auto put_aside = Journal::give_up(config_.repository);
  gives_up_ = !put_aside;
  return put_aside;
}

/// From anything between `before` and `after` to `wanted`, one of the two: looks at what is there of all in
/// which they differ, and changes what is not as it should be.
Result<void> GitStore::converge(const Commit& before, const Commit& after, const Commit& wanted) {
  const std::vector<RelPath> everywhere{RelPath()};
  auto old_tree = open_tree(before);
  auto new_tree = open_tree(after);
  auto live = open_tree(before);
  auto wanted_tree = open_tree(wanted);
  for (const auto* tree : {&old_tree, &new_tree, &live, &wanted_tree})
    if (!*tree) return fail(tree->error());
  auto touched = compare(**old_tree, **new_tree, everywhere);
  if (!touched) return fail(touched.error());
  std::set<RelPath> paths;
  for (const auto& delta : *touched) {
    auto path = RelPath::parse(delta.path);
    if (!path) return fail(path.error());
    const bool is_known_directory =
        delta.before && delta.after && delta.before->is_directory() && delta.after->is_directory();
    const std::uint8_t bits = static_cast<std::uint8_t>(
        is_known_directory ? +kMarkAttributes : kMarkEntry | kMarkContent | kMarkWhole);
    if (delta.top)
      if (auto marked = mark(**live, *path, bits); !marked) return marked;
    paths.insert(std::move(*path));
  }
  auto disk = reach_workspace();
  if (!disk) return fail(disk.error());
  auto folder = StagingFolder::make(*disk);
  if (!folder) return fail(folder.error());
  Batch names_only;
  const Progress silent;
  Capture capture(**live, &*disk, names_only, {}, silent);
  if (auto found = capture.run(); !found) return fail(found.error());
  if (auto named = (*live)->write(names_only); !named) return fail(named.error());
  auto deltas = compare(**live, **wanted_tree, everywhere);
  if (!deltas) return fail(deltas.error());
  auto work = follow_renames(**live, **wanted_tree, everywhere, {{}, std::move(*deltas)});
  if (!work) return fail(work.error());
  if (auto kept = keep_links(**live, **wanted_tree, everywhere, *work); !kept) return kept;
  Staging staging(*repository_, folder->take(), silent);
  Swap swap(*disk, staging, **live, **wanted_tree, *work, everywhere);
  if (auto ready = swap.prepare(); !ready) return ready;
  if (auto applied = swap.apply(); !applied) return applied;
  recovered_.assign(paths.begin(), paths.end());
  return {};
}

}  // namespace okcvm::snapshots
