#include "policy/workdir_rule.h"

#include <algorithm>
#include <array>

namespace okcvm {
namespace {

struct PolicyRow {
  WorkdirPolicy policy;
  std::string_view name;
};
constexpr std::array kPolicies{PolicyRow{WorkdirPolicy::kManaged, "managed"},
                               PolicyRow{WorkdirPolicy::kExisting, "existing"},
                               PolicyRow{WorkdirPolicy::kRepoBound, "repo-bound"}};

// Never bound, nor anything below them: the system's own trees.
constexpr std::array<std::string_view, 14> kSystemTrees{"/bin",   "/boot",  "/dev",    "/etc",   "/lib",
                                                        "/lib32", "/lib64", "/libx32", "/proc",  "/run",
                                                        "/sbin",  "/sys",   "/usr",    "/System"};
// Never bound themselves; a directory below them may be.
constexpr std::array<std::string_view, 9> kSystemRoots{"/",    "/home", "/root", "/mnt", "/media",
                                                       "/opt", "/srv",  "/tmp",  "/var"};
// /var holds a few places where people do keep projects; these are not among them.
constexpr std::array<std::string_view, 6> kVarTrees{"/var/cache", "/var/lib/dpkg", "/var/log",
                                                    "/var/run",   "/var/spool",    "/var/backups"};
// Any component of this name holds secrets or credentials.
constexpr std::array<std::string_view, 12> kSecretNames{".ssh",    ".gnupg",          ".aws",     ".kube",
                                                        ".docker", ".azure",          ".config",  ".netrc",
                                                        ".local",  ".password-store", ".mozilla", ".gcloud"};

bool is_within(std::string_view path, std::string_view root) {
  if (root == "/") return true;
  return path.starts_with(root) && (path.size() == root.size() || path[root.size()] == '/');
}

template <typename Range>
bool is_within_any(std::string_view path, const Range& roots) {
  return std::any_of(roots.begin(), roots.end(), [&](const auto& root) { return is_within(path, root); });
}

bool has_secret_component(std::string_view path) {
  for (std::size_t start = 0; start <= path.size();) {
    const auto end = std::min(path.find('/', start), path.size());
    const auto part = path.substr(start, end - start);
    if (std::find(kSecretNames.begin(), kSecretNames.end(), part) != kSecretNames.end()) return true;
    start = end + 1;
  }
  return false;
}

}  // namespace

std::optional<WorkdirPolicy> workdir_policy_named(std::string_view text) {
  for (const auto& row : kPolicies)
    if (row.name == text) return row.policy;
  return std::nullopt;
}

std::string_view name_of(WorkdirPolicy policy) {
  return kPolicies[static_cast<std::size_t>(policy)].name;
}

Result<void> check_workdir(std::string_view real_path, const WorkdirRule& rule) {
  if (rule.allowed_roots.empty())
    return fail(Code::kForbidden, "no directory is allowed as a workdir: ask for --workdir-allow-root");
  const bool is_system =
      std::find(kSystemRoots.begin(), kSystemRoots.end(), real_path) != kSystemRoots.end() ||
      is_within_any(real_path, kSystemTrees) || is_within_any(real_path, kVarTrees);
  if (is_system) return fail(Code::kForbidden, "a system directory cannot be a workdir");
  if (!rule.home.empty() && is_within(rule.home, real_path))
    return fail(Code::kForbidden, "a whole home directory cannot be a workdir: use a directory below it");
  if (has_secret_component(real_path))
    return fail(Code::kForbidden, "a directory that holds credentials or settings cannot be a workdir");
  for (const auto& tree : rule.own_trees)
    if (is_within(real_path, tree) || is_within(tree, real_path))
      return fail(Code::kForbidden, "the daemon's own directories cannot be a workdir");
  if (!is_within_any(real_path, rule.allowed_roots))
    return fail(Code::kForbidden, "the directory is not below an allowed root: ask for --workdir-allow-root");
  return {};
}

std::string expand_home(std::string_view path, std::string_view home) {
  if (home.empty() || path.empty() || path.front() != '~') return std::string(path);
  if (path.size() > 1 && path[1] != '/') return std::string(path);
  return std::string(home).append(path.substr(1));
}

std::string normal_git_url(std::string_view url) {
  bool has_scheme = false;
  if (const auto scheme = url.find("://"); scheme != url.npos) {
    url.remove_prefix(scheme + 3);
    has_scheme = true;
  }
  const auto slash = url.find('/');
  if (const auto at = url.substr(0, slash).rfind('@'); at != url.npos) url.remove_prefix(at + 1);
  std::string text(url);
  if (!has_scheme)  // scp's form: host:path
    if (const auto colon = text.find(':'); colon != text.npos && colon < text.find('/')) text[colon] = '/';
  while (!text.empty() && text.back() == '/') text.pop_back();
  if (text.ends_with(".git")) text.erase(text.size() - 4);
  const auto host_end = std::min(text.find('/'), text.size());
  std::transform(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(host_end), text.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return text;
}

}  // namespace okcvm
