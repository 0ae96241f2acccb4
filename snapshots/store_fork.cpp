// A new session from a snapshot.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "policy/fault.h"
#include "snapshots/git_store.h"
#include "snapshots/io.h"
#include "snapshots/ledger.h"
#include "snapshots/staging.h"

namespace okcvm::snapshots {
namespace {

constexpr std::string_view kWhat = "the fork cannot be made";

/// Objects never change, so a second name does; across file systems it takes a copy.
Result<void> share_file(const std::filesystem::path& from, const std::filesystem::path& to) {
  fault_point("fork.share");
  if (::link(from.c_str(), to.c_str()) == 0 || errno == EEXIST) return {};
  if (errno != EXDEV && errno != EMLINK && errno != EPERM) return fail_errno(errno, kWhat);
  std::error_code error;
  std::filesystem::copy_file(from, to, error);
  if (error) return fail_errno(error.value(), kWhat);
  return {};
}

/// What git may have made to be quicker of objects or packs that are not all there any more.
bool is_about_others(const std::string& name) {
  return name.starts_with("commit-graph") || name.starts_with("multi-pack-index");
}

}  // namespace

Result<void> GitStore::share_objects(const Repository& target) {
  std::error_code error;
  const auto from = config_.repository / "objects", to = target.path() / "objects";
  auto at = std::filesystem::recursive_directory_iterator(from, error);
  for (; !error && at != std::filesystem::recursive_directory_iterator(); at.increment(error)) {
    const auto inside = to / at->path().lexically_relative(from);
    if (is_about_others(at->path().filename())) {
      at.disable_recursion_pending();
    } else if (at->is_directory(error)) {
      std::filesystem::create_directories(inside, error);
      if (error) break;  // the next step would clear it
    } else if (auto shared = share_file(at->path(), inside); !shared) {
      return shared;
    }
  }
  if (error) return fail_errno(error.value(), kWhat);
  if (::syncfs(target.folder()) != 0) return fail_errno(errno, kWhat);
  return {};
}

/// Builds the workspace under another name and brings it in with one rename. Of nothing there is none, as
/// before a first write.
Result<void> GitStore::write_out(const Commit& commit, const StoreConfig& target, const Progress& progress) {
  auto tree = open_tree(commit);
  if (!tree) return fail(tree.error());
  if (auto loaded = (*tree)->load((*tree)->root()); !loaded) return loaded;
  if ((*tree)->root().children.empty()) return {};
  const auto draft = draft_of(target.workspace);
  fault_point("fork.workspace");
  if (::mkdir(draft.c_str(), 0700) != 0) return fail_errno(errno, kWhat);
  auto disk = Disk::open(draft);
  if (!disk) return fail(disk.error());
  if (!*disk) return fail_errno(ENOENT, kWhat);
  auto zones_folder = (*disk)->open_directory("");
  if (!zones_folder) return fail(zones_folder.error());
  Staging staging(*repository_, Disk(std::move(*zones_folder)), progress);
  for (const auto& zone : (*tree)->root().children) {
    if (auto loaded = (*tree)->load(*zone); !loaded) return loaded;
    if (auto built = staging.build(**tree, *zone, zone->name, zone->name, Extent::kWithAllBelow); !built)
      return built;
  }
  if (::syncfs((*disk)->root()) != 0) return fail_errno(errno, kWhat);
  fault_point("fork.publish");
  if (::renameat2(AT_FDCWD, draft.c_str(), AT_FDCWD, target.workspace.c_str(), RENAME_NOREPLACE) != 0)
    return fail_errno(errno, kWhat);
  const FileDescriptor folder(
      ::open(target.workspace.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder && ::fsync(folder.get()) == 0) return {};
  const int error = errno;
  std::error_code ignored;
  std::filesystem::remove_all(target.workspace, ignored);
  return fail_errno(error, kWhat);
}

Result<Snapshot> GitStore::fork_locked(const std::string& snapshot, const StoreConfig& target,
                                       const Progress& progress) {
  auto commit = commit_of(snapshot);
  if (!commit) return fail(commit.error());
  for (const auto& path : {target.workspace, target.repository}) {
    const auto in_the_way = is_there(path);
    if (!in_the_way) return fail(in_the_way.error());
    if (*in_the_way) return fail(Code::kAlreadyExists, "the new session has files or snapshots already");
  }
  std::error_code ignored;
  std::filesystem::remove_all(draft_of(target.workspace), ignored);
  const auto clear = [&] {
    std::filesystem::remove_all(draft_of(target.workspace), ignored);
    std::filesystem::remove_all(target.repository, ignored);
  };
  auto created = Repository::create(target.repository);
  if (!created) return fail(created.error());
  auto done = share_objects(**created);
  if (done) done = (*created)->reopen();
  if (done) done = (*created)->move_ref(kMainRef, std::nullopt, commit->oid);
  const auto all = history();
  if (done && all)
    Ledger((*created)->own_folder())
        .write({std::find((*all)->begin(), (*all)->end(), commit->oid), (*all)->end()});
  if (done) done = write_out(*commit, target, progress);
  if (!done) {
    clear();
    return fail(done.error());
  }
  return to_snapshot(*repository_, *commit);
}

}  // namespace okcvm::snapshots
