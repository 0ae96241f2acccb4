#include "snapshots/remote.h"

#include "snapshots/git.h"

namespace okcvm::snapshots {
namespace {

using RemoteHandle = std::unique_ptr<git_remote, git::Release<git_remote_free>>;

std::string name_of_remote(git_repository* repository) {
  git_strarray names{};
  if (git_remote_list(&names, repository) != 0) return {};
  std::string chosen;
  for (std::size_t i = 0; i < names.count; ++i)
    if (chosen.empty() || std::string_view(names.strings[i]) == "origin") chosen = names.strings[i];
  git_strarray_dispose(&names);
  return chosen;
}

}  // namespace

Result<std::string> remote_url(const std::filesystem::path& path) {
  git::start();
  // The daemon is root and the repository its user's; that the user may use it was checked before.
  git_libgit2_opts(GIT_OPT_SET_OWNER_VALIDATION, 0);
  git_repository* opened = nullptr;
  if (git_repository_open_ext(&opened, path.c_str(), GIT_REPOSITORY_OPEN_NO_SEARCH, nullptr) != 0)
    return fail(Code::kNotFound, "the directory is no git repository");
  const git::RepositoryHandle repository(opened);
  const auto name = name_of_remote(repository.get());
  git_remote* found = nullptr;
  if (name.empty() || git_remote_lookup(&found, repository.get(), name.c_str()) != 0)
    return fail(Code::kNotFound, "the repository has no remote");
  const RemoteHandle remote(found);
  const char* url = git_remote_url(remote.get());
  if (!url) return fail(Code::kNotFound, "the repository's remote has no address");
  return std::string(url);
}

}  // namespace okcvm::snapshots
