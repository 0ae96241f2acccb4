#include "tools/daemon/sessions/skill_registry.h"

#include <fcntl.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <map>
#include <memory>
#include <string_view>
#include <system_error>

#include "policy/proc_path.h"
#include "policy/utf8.h"
#include "tools/daemon/sessions/directory_steps.h"
#include "tools/daemon/sessions/owner_files.h"

namespace okcvm::daemon {
namespace {

constexpr std::size_t kMaxDescription = 500;
constexpr std::chrono::milliseconds kListTimeout{10000};

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

using Folders = std::vector<std::filesystem::path>;

bool is_shown_in_one(const std::filesystem::path& path, const Folders& folders) {
  return std::any_of(folders.begin(), folders.end(), [&](const auto& folder) {
    std::error_code error;
    const auto real = std::filesystem::canonical(folder, error);
    return !error && is_shown_in(path, real);
  });
}

/// Who may write to a registry, as to a repository that it is a clone of, must not thereby choose what of the
/// host is shown: a link may lead into the registries only. What it leads to is asked nothing before that is
/// known.
Result<FileDescriptor> open_skill(const std::filesystem::path& folder, const std::string& name,
                                  const Folders& folders) {
  FileDescriptor skill(::open((folder / name).c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (skill) return skill;
  if (errno != ENOTDIR && errno != ELOOP) return fail_errno(errno);
  const FileDescriptor directory(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return fail_errno(errno);
  const auto found = find_by_steps(directory, name);
  if (!found) return fail(found.error());
  const auto place = kernel_path(found->get());
  if (!place) return fail(place.error());
  if (!is_shown_in_one(*place, folders)) return fail_errno(ENOENT);
  return open_at(found->get(), ".", O_RDONLY | O_DIRECTORY);
}

std::vector<SkillInfo> skills_in(const std::filesystem::path& folder, const Folders& folders) {
  std::vector<SkillInfo> skills;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    auto name = entry->path().filename().string();
    if (is_hidden(name)) continue;
    if (const auto skill = open_skill(folder, name, folders))
      skills.push_back({std::move(name), description_of(skill->get())});
  }
  return skills;
}

}  // namespace

SkillRegistry::SkillRegistry(std::vector<std::filesystem::path> folders) : paths_(std::move(folders)) {
  for (const auto& path : paths_) folders_.push_back({path, {}});
}

std::vector<SkillInfo> SkillRegistry::list() const {
  std::map<std::string, SkillInfo> found;
  for (const auto& [folder, asking] : folders_) {
    auto there = asking.ask(folder, kListTimeout,
                            [folder = folder, folders = paths_] { return skills_in(folder, folders); });
    if (!there) break;  // which of its names come before those of the next folders is not known
    for (auto& skill : *there) found.try_emplace(skill.name, std::move(skill));
  }
  std::vector<SkillInfo> skills;
  skills.reserve(found.size());
  for (auto& [name, skill] : found) skills.push_back(std::move(skill));
  return skills;
}

Result<FileDescriptor> SkillRegistry::open(const Name& name) const {
  if (!is_hidden(name.text()))
    for (const auto& [folder, asking] : folders_) {
      auto skill = asking.ask(folder / name.text(), kAnswerTimeout,
                              [folder = folder, name = name.text(), folders = paths_] {
                                return open_skill(folder, name, folders);
                              });
      // That of a later folder is another one, if this folder has it.
      if (!skill) return fail(Code::kBusy, "the file system of the skills does not answer: try again later");
      if (*skill) return std::move(*skill);
      const int error = skill->error().errno_value;
      if (error == EMFILE || error == ENFILE || error == ENOMEM)
        return fail_errno(error, "the skill cannot be opened");
    }
  return fail(Code::kNotFound, "no such skill: okcvm skills lists them", "skills/" + name.text());
}

void SkillRegistry::watch(int inotify) const {
  for (const auto& [folder, asking] : folders_) {
    const auto own = std::make_shared<const FileDescriptor>(::fcntl(inotify, F_DUPFD_CLOEXEC, 0));
    asking.ask(folder, kAnswerTimeout, [own, folder = folder] {
      return ::inotify_add_watch(own->get(), folder.c_str(), IN_CREATE | IN_MOVED_TO | IN_ONLYDIR);
    });
  }
}

}  // namespace okcvm::daemon
