// Is everything there, and intact?

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "snapshots/compare.h"
#include "snapshots/difference.h"
#include "snapshots/git_store.h"
#include "snapshots/git_tree.h"
#include "snapshots/io.h"
#include "snapshots/ledger.h"
#include "snapshots/path_text.h"

namespace okcvm::snapshots {

/// Reads every object that can be reached and notes what cannot be.
class GitStore::Inspector {
 public:
  /// Of blobs, where they are not read, it is only asked whether they are there. What was seen is passed
  /// over.
  Inspector(const Repository& repository, VerifyReport& report, const Progress& progress, Blobs blobs,
            std::unordered_set<Oid, OidHash> seen = {})
      : repository_(repository), report_(report), progress_(progress), blobs_(blobs), seen_(std::move(seen)) {
    report_.objects = seen_.size();
  }

  std::unordered_set<Oid, OidHash> seen() && { return std::move(seen_); }

  /// `busy` if asked to stop.
  Result<void> commits(std::optional<Oid> next) {
    while (next && !seen_.contains(*next)) {
      auto before = commit(*next);
      if (!before) return fail(before.error());
      next = *before;
    }
    return {};
  }

  /// One and what it stands on; answers the one before it.
  Result<std::optional<Oid>> commit(const Oid& oid) {
    seen_.insert(oid);
    if (auto told = count(); !told) return fail(told.error());
    auto bytes = repository_.read(oid, ObjectKind::kCommit);
    if (!bytes) {
      report_.problems.push_back("snapshot " + oid.hex() + ": " + bytes.error().message);
      return std::optional<Oid>();
    }
    const auto known = read_commit(repository_, oid);
    if (!known) report_.problems.push_back("snapshot " + oid.hex() + ": " + known.error().message);
    const auto tree = bytes->starts_with("tree ")
                          ? Oid::parse(std::string_view(*bytes).substr(5, Oid::kHexSize))
                          : std::nullopt;
    if (tree)
      if (auto done = trees(*tree, "", 0); !done) return fail(done.error());
    auto parent = read_parent(repository_, oid);
    return parent ? *parent : std::nullopt;
  }

 private:
  static constexpr std::size_t kAboveWorkspace = 2;  // metadata/tree
  static constexpr std::size_t kShownOfPath = 80;

  Result<void> count() {
    ++report_.objects;
    if (!progress_ || report_.objects % 256 != 0 || progress_("verifying", report_.objects, 0)) return {};
    return stopped();
  }

  Result<void> trees(const Oid& oid, const std::string& path, std::size_t depth) {
    if (!seen_.insert(oid).second) return {};
    if (depth > kMostComponents + kAboveWorkspace) {
      note(path.substr(0, kShownOfPath) + "...", Error::of(Code::kCorrupt, "it is deeper than any path"));
      return {};
    }
    if (auto told = count(); !told) return told;
    auto bytes = repository_.read(oid, ObjectKind::kTree);
    auto entries = bytes ? parse_git_tree(*bytes) : Result<std::vector<GitEntry>>(fail(bytes.error()));
    if (!entries) {
      note(path, entries.error());
      return {};
    }
    for (const auto& entry : *entries) {
      const std::string inside = path.empty() ? entry.name : path + '/' + entry.name;
      auto done = entry.mode == kGitDirectory ? trees(entry.oid, inside, depth + 1) : blob(entry.oid, inside);
      if (!done) return done;
    }
    return {};
  }

  Result<void> blob(const Oid& oid, const std::string& path) {
    if (!seen_.insert(oid).second) return {};
    if (auto told = count(); !told) return told;
    if (blobs_ == Blobs::kAreThere) {
      if (!repository_.contains(oid)) note(path, Error::of(Code::kCorrupt, "it is missing"));
      return {};
    }
    bool is_stopped = false;
    auto read = repository_.read_stream(oid, [&](std::string_view) -> Result<void> {
      is_stopped = progress_ && !progress_("verifying", report_.objects, 0);
      return is_stopped ? stopped() : Result<void>();
    });
    if (is_stopped) return stopped();
    if (!read) note(path, read.error());
    return {};
  }

  void note(const std::string& path, const Error& error) {
    report_.problems.push_back(path + ": " + error.message);
  }

  const Repository& repository_;
  VerifyReport& report_;
  const Progress& progress_;
  const Blobs blobs_;
  std::unordered_set<Oid, OidHash> seen_;
};

Result<bool> GitStore::is_whole(const Commit& commit, Blobs blobs, const Progress& progress) {
  VerifyReport report;
  Inspector inspector(*repository_, report, progress, blobs);
  if (auto looked = inspector.commit(commit.oid); !looked) return fail(looked.error());
  return report.problems.empty();
}

/// Where a look at everything found what is in no record, the next call does not go by that either.
Result<void> GitStore::tell_of_unrecorded(const Result<std::unique_ptr<Tree>>& everything,
                                          const ChangeSource& changes, const Progress& progress) {
  if (!everything || !changes.counts_from) return {};
  const auto from = base();
  if (!from || cut(changes, *from).rescan) return {};
  auto recorded = look_at_workspace(changes, Look::kAtChanges, progress);
  if (!recorded && recorded.error().code == Code::kBusy) return fail(recorded.error());
  if (!recorded) return {};
  const auto rows = differences(**recorded, **everything, AfterIs::kLive, std::nullopt, {});
  if (!rows || rows->empty()) return {};
  std::vector<RelPath> recorded_paths;
  for (auto& change : cut(changes, *from).changes)
    for (auto* path : {&change.path, &change.target})
      if (!path->is_root()) recorded_paths.push_back(std::move(*path));
  // What is recorded is of what programs changed between the two looks.
  const bool is_all_recorded =
      !recorded_paths.empty() &&
      std::all_of(rows->begin(), rows->end(),
                  [scope = normalize_scope(std::move(recorded_paths))](const Difference& row) {
                    return is_in_scope(scope, row.path.text());
                  });
  if (!is_all_recorded) changes.counts_from("");
  return {};
}

Result<void> GitStore::inspect_all(Inspector& inspector, VerifyReport& report) {
  for (const char* name : {kMainRef, kBaseRef, kUndoRef}) {
    const auto ref = repository_->ref(name);
    if (!ref) report.problems.push_back(ref.error().message);
    if (auto done = inspector.commits(ref.value_or(std::nullopt)); !done) return done;
  }
  // Those behind one that is lost, and that itself once another one was taken.
  for (const Oid& oid : Ledger(repository_->own_folder()).all().ids)
    if (auto done = inspector.commits(oid); !done) return done;
  return {};
}

Result<GitStore::Intact> GitStore::intact_objects(const Progress& progress) {
  if (!repository_) return Intact();
  VerifyReport report;
  Inspector inspector(*repository_, report, progress, Blobs::kCanBeRead);
  if (auto done = inspect_all(inspector, report); !done) return fail(done.error());
  if (!report.problems.empty()) return Intact();
  return Intact{std::move(inspector).seen(), repository_->place()};
}

Result<VerifyReport> GitStore::verify_locked(const std::string& snapshot, Intact intact,
                                             const ChangeSource& changes, const Progress& progress) {
  VerifyReport report;
  if (!repository_ && !snapshot.empty()) return fail(commit_of(snapshot).error());
  if (!repository_) return report;
  if (auto opened = repository_->open_anew(); !opened) return fail(opened.error());
  if (intact.place != repository_->place()) intact.objects.clear();
  Inspector inspector(*repository_, report, progress, Blobs::kCanBeRead, std::move(intact.objects));
  if (auto done = inspect_all(inspector, report); !done) return fail(done.error());
  is_damaged_ = !report.problems.empty();
  if (is_damaged_)
    for (auto& advice : repository_->advice_on_indexes()) report.problems.push_back(std::move(advice));
  auto commit = commit_of(snapshot);
  const bool is_none_yet = !commit && snapshot.empty() && commit.error().code == Code::kUnknownSnapshot;
  if (is_none_yet && report.problems.empty()) {
    report.problems = repository_->problems_for_git();
    return report;
  }
  if (!commit && report.problems.empty()) return fail(commit.error());
  auto wanted = commit ? open_tree(*commit) : Result<std::unique_ptr<Tree>>(fail(commit.error()));
  auto live = look_at_workspace(changes, Look::kAtEverything, progress);
  if (!live && live.error().code == Code::kBusy) return fail(live.error());
  if (auto told = tell_of_unrecorded(live, changes, progress); !told) return fail(told.error());
  if (live && wanted) {
    auto rows = differences(**wanted, **live, AfterIs::kLive, std::nullopt, {});
    if (rows) {
      report.snapshot = StoreAccess::id(commit->oid);
      report.live_differences = std::move(*rows);
    } else {
      report.problems.push_back("the workspace cannot be compared: " + rows.error().message);
    }
  } else if (report.problems.empty()) {
    return fail(live ? wanted.error() : live.error());  // the snapshots are well
  } else {
    report.problems.push_back("the workspace cannot be compared: " +
                              (live ? wanted.error().message : live.error().message));
  }
  for (auto& problem : repository_->problems_for_git()) report.problems.push_back(std::move(problem));
  return report;
}

}  // namespace okcvm::snapshots
