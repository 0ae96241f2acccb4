#include "policy/prompt_paths.h"

#include <algorithm>
#include <vector>

namespace okcvm {
namespace {

constexpr std::string_view kOldMount = "/mnt/okcomputer";
constexpr std::string_view kOldOutput = "/output";

/// Bytes beyond ASCII end a component: Chinese prompts put text right against a path.
bool is_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

/// Whether a component ends before `rest`. A full stop that ends a sentence does not belong to it.
bool ends_component(std::string_view rest) {
  if (rest.empty()) return true;
  if (rest.front() == '.') return rest.size() == 1 || !is_name_byte(rest[1]);
  return !is_name_byte(rest.front());
}

/// Takes `root` off the front of `path` if it is a whole leading part of it.
bool take_root(std::string_view& path, std::string_view root) {
  if (root.empty() || !path.starts_with(root)) return false;
  if (path.size() > root.size() && path[root.size()] != '/') return false;
  path.remove_prefix(root.size());
  return true;
}

}  // namespace

AdaptedPrompt adapt_prompt(std::string_view prompt, std::string_view mount_point) {
  AdaptedPrompt adapted;
  adapted.text.reserve(prompt.size() + 64);
  while (!prompt.empty()) {
    const auto found = prompt.find(kOldMount);
    if (found == prompt.npos) break;
    adapted.text.append(prompt.substr(0, found));
    const bool begins = adapted.text.empty() || !is_name_byte(adapted.text.back());
    prompt.remove_prefix(found + kOldMount.size());
    if (!begins || !ends_component(prompt)) {
      adapted.text.append(kOldMount);
      continue;
    }
    adapted.text.append(mount_point);
    ++adapted.replaced;
    if (prompt.starts_with(kOldOutput) && ends_component(prompt.substr(kOldOutput.size()))) {
      adapted.text.append("/outputs");
      prompt.remove_prefix(kOldOutput.size());
    }
  }
  adapted.text.append(prompt);
  return adapted;
}

Result<RelPath> rebase_path(std::string_view path, std::string_view mount_point) {
  std::string text(path);
  std::replace(text.begin(), text.end(), '\\', '/');

  std::string_view rest = text;
  bool is_old_output = false;
  if (!take_root(rest, mount_point) && take_root(rest, kOldMount))
    is_old_output = take_root(rest, kOldOutput);

  std::vector<std::string_view> parts;
  if (is_old_output) parts.push_back("outputs");
  for (std::size_t start = 0; start < rest.size();) {
    const auto end = std::min(rest.find('/', start), rest.size());
    const auto part = rest.substr(start, end - start);
    start = end + 1;
    if (part.empty() || part == ".") continue;
    if (part != "..") {
      parts.push_back(part);
    } else if (parts.empty()) {
      return fail(Code::kPathTraversalBlocked, "the path leads out of the session");
    } else {
      parts.pop_back();
    }
  }
  std::string joined;
  for (const auto part : parts) joined.append(joined.empty() ? "" : "/").append(part);
  return RelPath::parse(joined);
}

}  // namespace okcvm
