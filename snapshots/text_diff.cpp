#include "snapshots/difference.h"
#include "snapshots/git.h"

namespace okcvm::snapshots {
namespace {

constexpr std::size_t kLookAt = 8000;  // as git does (buffer_is_binary)

bool is_binary(const std::string& bytes) {
  return bytes.find('\0') < std::min(bytes.size(), kLookAt);
}

}  // namespace

std::string unified_diff(const std::string& old_bytes, const std::string& old_path,
                         const std::string& new_bytes, const std::string& new_path, bool& binary) {
  git::start();
  binary = is_binary(old_bytes) || is_binary(new_bytes);
  if (binary) return {};
  git_diff_options options;
  git_diff_options_init(&options, GIT_DIFF_OPTIONS_VERSION);
  options.flags = GIT_DIFF_FORCE_TEXT;
  git_patch* raw = nullptr;
  if (git_patch_from_buffers(&raw, old_bytes.data(), old_bytes.size(), old_path.c_str(), new_bytes.data(),
                             new_bytes.size(), new_path.c_str(), &options) != 0)
    return {};
  const git::PatchHandle patch(raw);
  git_buf text{};
  std::string unified;
  if (git_patch_to_buf(&text, raw) == 0) unified.assign(text.ptr, text.size);
  git_buf_dispose(&text);
  return unified;
}

}  // namespace okcvm::snapshots
