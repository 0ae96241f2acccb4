#include "tools/daemon/sessions/git_remote.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

#include "policy/git_config.h"
#include "policy/proc_path.h"
#include "tools/daemon/sessions/directory_steps.h"
#include "tools/daemon/sessions/owner_files.h"

namespace okcvm::daemon {
namespace {

constexpr off_t kMostText = 1 << 20;

/// What is no regular file is not opened: that could wait for ever, or act.
Result<std::string> text_at(const FileDescriptor& directory, const std::string& name) {
  auto found = find_by_steps(directory, name);
  if (!found) return fail(found.error());
  struct stat status {};
  if (::fstat(found->get(), &status) != 0) return fail_errno(errno);
  if (!S_ISREG(status.st_mode) || status.st_size > kMostText)
    return fail(Code::kInvalidRequest, "the repository's " + name + " is no file of at most 1 MiB");
  const FileDescriptor file(::open(ProcPath(found->get()).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!file) return fail_errno(errno);
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const auto got = ::pread(file.get(), text.data() + size, text.size() - size, static_cast<off_t>(size));
    if (got < 0) return fail_errno(errno);
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  text.resize(size);
  return text;
}

/// Opens the directory whose path a file gives, after a prefix.
Result<FileDescriptor> directory_given_by(const FileDescriptor& directory, const std::string& name,
                                          std::string_view prefix) {
  auto text = text_at(directory, name);
  if (!text) return fail(text.error());
  if (!text->starts_with(prefix))
    return fail(Code::kNotFound, "the repository's " + name + " gives no directory");
  auto path = text->substr(prefix.size());
  while (path.ends_with('\n') || path.ends_with('\r')) path.pop_back();
  return find_by_steps(directory, path);
}

bool is_directory(const FileDescriptor& found) {
  struct stat status {};
  return ::fstat(found.get(), &status) == 0 && S_ISDIR(status.st_mode);
}

/// The text of its configuration (gitrepository-layout(5)).
Result<std::string> config_of(const FileDescriptor& directory) {
  auto repository = find_by_steps(directory, ".git");
  if (!repository && repository.error().errno_value == ENOENT) return text_at(directory, "config");  // bare
  if (repository && !is_directory(*repository))
    repository = directory_given_by(directory, ".git", "gitdir: ");
  if (!repository) return fail(repository.error());
  auto common = directory_given_by(*repository, "commondir", {});  // of linked working trees
  if (!common && common.error().errno_value != ENOENT) return fail(common.error());
  return text_at(common ? *common : *repository, "config");
}

}  // namespace

Result<std::string> remote_url(const FileDescriptor& directory, const Caller& owner) {
  const auto config = as_owner(owner, [&] { return config_of(directory); });
  if (!config) return fail(config.error());
  auto url = remote_url_in(*config);
  if (!url) return fail(Code::kNotFound, "the repository names no remote");
  return *std::move(url);
}

}  // namespace okcvm::daemon
