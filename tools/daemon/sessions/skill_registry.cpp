#include "tools/daemon/sessions/skill_registry.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <system_error>

#include "policy/proc_path.h"
#include "policy/utf8.h"

namespace okcvm::daemon {
namespace {

constexpr std::size_t kMaxDescription = 500;

std::string_view without_blanks(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  text.remove_prefix(std::min(text.find_first_not_of(kBlank), text.size()));
  text.remove_suffix(text.size() - std::min(text.find_last_not_of(kBlank) + 1, text.size()));
  return text;
}

/// The `description:` of the front matter at the head of a SKILL.md: a scalar of YAML, made one line.
std::optional<std::string> description_in(std::string_view text) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf", kKey = "description:";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  if (!text.starts_with("---\n") && !text.starts_with("---\r\n")) return std::nullopt;
  const auto take_line = [&] {
    const auto line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    return line;
  };
  take_line();
  while (!text.empty() && !text.starts_with("---")) {
    const auto line = take_line();
    if (!line.starts_with(kKey)) continue;
    std::string value(without_blanks(line.substr(kKey.size())));
    if (value.starts_with('>') || value.starts_with('|'))
      value.clear();  // what is indented below is the text
    while (!text.empty() && std::string_view(" \t\r\n").find(text.front()) != std::string_view::npos)
      if (const auto more = without_blanks(take_line()); !more.empty())
        value.append(value.empty() ? "" : " ").append(more);
    for (const char quote : {'"', '\''})
      if (value.size() > 1 && value.front() == quote && value.back() == quote)
        value = value.substr(1, value.size() - 2);
    return std::string(truncated_utf8(value, kMaxDescription));
  }
  return std::nullopt;
}

std::optional<std::string> description_of(int skill) {
  const FileDescriptor file(::openat(skill, "SKILL.md", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  std::array<char, 4096> head{};
  const auto size = ::read(file.get(), head.data(), head.size());
  return size > 0 ? description_in(std::string_view(head.data(), static_cast<std::size_t>(size)))
                  : std::nullopt;
}

/// A registry may be a clone, and its `.git` is nobody's to see.
bool is_hidden(const std::string& name) {
  return name.front() == '.';
}

/// In the folder, and not the folder itself nor something in it that is hidden.
bool is_shown_in(const std::filesystem::path& path, const std::filesystem::path& folder) {
  const auto [end, rest] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return end == folder.end() && rest != path.end() &&
         std::none_of(rest, path.end(), [](const auto& part) { return is_hidden(part.string()); });
}

}  // namespace

/// Who may write to a registry, as to a repository that it is a clone of, must not thereby choose what of the
/// host is shown: a link may lead into the registries only.
FileDescriptor SkillRegistry::open_skill(const std::filesystem::path& path) const {
  constexpr int kFlags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
  FileDescriptor skill(::open(path.c_str(), kFlags | O_NOFOLLOW));
  if (skill || (errno != ENOTDIR && errno != ELOOP)) return skill;
  skill = FileDescriptor(::open(path.c_str(), kFlags));
  if (!skill) return skill;
  const auto place = kernel_path(skill.get());
  if (!place) return FileDescriptor();
  const bool is_inside = std::any_of(folders_.begin(), folders_.end(), [&](const auto& folder) {
    std::error_code error;
    const auto real = std::filesystem::canonical(folder, error);
    return !error && is_shown_in(*place, real);
  });
  return is_inside ? std::move(skill) : FileDescriptor();
}

std::vector<SkillInfo> SkillRegistry::list() const {
  std::map<std::string, SkillInfo> found;
  for (const auto& folder : folders_) {
    std::error_code error;
    for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
         entry.increment(error)) {
      const auto name = entry->path().filename().string();
      if (is_hidden(name) || found.contains(name)) continue;
      const auto skill = open_skill(entry->path());
      if (skill) found.emplace(name, SkillInfo{name, description_of(skill.get())});
    }
  }
  std::vector<SkillInfo> skills;
  skills.reserve(found.size());
  for (auto& [name, skill] : found) skills.push_back(std::move(skill));
  return skills;
}

Result<FileDescriptor> SkillRegistry::open(const Name& name) const {
  if (!is_hidden(name.text()))
    for (const auto& folder : folders_) {
      errno = 0;
      if (auto skill = open_skill(folder / name.text()); skill) return skill;
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM)
        return fail_errno(errno, "the skill cannot be opened");
    }
  return fail(Code::kNotFound, "no such skill: okcvm skills lists them", "skills/" + name.text());
}

}  // namespace okcvm::daemon
