#include "fusefs/workspace.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>

#include <algorithm>
#include <set>

#include "fusefs/caller_identity.h"
#include "fusefs/state_files.h"
#include "policy/fault.h"
#include "policy/proc_path.h"

namespace okcvm::fusefs {
namespace {

constexpr mode_t kFolderMode = 0700;  // <state-dir>/workspaces/<id> is root's alone (DESIGN section 2)

Result<FileDescriptor> open_beneath(int directory, const std::string& path, int flags) {
  open_how how{};
  how.flags = static_cast<std::uint64_t>(flags | O_CLOEXEC | O_NOFOLLOW);
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  FileDescriptor file(static_cast<int>(::syscall(SYS_openat2, directory, path.c_str(), &how, sizeof how)));
  if (!file) return fail_errno(errno);
  return file;
}

Error not_loaded(const Name& skill) {
  return Error::of(Code::kNotFound, "the skill is not loaded", "skills/" + skill.text());
}

}  // namespace

Result<std::unique_ptr<Workspace>> Workspace::open(Config config) {
  FileDescriptor parent(::open(config.folder.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!parent) return fail_errno(errno, "cannot open the folder of the workspaces");
  auto real_parent = kernel_path(parent.get());
  if (!real_parent) return fail(real_parent.error());

  std::unique_ptr<Workspace> workspace(new Workspace(std::move(config)));
  workspace->folder_name_ = workspace->config_.folder.filename();
  workspace->real_folder_ = *real_parent + "/" + workspace->folder_name_;
  const bool use_handles = workspace->config_.use_handles;
  MutexLock lock(workspace->mutex_);
  workspace->volumes_[kWorkspaceVolume] = std::make_shared<Volume>(std::move(parent), use_handles);
  if (workspace->config_.workdir)
    workspace->volumes_[kWorkdirVolume] =
        std::make_shared<Volume>(std::move(workspace->config_.workdir), use_handles);
  return workspace;
}

bool Workspace::is_materialized() const {
  struct stat status {};
  return ::fstatat(anchor(), folder_name_.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
}

Result<void> Workspace::materialize(Zone zone) {
  if (zone == Zone::kWorkdir || has_made(zone)) return {};
  return as_daemon([&] { return make_folders(zone); });
}

Result<void> Workspace::make_folders(Zone zone) {
  const int workspaces = anchor();
  if (with_faults("workspace.mkdir",
                  [&] { return ::mkdirat(workspaces, folder_name_.c_str(), kFolderMode); }) != 0 &&
      errno != EEXIST)
    return fail_errno(errno);
  auto folder = open_folder();
  if (!folder) return fail(folder.error());
  // The zone appears complete, with its owner, or not at all: it is made under another name first.
  const std::string name(rule_of(zone).name);
  const std::string draft = ".making-" + name;
  MutexLock lock(mutex_);
  struct stat status {};
  if (::fstatat(folder->get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    if (::mkdirat(folder->get(), draft.c_str(), kZoneMode) != 0 && errno != EEXIST) return fail_errno(errno);
    if (::fchownat(folder->get(), draft.c_str(), config_.owner_uid, config_.owner_gid, AT_SYMLINK_NOFOLLOW) !=
        0)
      return fail_errno(errno);
    const timespec times[2] = {config_.created_at, config_.created_at};
    if (::utimensat(folder->get(), draft.c_str(), times, AT_SYMLINK_NOFOLLOW) != 0) return fail_errno(errno);
    if (with_faults("workspace.rename", [&] {
          return ::renameat2(folder->get(), draft.c_str(), folder->get(), name.c_str(), RENAME_NOREPLACE);
        }) != 0)
      return fail_errno(errno);
  }
  materialized_.fetch_or(1u << static_cast<unsigned>(zone));
  return {};
}

Result<FileDescriptor> Workspace::open_zone(Zone zone) const {
  if (zone == Zone::kWorkdir) {
    const auto workdir = volume(kWorkdirVolume);
    if (!workdir) return fail_errno(ENOENT);
    return open_beneath(workdir->root(), ".", O_RDONLY | O_DIRECTORY);
  }
  if (!rule_of(zone).snapshotted) return fail_errno(ENOENT);
  return open_beneath(anchor(), folder_name_ + "/" + std::string(rule_of(zone).name), O_RDONLY | O_DIRECTORY);
}

Result<FileDescriptor> Workspace::open_folder() const {
  return open_beneath(anchor(), folder_name_, O_RDONLY | O_DIRECTORY);
}

bool Workspace::sync() const {
  const auto folder = open_folder();
  return folder && ::syncfs(folder->get()) == 0;
}

Result<FileDescriptor> Workspace::open_directory(const RelPath& path) const {
  auto folder = open_folder();
  return folder ? open_beneath(folder->get(), path.text(), O_PATH | O_DIRECTORY) : fail(folder.error());
}

Result<FileDescriptor> Workspace::open(const Node& node, int flags) const {
  const auto where = volume(node.key.volume);
  if (!where || node.handle.size == 0) return fail_errno(ESTALE);
  return where->open(node.handle, flags);
}

Result<RelPath> Workspace::path_of(int directory) const {
  auto text = kernel_path(directory);
  if (!text) return fail(text.error());
  struct stat status {};
  if (::fstat(directory, &status) != 0 || status.st_nlink == 0) return fail_errno(ENOENT);
  const std::string prefix = real_folder_ + "/";
  if (!text->starts_with(prefix)) return fail_errno(ENOENT);
  return RelPath::parse(std::string_view(*text).substr(prefix.size()));
}

Result<std::string> Workspace::name_of(int file) const {
  auto text = kernel_path(file);
  if (!text) return text;
  return text->substr(text->rfind('/') + 1);
}

int Workspace::anchor() const {
  return volume(kWorkspaceVolume)->root();
}

std::shared_ptr<Volume> Workspace::volume(VolumeId id) const {
  MutexLock lock(mutex_);
  const auto found = volumes_.find(id);
  return found == volumes_.end() ? nullptr : found->second;
}

bool Workspace::finds_inodes_again() const {
  MutexLock lock(mutex_);
  return std::all_of(volumes_.begin(), volumes_.end(),
                     [](const auto& entry) { return entry.second->uses_handles(); });
}

Result<void> Workspace::load_skill(const Name& name, FileDescriptor directory) {
  if (skill(name.text()))
    return fail(Code::kAlreadyExists, "the skill is loaded already", "skills/" + name.text());
  show_skill(name, std::move(directory));
  return {};
}

/// The skill shows this directory from now on.
void Workspace::show_skill(const Name& name, FileDescriptor directory) {
  const auto identity = identity_of(directory.get());
  // Not under the lock, which requests take: the registry's file system may be slow.
  auto added = std::make_shared<Volume>(std::move(directory), config_.use_handles);
  MutexLock lock(mutex_);
  std::set<VolumeId> in_use;
  for (const auto& [volume, there] : volumes_) in_use.insert(volume);
  const VolumeId id = numbers_.number_of(name, identity, in_use);
  volumes_.try_emplace(id, std::move(added));  // of the same directory, which has what is known pinned
  skills_[name.text()] = id;
}

Result<bool> Workspace::renew_skill(const Name& name, FileDescriptor directory) {
  const auto id = skill(name.text());
  const auto former = id ? volume(*id) : nullptr;
  if (!former) return fail(not_loaded(name));
  struct stat offered {};
  struct stat shown {};
  if (::fstat(directory.get(), &offered) != 0) return fail_errno(errno);
  // The descriptor keeps the inode, so that no other one can have its number.
  if (::fstat(former->root(), &shown) == 0 && shown.st_dev == offered.st_dev &&
      shown.st_ino == offered.st_ino)
    return false;
  show_skill(name, std::move(directory));
  return true;
}

Result<VolumeId> Workspace::unload_skill(const Name& name) {
  MutexLock lock(mutex_);
  const auto found = skills_.find(name.text());
  if (found == skills_.end()) return fail(not_loaded(name));
  const VolumeId volume = found->second;
  skills_.erase(found);
  return volume;
}

void Workspace::release(VolumeId volume) {
  if (volume < kFirstSkillVolume) return;
  std::shared_ptr<Volume> released;  // closed without the lock
  MutexLock lock(mutex_);
  const auto found = volumes_.find(volume);
  const bool is_shown =
      std::any_of(skills_.begin(), skills_.end(), [&](const auto& skill) { return skill.second == volume; });
  if (found == volumes_.end() || is_shown) return;
  released = std::move(found->second);
  volumes_.erase(found);
}

std::vector<Workspace::LoadedSkill> Workspace::skills() const {
  std::vector<LoadedSkill> loaded;
  MutexLock lock(mutex_);
  for (const auto& [name, volume] : skills_) loaded.push_back({*Name::parse(name), volume});
  return loaded;
}

std::optional<VolumeId> Workspace::skill(std::string_view name) const {
  MutexLock lock(mutex_);
  const auto found = skills_.find(name);
  if (found == skills_.end()) return std::nullopt;
  return found->second;
}

}  // namespace okcvm::fusefs
