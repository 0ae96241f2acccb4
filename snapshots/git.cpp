#include "snapshots/git.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <string_view>

#include "snapshots/mapped_reads.h"

namespace okcvm::snapshots::git {

void start() {
  static std::once_flag once;
  std::call_once(once, [] {
    watch_mapped_reads();
    git_libgit2_init();
    for (const int level : {GIT_CONFIG_LEVEL_PROGRAMDATA, GIT_CONFIG_LEVEL_SYSTEM, GIT_CONFIG_LEVEL_XDG,
                            GIT_CONFIG_LEVEL_GLOBAL})
      git_libgit2_opts(GIT_OPT_SET_SEARCH_PATH, level, "");
    git_libgit2_opts(GIT_OPT_SET_TEMPLATE_PATH, "");
    git_libgit2_opts(GIT_OPT_SET_OWNER_VALIDATION, 0);
    git_libgit2_opts(GIT_OPT_ENABLE_FSYNC_GITDIR, 1);
    git_libgit2_opts(GIT_OPT_ENABLE_STRICT_HASH_VERIFICATION, 1);
  });
}

Error last_error(Code code, const std::string& what, std::string path) {
  const git_error* error = git_error_last();
  constexpr std::array kKept{ENOSPC, EDQUOT, EIO, EMFILE, ENFILE, EROFS, ENOMEM};
  if (error && error->klass == GIT_ERROR_NOMEMORY) return Error::from_errno(ENOMEM, what, std::move(path));
  if (error && error->klass == GIT_ERROR_OS && error->message) {
    const std::string_view message = error->message;  // it ends with what errno said before it was cleared
    for (const int kept : kKept)
      if (message.ends_with(::strerrordesc_np(kept))) return Error::from_errno(kept, what, std::move(path));
  }
  return Error::of(code, what, std::move(path));
}

}  // namespace okcvm::snapshots::git
