#include <sys/stat.h>

#include <algorithm>

#include "policy/utf8.h"
#include "snapshots/difference.h"
#include "snapshots/git.h"

namespace okcvm::snapshots {
namespace {

constexpr std::size_t kLookAt = 8000;  // as git does (buffer_is_binary)
constexpr std::string_view kPlainMode = "100644";

/// What is no UTF-8 text counts as binary: answers are JSON, and a patch in them would say other bytes.
bool is_binary(const std::optional<FileText>& file) {
  return file && (file->bytes.find('\0') < std::min(file->bytes.size(), kLookAt) || !is_utf8(file->bytes));
}

/// Of both texts together, without what they begin and what they end with alike.
std::size_t lines_that_differ(std::string_view before, std::string_view after) {
  const auto begin = std::mismatch(before.begin(), before.end(), after.begin(), after.end());
  before.remove_prefix(static_cast<std::size_t>(begin.first - before.begin()));
  after.remove_prefix(static_cast<std::size_t>(begin.second - after.begin()));
  const auto end = std::mismatch(before.rbegin(), before.rend(), after.rbegin(), after.rend());
  before.remove_suffix(static_cast<std::size_t>(end.first - before.rbegin()));
  after.remove_suffix(static_cast<std::size_t>(end.second - after.rbegin()));
  return static_cast<std::size_t>(std::count(before.begin(), before.end(), '\n') +
                                  std::count(after.begin(), after.end(), '\n'));
}

/// libgit2 cannot be stopped while it looks for the lines that stayed.
bool takes_too_long(const std::optional<FileText>& before, const std::optional<FileText>& after) {
  return before && after && lines_that_differ(before->bytes, after->bytes) > kMostLines;
}

std::string git_mode(const FileText& file) {
  return S_ISLNK(file.mode) ? "120000" : file.mode & S_IXUSR ? "100755" : std::string(kPlainMode);
}

/// libgit2's patch, which takes both for plain files; empty if there is nothing to tell.
std::string patch_of(const std::string* old_bytes, const std::string& old_path, const std::string* new_bytes,
                     const std::string& new_path) {
  git::start();
  git_diff_options options;
  git_diff_options_init(&options, GIT_DIFF_OPTIONS_VERSION);
  options.flags = GIT_DIFF_FORCE_TEXT;
  git_patch* raw = nullptr;
  if (git_patch_from_buffers(&raw, old_bytes ? old_bytes->data() : nullptr, old_bytes ? old_bytes->size() : 0,
                             old_path.c_str(), new_bytes ? new_bytes->data() : nullptr,
                             new_bytes ? new_bytes->size() : 0, new_path.c_str(), &options) != 0)
    return {};
  const git::PatchHandle patch(raw);
  git_buf text{};
  std::string unified;
  if (git_patch_to_buf(&text, raw) == 0) unified.assign(text.ptr, text.size);
  git_buf_dispose(&text);
  return unified;
}

/// The first line of a patch, with which names are quoted as git quotes them.
std::string first_line(const std::string& old_path, const std::string& new_path) {
  const std::string none, some = "x";
  const auto patch = patch_of(&none, old_path, &some, new_path);
  return patch.substr(0, patch.find('\n') + 1);
}

/// `path` as git quotes it.
std::string quoted(const std::string& path) {
  const auto line = first_line(path, path);
  const auto both = line.substr(std::string_view("diff --git ").size());
  const auto name = both.substr(0, (both.size() - 2) / 2);
  return name.starts_with('"') ? '"' + name.substr(3) : name.substr(2);
}

std::string mode_lines(const FileText& before, const FileText& after) {
  return "old mode " + git_mode(before) + "\nnew mode " + git_mode(after) + "\n";
}

/// Only where they differ.
std::string mode_change(const FileText& before, const FileText& after) {
  return git_mode(before) == git_mode(after) ? "" : mode_lines(before, after);
}

}  // namespace

std::string patch_text(const std::string& path, const std::optional<FileText>& before,
                       const std::optional<FileText>& after, bool& binary) {
  binary = is_binary(before) || is_binary(after);
  if (binary || takes_too_long(before, after)) return patch_without_text(path, before, after);
  if (before && after && S_ISLNK(before->mode) != S_ISLNK(after->mode))
    return patch_text(path, before, std::nullopt, binary) + patch_text(path, std::nullopt, after, binary);
  auto patch = patch_of(before ? &before->bytes : nullptr, path, after ? &after->bytes : nullptr, path);
  const auto modes = before && after ? mode_change(*before, *after) : "";
  if (patch.empty()) return modes.empty() ? "" : first_line(path, path) + modes;
  // It ends with the mode: "new file mode 100644", "deleted file mode 100644", or "index 1234567..89abcde
  // 100644".
  const auto second_line = patch.find('\n') + 1;
  const auto mode_at = patch.find('\n', second_line) - kPlainMode.size();
  if (modes.empty())
    patch.replace(mode_at, kPlainMode.size(), git_mode(before ? *before : *after));
  else
    patch.erase(mode_at - 1, kPlainMode.size() + 1).insert(second_line, modes);
  return patch;
}

std::string patch_without_text(const std::string& path, const std::optional<FileText>& before,
                               const std::optional<FileText>& after) {
  const auto modes = !before  ? "new file mode " + git_mode(*after) + "\n"
                     : !after ? "deleted file mode " + git_mode(*before) + "\n"
                              : mode_lines(*before, *after);  // git wants some line there
  return first_line(path, path) + modes + "Binary files " + (before ? quoted("a/" + path) : "/dev/null") +
         " and " + (after ? quoted("b/" + path) : "/dev/null") + " differ\n";
}

std::string rename_text(const std::string& old_path, const std::string& new_path, mode_t old_mode,
                        mode_t new_mode) {
  return first_line(old_path, new_path) + mode_change({{}, old_mode}, {{}, new_mode}) +
         "similarity index 100%\nrename from " + quoted(old_path) + "\nrename to " + quoted(new_path) + "\n";
}

}  // namespace okcvm::snapshots
